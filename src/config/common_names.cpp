#include "config/common_names.hpp"

#include <algorithm>
#include <string>

#include "base/text.hpp"

namespace primus::config {
namespace {

struct Name {
  std::string_view name;
  std::string_view key;
};

constexpr std::string_view kBatches = "global_batch_size' or 'micro_batch_size";
constexpr std::string_view kLengths = "train_iters' or 'train_samples";

constexpr Name kNames[] = {
    {"tensor_parallel_size", "tensor_model_parallel_size"},
    {"tensor_parallel", "tensor_model_parallel_size"},
    {"tp", "tensor_model_parallel_size"},
    {"tp_size", "tensor_model_parallel_size"},
    {"pipeline_parallel_size", "pipeline_model_parallel_size"},
    {"pipeline_parallel", "pipeline_model_parallel_size"},
    {"pp", "pipeline_model_parallel_size"},
    {"pp_size", "pipeline_model_parallel_size"},
    {"expert_parallel_size", "expert_model_parallel_size"},
    {"expert_parallel", "expert_model_parallel_size"},
    {"ep", "expert_model_parallel_size"},
    {"ep_size", "expert_model_parallel_size"},
    {"context_parallel", "context_parallel_size"},
    {"cp", "context_parallel_size"},
    {"cp_size", "context_parallel_size"},
    {"etp", "expert_tensor_parallel_size"},
    {"vpp", "num_virtual_stages_per_pipeline_rank"},
    {"vpp_size", "num_virtual_stages_per_pipeline_rank"},
    {"batch", kBatches},
    {"gbs", "global_batch_size"},
    {"train_batch_size", "global_batch_size"},
    {"mbs", "micro_batch_size"},
    {"per_device_train_batch_size", "micro_batch_size"},
    {"gradient_accumulation_steps", kBatches},
    {"seq_len", "seq_length"},
    {"seqlen", "seq_length"},
    {"sequence_length", "seq_length"},
    {"max_seq_len", "seq_length"},
    {"max_seq_length", "seq_length"},
    {"context_length", "seq_length"},
    {"learning_rate", "lr"},
    {"max_lr", "lr"},
    {"min_learning_rate", "min_lr"},
    {"lr_min", "min_lr"},
    {"lr_schedule", "lr_decay_style"},
    {"lr_scheduler", "lr_decay_style"},
    {"lr_scheduler_type", "lr_decay_style"},
    {"warmup_steps", "lr_warmup_iters"},
    {"warmup_iters", "lr_warmup_iters"},
    {"warmup_ratio", "lr_warmup_fraction"},
    {"beta1", "adam_beta1"},
    {"beta2", "adam_beta2"},
    {"epsilon", "adam_eps"},
    {"wd", "weight_decay"},
    {"grad_clip", "clip_grad"},
    {"max_grad_norm", "clip_grad"},
    {"gradient_clipping", "clip_grad"},
    {"epochs", kLengths},
    {"num_epochs", kLengths},
    {"num_train_epochs", kLengths},
    {"steps", "train_iters"},
    {"max_steps", "train_iters"},
    {"train_steps", "train_iters"},
    {"iters", "train_iters"},
    {"iterations", "train_iters"},
    {"max_iters", "train_iters"},
    {"save_steps", "save_interval"},
    {"logging_steps", "log_interval"},
    {"eval_steps", "eval_interval"},
    {"output_dir", "workspace"},
    {"run_name", "exp_name"},
    {"layers", "num_layers"},
    {"n_layer", "num_layers"},
    {"n_layers", "num_layers"},
    {"num_hidden_layers", "num_layers"},
    {"hidden", "hidden_size"},
    {"d_model", "hidden_size"},
    {"n_embd", "hidden_size"},
    {"heads", "num_attention_heads"},
    {"n_head", "num_attention_heads"},
    {"n_heads", "num_attention_heads"},
    {"num_heads", "num_attention_heads"},
    {"num_key_value_heads", "num_query_groups"},
    {"num_kv_heads", "num_query_groups"},
    {"head_dim", "kv_channels"},
    {"intermediate_size", "ffn_hidden_size"},
    {"d_ff", "ffn_hidden_size"},
    {"rms_norm_eps", "norm_epsilon"},
    {"rope_theta", "rotary_base"},
    {"vocab", "vocab_size"},
    {"experts", "num_experts"},
    {"n_experts", "num_experts"},
    {"n_routed_experts", "num_experts"},
    {"num_local_experts", "num_experts"},
    {"topk", "moe_router_topk"},
    {"top_k", "moe_router_topk"},
    {"moe_topk", "moe_router_topk"},
    {"moe_top_k", "moe_router_topk"},
    {"num_experts_per_tok", "moe_router_topk"},
    {"moe_intermediate_size", "moe_ffn_hidden_size"},
    {"capacity_factor", "moe_expert_capacity_factor"},
    {"aux_loss_coeff", "moe_aux_loss_coeff"},
    {"aux_loss_alpha", "moe_aux_loss_coeff"},
    {"router_aux_loss_coef", "moe_aux_loss_coeff"},
    {"z_loss_coeff", "moe_z_loss_coeff"},
    {"dropout", "hidden_dropout' or 'attention_dropout"},
    {"tokenizer", "tokenizer_type' and 'tokenizer_model"},
    {"tokenizer_path", "tokenizer_model"},
    {"dataset", "train_data_path"},
    {"data", "train_data_path"},
    {"train_data", "train_data_path"},
    {"checkpoint", "load"},
    {"resume", "load"},
    {"resume_from_checkpoint", "load"},
    {"gradient_checkpointing", "recompute_granularity"},
    {"activation_checkpointing", "recompute_granularity"},
    {"random_seed", "seed"},
};

}  // namespace

std::string_view key_of_common_name(std::string_view name) {
  std::string folded = lower(name);
  std::replace(folded.begin(), folded.end(), '-', '_');
  const auto found =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const Name& row) { return row.name == folded; });
  return found == std::end(kNames) ? "" : found->key;
}

}  // namespace primus::config
