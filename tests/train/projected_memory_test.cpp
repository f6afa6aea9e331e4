// What `projection memory` says of an experiment is what its training run holds: parameters, gradients, optimizer and
// the peak of saved tensors, through the real configuration and the real trainer, for each of the experiments below.
#include "ops/allocator.hpp"
#include "projection/memory.hpp"
#include "train/deepseek_v4_words.hpp"
#include "train/tiny_run.hpp"

namespace primus::train {
namespace {

using projection::Category;
using Words = std::vector<std::string>;

const Words kBf16 = {"--bf16", "true"};
const Words kGrouped = {"--multi_latent_attention", "false", "--qk_layernorm",     "false",
                        "--group_query_attention",  "true",  "--num_query_groups", "1"};
const Words kSparse = {"--experimental_attention_variant", "dsa", "--dsa_indexer_n_heads", "3",
                       "--dsa_indexer_head_dim",           "16",  "--dsa_indexer_topk",    "5"};
const Words kDelta = {"--model_type",           "kimi_k3", "--linear_attention_freq",  "2",
                      "--linear_num_key_heads", "2",       "--linear_num_value_heads", "2",
                      "--linear_key_head_dim",  "8",       "--linear_value_head_dim",  "8"};
const Words kNarrow = {"--bf16", "true", "--use_precision_aware_optimizer", "true", "--use_distributed_optimizer",
                       "true"};

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words again(const std::string& modules) {
  return {"--recompute_granularity", "selective", "--recompute_modules", modules};
}

Words whole(const std::string& method, const std::string& layers) {
  return {"--recompute_granularity", "full", "--recompute_method", method, "--recompute_num_layers", layers};
}

std::vector<Words> experiments() {
  return {
      {},
      {"--micro_batch_size", "4"},
      {"--global_batch_size", "8"},
      {"--cross_entropy_loss_fusion", "false"},
      kBf16,
      kBf16 + Words{"--grad_reduce_in_bf16", "true"},
      kBf16 + Words{"--fp32_residual_connection", "true"},
      {"--fp16", "true"},
      kNarrow,
      kNarrow + Words{"--exp_avg_dtype", "bf16", "--exp_avg_sq_dtype", "fp16"},
      kNarrow + Words{"--exp_avg_dtype", "fp8", "--exp_avg_sq_dtype", "fp8", "--main_params_dtype", "fp16",
                      "--main_grads_dtype", "bf16"},
      whole("uniform", "1"),
      whole("uniform", "2"),
      whole("block", "1"),
      {"--recompute_granularity", "full", "--recompute_layer_ids", "1"},
      again("[core_attn]"),
      again("[mla_up_proj]"),
      again("[moe]"),
      again("[mlp,shared_experts]"),
      kGrouped,
      kGrouped + Words{"--qk_layernorm", "true"},
      kGrouped + Words{"--add_qkv_bias", "true"},
      {"--q_lora_rank", "8"},
      {"--moe_shared_expert_intermediate_size", "null"},
      {"--moe_router_score_function", "sigmoid", "--moe_router_enable_expert_bias", "true"},
      {"--untie_embeddings_and_output_weights", "false"},
      {"--mtp_num_layers", "1"},
      Words{"--mtp_num_layers", "2"} + whole("uniform", "1"),
      {"--normalization", "LayerNorm"},
      {"--optimizer", "sgd"},
      {"--optimizer", "lion"},
      {"--hidden_dropout", "0.1", "--attention_dropout", "0.1"},
      kSparse + kBf16 + Words{"--dsa_indexer_loss_coeff", "0.1"} + again("[core_attn]"),
      kDelta,
      kDelta + kBf16 +
          Words{"--kda_use_full_rank_gate", "true", "--mla_use_output_gate", "true", "--mla_use_nope", "true"},
      kDelta + Words{"--mla_use_output_gate", "true", "--kda_gate_lower_bound", "-5"} + whole("uniform", "2"),
      kDeepSeekV4Words + kBf16,
      kDeepSeekV4Words + again("[core_attn]"),
      kDeepSeekV4Words + whole("uniform", "1"),
      kSparse + whole("uniform", "2") +
          Words{"--dsa_indexer_topk_freq", "2", "--dsa_indexer_skip_topk_offset", "1", "--mtp_num_layers", "1"},
      {"--hc_mult", "3"},
      kBf16 + Words{"--enable_mhc_connections", "true", "--mhc_num_residual_streams", "3"},
      kBf16 + Words{"--hc_mult", "4", "--hc_use_sinkhorn", "true"} + again("[core_attn,moe]"),
      whole("uniform", "2") + Words{"--hc_mult", "2", "--hc_use_sinkhorn", "true", "--mtp_num_layers", "1",
                                    "--mtp_use_separate_hc_head", "true"},
  };
}

class ProjectedMemory : public TinyRun {};

TEST_F(ProjectedMemory, IsHeldByEveryExperiment) {
  for (const Words& words : experiments()) {
    std::string name;
    for (const std::string& word : words) name += word + " ";
    SCOPED_TRACE(name);
    const config::Experiment what = experiment(words + Words{"--train_iters", "2", "--eval_iters", "0"});
    const projection::RankMemory projected =
        projection::project_memory(projection::on_host(projection::memory_inputs(what, 1, 1.0))).ranks.front();
    const ops::MemoryReport empty = ops::memory_report();
    Trainer trainer(what);
    const ops::MemoryReport resident = ops::memory_report();
    const auto held = [&](ops::MemoryTag tag) { return resident.held(tag) - empty.held(tag); };
    EXPECT_EQ(held(ops::MemoryTag::kParameters), projected.bytes(Category::kParameters));
    EXPECT_EQ(held(ops::MemoryTag::kMainGradients), projected.bytes(Category::kGradients));
    EXPECT_EQ(held(ops::MemoryTag::kOptimizer), projected.bytes(Category::kOptimizer) + engine::Optimizer::kGateBytes);
    ops::reset_peak();
    Reporter reporter(what.run_folder(), RunOptions::PerLayerLog::kNo);
    const RunSummary summary = trainer.run(reporter);
    EXPECT_EQ(summary.num_iterations, 2);
    EXPECT_EQ(ops::memory_report().saved_peak_bytes - resident.saved_bytes(),
              projected.bytes(Category::kActivations) + projected.bytes(Category::kRemade));
  }
}

}  // namespace
}  // namespace primus::train
