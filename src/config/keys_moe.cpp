// Rows: mixture of experts, and the turbo switches (faster paths for attention, experts and dispatch).
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config::rows {
namespace {

constexpr Key kMoe[] = {
  works("num_experts", kInt, "null", ">=1", "Routed experts of a MoE layer.", "null: a dense model"),
  works("moe_layer_freq", kLayers, "1", "", "Which layers are MoE: every n-th, or one 0 or 1 a layer as in ([0]*1+[1]*26)."),
  works("moe_ffn_hidden_size", kInt, "null", ">=1", "Inner width of one routed expert.", "null: ffn_hidden_size"),
  works("moe_shared_expert_intermediate_size", kInt, "null", ">=1", "Inner width of all shared experts together.", "null: no shared expert"),
  works("moe_router_topk", kInt, "2", ">=1", "Experts that each token goes to."),
  works("moe_router_pre_softmax", kBool, "false", "", "Softmax over all experts before the choice, instead of over the chosen ones after it."),
  works("moe_router_topk_scaling_factor", kReal, "null", ">0", "Factor on the chosen experts' probabilities."),
  works("moe_router_load_balancing_type", kTextList, "aux_loss", "aux_loss|seq_aux_loss|global_aux_loss|sinkhorn|quantile_balancing|none", "How experts are kept evenly loaded; a list: several losses at once."),
  works("moe_aux_loss_coeff", kRealList, "0.0", ">=0", "Weight of the load-balancing loss; a list: one for each type."),
  works("moe_router_dtype", kText, "null", "fp32|fp64", "Number type of the router.", "null: fp32"),
  works("moe_router_score_function", kText, "softmax", "softmax|sigmoid|sqrtsoftplus", "How router logits become scores."),
  no_effect("moe_grouped_gemm", kBool, "false", "", "All experts of a layer in one grouped matrix product.", "always grouped; the numbers are the same"),
  works("moe_per_layer_logging", kBool, "false", "", "Load-balancing figures layer by layer."),
  works("moe_router_num_groups", kInt, "null", ">=1", "Expert groups of group-limited routing."),
  works("moe_router_group_topk", kInt, "null", ">=1", "Groups that each token may use."),
  works("moe_router_group_score", kText, "sum", "sum|max", "A group's score: the sum of its best topk/group_topk experts' scores, or its best one's.", "max: DeepSeek-V2 as released"),
  works("moe_router_enable_expert_bias", kBool, "false", "", "A bias per expert steers the choice, without a loss."),
  works("moe_router_bias_update_rate", kReal, "0.001", ">=0", "Step of the expert bias after each iteration."),
  works("moe_router_force_load_balancing", kBool, "false", "", "Ignore the router and spread tokens evenly, for benchmarks."),
  works("moe_router_force_load_balancing_type", kText, "even", "even|uniform", "Round robin, or random logits, when balance is forced."),
  works("moe_z_loss_coeff", kReal, "null", ">=0", "Weight of the loss on large router logits."),
  works("moe_input_jitter_eps", kReal, "null", "0..<1", "Random factor, within this of one, on the router's input in training."),
  works("moe_expert_capacity_factor", kReal, "null", ">0", "Bound on each expert's tokens, relative to evenly spread ones; the rest is dropped.", "per micro-batch"),
  works("moe_pad_expert_input_to_capacity", kBool, "false", "", "Every expert computes its full capacity.", "the numbers are the same"),
  works("moe_token_drop_policy", kText, "probs", "probs|position", "Which tokens go when an expert is full: the least probable, or the last."),
  works("moe_use_upcycling", kBool, "false", "", "Start experts from a dense model's MLP.", "the dense model is what load names; without one: an error"),
  planned_detail("moe_router_padding_for_quantization", kBool, "false", "", "Pad each expert's rows to what low-precision products need.", "low-precision training"),
  planned_speed("moe_shared_expert_overlap", kBool, "false", "", "Shared experts run while tokens travel.", "shared experts beside travelling tokens", "shared experts run after the routed ones"),
  works("moe_layer_recompute", kBool, "false", "", "Run MoE layers again in backward instead of keeping their activations."),
  planned_speed("moe_enable_deepep", kBool, "false", "", "Dispatch through DeepEP."),
  no_effect("moe_router_fusion", kBool, "false", "", "Router steps in one kernel.", "choice, probabilities and losses are always one operation"),
  planned("moe_extended_tp", kBool, "false", "", "Experts sharded over both tensor and expert ranks."),
  works_for_speed("moe_token_dispatcher_type", kText, "allgather", "allgather|alltoall|flex", "allgather|alltoall", "the flexible dispatcher", "How tokens travel to their experts.", "in one process every expert is at hand and nothing travels"),
  no_effect("moe_permute_fusion", kBool, "false", "", "Permute tokens in one kernel.", "permutation is always one operation"),
  works("moe_use_legacy_grouped_gemm", kBool, "false", "", "Older grouped matrix product: one an expert, over several streams.", "on a GPU, where the host then waits for the experts' sizes; slower, to be compared with"),
  no_effect("disable_primus_topk_router", kBool, "false", "", "Use the framework's own router.", "there is one router"),
  no_effect("use_deprecated_20241209_moe_layer", kBool, "false", "", "Old MoE layer.", "there is one implementation"),
};

constexpr Key kTurbo[] = {
  no_effect("enable_primus_turbo", kBool, "false", "", "Allow the turbo switches and the sync-free stages.", "the fast kernels are always used; it only allows the stages"),
  no_effect("use_turbo_attention", kBool, "false", "", "Turbo attention kernels.", "on a GPU attention is cuDNN's wherever that takes the sizes"),
  no_effect("use_turbo_gemm", kBool, "false", "", "Turbo matrix products in linear layers.", "kernels are chosen by shape and device"),
  no_effect("use_turbo_grouped_gemm", kBool, "false", "", "Turbo grouped matrix products in experts.", "there is one grouped product, and its groups' sizes stay on the device"),
  no_effect("turbo_grouped_gemm_without_padding", kBool, "false", "", "Grouped products on rows that are not padded.", "rows are never padded"),
  no_effect("use_turbo_fused_act_with_probs", kBool, "false", "", "Expert activation and routing probability in one kernel.", "it is always one kernel"),
  no_effect("moe_use_fused_router_with_aux_score", kBool, "false", "", "Router and its balancing scores in one kernel.", "it is always one kernel"),
  planned_speed("use_turbo_deepep", kBool, "false", "", "Dispatch and combine through DeepEP.", "DeepEP dispatch"),
  planned_detail("turbo_deepep_num_cu", kInt, "32", ">=1", "Compute units that DeepEP takes."),
  planned_detail("turbo_deepep_use_comm_stream", kBool, "false", "", "DeepEP on a stream of its own."),
  works("turbo_sync_free_moe_stage", kInt, "0", "0..3", "On a GPU: 2, results are read one step later; 3, a step's kernels are also recorded and replayed.", "the loss is the same in every stage; 0 and 1 read each result before the next step begins"),
  planned_speed("use_turbo_mega_moe", kBool, "false", "", "Whole expert layer in one kernel."),
  planned_detail("turbo_mega_moe_precision", kText, "bf16", "bf16|mxfp8", "Number type of the one-kernel expert layer."),
  no_effect("use_turbo_rms_norm", kBool, "false", "", "Turbo RMSNorm kernel.", "there is one kernel"),
  planned_speed("use_turbo_norm_te_linear", kBool, "false", "", "Turbo norm in front of a fused linear layer."),
  works("use_sink_attention", kBool, "false", "", "A learnt extra logit a head in every attention softmax."),
  works("sink_sliding_window", kInt, "0", ">=0", "Keys that a query of sink attention sees, its own included; 0: all."),
  works("sink_window_even_layers_only", kBool, "true", "", "Sink attention's window on even layers only, the first being layer 0."),
  planned("enable_turbo_attention_float8", kBool, "false", "", "Attention in fp8."),
  planned("mxfp4_gradient_stochastic_rounding", kBool, "false", "", "Round fp4 gradients at random."),
  no_effect("use_turbo_autotune", kBool, "false", "", "Try kernels and keep the fastest.", "kernels are chosen by shape and device"),
  no_effect("turbo_gemm_backend", kText, "default", "", "Library of the turbo matrix products.", "kernels are chosen by shape and device"),
  no_effect("turbo_grouped_gemm_backend", kText, "default", "", "Library of the turbo grouped products.", "kernels are chosen by shape and device"),
};

}  // namespace

std::span<const Key> moe_keys() { return kMoe; }
std::span<const Key> turbo_keys() { return kTurbo; }

}  // namespace primus::config::rows
