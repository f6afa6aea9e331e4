// Rows: fine-tuning, low-rank adapters, distillation.
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config::rows {
namespace {

constexpr Key kFineTuning[] = {
  planned("stage", kText, "null", "sft", "Kind of post-training.", "fine-tuning"),
  planned("sft", kBool, "false", "", "Train on conversations.", "fine-tuning"),
  planned_detail("sft_tokenizer_prompt_format", kText, "nemotron-h-aligned", "", "How conversations become text."),
  planned_detail("sft_dataset_name", kText, "null", "", "Data set of conversations."),
  planned_detail("sft_dataset_split", kText, "train", "", "Part of that data set."),
  planned_detail("sft_conversation_format", kText, "null", "", "How a record becomes a conversation."),
  planned_detail("sft_bridge_compat_inline_bos", kBool, "false", "", "A start token inside the conversation, as another framework writes it."),
  planned_detail("sft_sanitize_nan_grads", kBool, "false", "", "Gradients that are not numbers count as zero."),
  planned("enable_packed_sequences", kBool, "false", "", "Several conversations in one sequence.", "fine-tuning"),
  planned_detail("use_packed_attention", kBool, "false", "", "Attention stops at the ends of packed conversations."),
  planned("enable_odc_lb_mini", kBool, "false", "", "Micro-batches of even cost instead of even count.", "fine-tuning"),
  planned_detail("lb_mini_max_token_len", kInt, "0", ">=0", "Most tokens of such a micro-batch; 0: no bound.", "micro-batches of even cost"),
  planned_detail("lb_mini_cost_model", kText, "linear", "", "How a sequence's cost grows with its length."),
  planned_detail("enable_fused_linear_ce", kBool, "false", "", "Output layer and loss in one, in fine-tuning."),
  planned("lora", kMap, "null", "", "Low-rank adapters beside frozen weights.", "low-rank adapters", "", "they are in use where lora.enabled is true"),
  planned("freeze_all_layers", kBool, "false", "", "No weight is trained.", "weights that stand still"),
};

constexpr Key kDistillation[] = {
  planned("logits_save_dir", kText, "null", "", "Folder to which the output logits are written.", "distillation"),
  planned_detail("logits_save_dtype", kText, "fp16", "fp16|bf16|fp32", "Their number type."),
  planned_detail("logits_save_top_k", kInt, "null", ">=1", "Only the largest so many of them."),
  planned_detail("logits_save_top_p", kReal, "null", "0..1", "Only the most likely ones that add up to this."),
  planned_detail("logits_save_top_p_min_k", kInt, "1", ">=1", "At least so many of them."),
  planned("logits_load_dir", kText, "null", "", "Folder of a teacher's logits.", "distillation"),
  planned_detail("logits_load_kd_loss_alpha", kReal, "1.0", "0..1", "Weight of the loss against the teacher."),
  planned_detail("logits_load_decode_threads", kInt, "4", ">=1", "Threads that read them."),
  planned_detail("logits_load_prefetch_factor", kInt, "3", ">=1", "Batches read ahead."),
  planned_detail("logits_load_msc_prefetch_depth", kInt, "2", ">=1", "Batches read ahead from object storage."),
  planned_detail("logits_load_ignore_errors", kBool, "false", "", "Go on without logits that cannot be read."),
};

}  // namespace

std::span<const Key> fine_tuning_keys() { return kFineTuning; }
std::span<const Key> distillation_keys() { return kDistillation; }

}  // namespace primus::config::rows
