// Rows: how tokens travel to their experts, and variants of expert layers.
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config::rows {
namespace {

constexpr std::string_view kByShape = "kernels are chosen by shape and device";
constexpr std::string_view kOneImplementation = "there is one implementation";

constexpr Key kDispatch[] = {
  planned_detail("moe_flex_dispatcher_backend", kText, "deepep", "deepep|hybridep|ncclep", "Library of the flexible dispatcher."),
  planned_detail("moe_flex_dispatcher_num_sms", kInt, "null", ">=1", "Multiprocessors that it takes."),
  planned_detail("moe_deepep_num_sms", kInt, "null", ">=1", "Multiprocessors that DeepEP takes."),
  planned_detail("moe_hybridep_num_sms", kInt, "null", ">=1", "Multiprocessors that HybridEP takes."),
  planned_detail("moe_hybridep_num_sms_preprocessing", kInt, "108", ">=1", "Multiprocessors of HybridEP's preparation."),
  planned_detail("moe_hybridep_num_blocks_permute", kInt, "null", ">=1", "Blocks of HybridEP's permutation."),
  planned_detail("moe_hybridep_num_blocks_unpermute", kInt, "null", ">=1", "Blocks of the way back."),
  planned_detail("moe_hybridep_pad_uneven_dispatch_inputs", kBool, "false", "", "HybridEP with uneven token counts."),
  planned_detail("moe_permute_fusion_into_hybridep", kBool, "false", "", "HybridEP permutes too."),
  planned_detail("moe_ncclep_zero_copy", kBool, "false", "", "Dispatch without staging buffers."),
  planned("moe_dispatch_fwd_dtype", kText, "bf16", "bf16|mxfp8", "Number type of dispatched tokens."),
  planned("moe_combine_bwd_dtype", kText, "bf16", "bf16|mxfp8", "Number type of gradients on the way back to the experts."),
  planned("moe_expert_rank_capacity_factor", kReal, "null", ">0", "Bound on the tokens of one expert rank; the rest is dropped.", "capacities of expert ranks"),
  works("moe_router_force_biased", kReal, "null", "", "Random logits that favour some experts: standard deviation of the favour, for benchmarks.", "negative: the same favour in every pass"),
  works("moe_apply_probs_on_input", kBool, "false", "", "Routing probabilities scale the experts' input instead of their activation."),
  no_effect("moe_enable_routing_replay", kBool, "false", "", "Let a caller ask for the choices of an earlier forward pass.", "no caller does here; recomputation meets its own pass's choices"),
  works("moe_mlp_glu_interleave_size", kInt, "null", ">=1", "Gate and linear half of the experts alternate in blocks of this size.", "on the CPU; such weights have no Hugging Face form"),
  works("moe_shared_expert_glu_interleave_size", kInt, "null", ">=1", "The same of the shared expert.", "on the CPU; such weights have no Hugging Face form"),
  works("moe_shared_expert_gate", kBool, "false", "", "A sigmoid gate per token on the shared expert."),
  no_effect("moe_single_grouped_weight", kBool, "false", "", "One tensor for all experts' weights.", "it always is one"),
  no_effect("moe_single_grouped_bias", kBool, "false", "", "One tensor for all experts' biases.", "it always is one"),
  no_effect("moe_use_grouped_tensor", kBool, "false", "", "Grouped tensors of another library.", kOneImplementation),
  no_effect("use_grouped_gemm_for_dense_mlp", kBool, "false", "", "Grouped matrix products in dense MLPs.", kByShape),
  no_effect("use_grouped_gemm_for_shared_expert", kBool, "false", "", "Grouped matrix products in shared experts.", kByShape),
  no_effect("use_transformer_engine_op_fuser", kBool, "false", "", "Fused operations of another library.", kOneImplementation),
  works("moe_upcycling_granularity", kInt, "1", ">=1", "Parts that one dense MLP gives to experts.", "read with moe_use_upcycling"),
  works("moe_routing_trace_path", kText, "null", "", "Folder for a record of which experts tokens took.", "router_trace_rank0.jsonl: a line a step, layer and micro-batch"),
  works("moe_routing_trace_max_training_iters", kInt, "null", ">=1", "Steps that are recorded.", "null: all"),
  works("moe_routing_trace_capture_logits", kBool, "false", "", "Record router logits too.", "bf16, in logits_rank0.bin at the offsets of the lines"),
  works("moe_routing_trace_capture_hidden_states", kBool, "false", "", "Record the router's input too.", "bf16, in hidden_states_rank0.bin"),
  works("moe_routing_trace_dump_weights", kBool, "false", "", "Record router weights too.", "router_state_rank0.safetensors, as they are before the first recorded step"),
};

}  // namespace

std::span<const Key> dispatch_keys() { return kDispatch; }

}  // namespace primus::config::rows
