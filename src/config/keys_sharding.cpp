// Rows: what data ranks divide, buffers of collectives, activations on the host, recorded steps.
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config::rows {
namespace {

constexpr std::string_view kNoGraphs = "no step is recorded: kernels are launched one by one";
constexpr std::string_view kNoPython = "there is no Python runtime";
constexpr std::string_view kOneProcess = "it matters between processes, and training in several is planned";

constexpr Key kSharding[] = {
  planned_detail("megatron_fsdp_version", kInt, "1", "1..2", "Release of sharded parameters."),
  planned_detail("megatron_fsdp_main_params_dtype", kText, "fp32", "fp32|bf16|fp16|auto", "Sharded parameters: number type of the master weights."),
  planned_detail("megatron_fsdp_main_grads_dtype", kText, "auto", "fp32|bf16|fp16|auto", "Sharded parameters: number type of the main gradients."),
  planned_detail("megatron_fsdp_grad_comm_dtype", kText, "auto", "fp32|fp16|bf16|auto", "Sharded parameters: number type of reduced gradients."),
  planned_detail("megatron_fsdp_enable_fine_grained_param_gather", kBool, "false", "", "Sharded parameters: gather parts of a layer."),
  planned_detail("megatron_fsdp_max_pool_double_buffer", kBool, "false", "", "Sharded parameters: two buffers of the largest size."),
  planned_detail("fsdp_double_buffer", kBool, "false", "", "Sharded parameters: two buffers in turn."),
  planned_detail("fsdp_db_use_persist_buf_on_alloc_fail", kBool, "false", "", "Sharded parameters: fall back to lasting buffers."),
  planned_detail("fsdp_manual_registration", kBool, "false", "", "Sharded parameters: register buffers with the network by hand."),
  planned_detail("enable_full_sharding_in_hsdp", kBool, "false", "", "Sharded parameters: the copies divide the optimizer state too."),
  planned_detail("outer_dp_sharding_strategy", kText, "no_shard", "no_shard|optim", "Sharded parameters: what the copies divide."),
  planned_detail("torch_fsdp2_reshard_after_forward", kBool, "true", "", "Sharded parameters: give gathered ones up after forward."),
  planned_detail("strict_fsdp_dtensor_load", kBool, "true", "", "Sharded parameters: every tensor of a checkpoint must match."),
  planned("tensor_parallel_num_weight_shards", kInt, "null", ">=1", "Weights divided further over the tensor ranks, gathered when used."),
  planned("expert_tensor_parallel_num_weight_shards", kInt, "null", ">=1", "Expert weights divided further, gathered when used."),
  planned_detail("gtp_remat_opt_in_modules", kTextList, "[]", "", "Modules whose divided weights are gathered again in backward."),
  planned_detail("gtp_remat_nccl_ub", kBool, "false", "", "Registered buffers for those gathers."),
  planned_detail("gtp_expert_remat_nccl_ub", kBool, "false", "", "Registered buffers for those of experts."),
  planned_detail("gtp_remat_reduce_scatter_with_fp32_accumulation", kBool, "false", "", "Their gradients are added up in fp32."),
  no_effect("ddp_reduce_scatter_with_fp32_accumulation", kBool, "false", "", "Reduced gradients are added up in fp32.", "main gradients are fp32"),
  no_effect("ddp_param_name_patterns_for_fp32_local_accumulation", kTextList, "[]", "", "Parameters whose gradients add up in fp32.", "main gradients are fp32"),
  no_effect("nccl_ub", kBool, "false", "", "Register communication buffers with the network.", kOneProcess),
  no_effect("disable_symmetric_registration", kBool, "false", "", "No symmetric registration of such buffers.", kOneProcess),
  no_effect("symmetric_ar_type", kText, "null", "two_shot|one_shot|multimem_all_reduce", "All-reduce over symmetric memory.", kOneProcess),
  no_effect("create_all_gather_group", kBool, "false", "", "A communicator of its own for gathers.", kOneProcess),
  no_effect("use_layer_wise_param_layout", kBool, "true", "", "Parameters of a layer side by side in gradient buffers.", kOneProcess),
  no_effect("overlap_p2p_comm_warmup_flush", kBool, "false", "", "Pipeline messages beside compute in warm-up and drain too.", kOneProcess),
  no_effect("distributed_timeout_seconds_after_init", kInt, "null", ">=1", "Longest wait for another rank once training runs.", kOneProcess),
  no_effect("fake_process_group", kBool, "false", "", "Pretend that other ranks answer.", "the projection plans for many ranks without them"),
  no_effect("disable_jit_fuser", kBool, "false", "", "Do not compile small Python functions.", kNoPython),
  planned("hybrid_context_parallel", kBool, "false", "", "Context ranks by the length of each sequence."),
  planned_detail("max_seqlen_per_dp_cp_rank", kInt, "null", ">=1", "Tokens that one context rank takes then."),
  no_effect("high_priority_a2a_comm_stream", kBool, "false", "", "Token exchange on a stream of high priority.", "the engine orders its own streams"),
  no_effect("overlap_dispatch_backward_with_experts_wgrad", kBool, "false", "", "Token exchange of backward beside the experts' weight gradients.", kOneProcess),
  no_effect("ep_overlap_early_attn_memory_release", kBool, "false", "", "Free attention's memory early while tokens travel.", "activations are freed as soon as nothing reads them"),
};

constexpr Key kOffload[] = {
  planned_speed("cpu_offloading_num_layers", kInt, "0", ">=0", "Layers whose activations wait in host memory."),
  planned_detail("cpu_offloading_retain_pinned_cpu_buffers", kBool, "false", "", "Keep the page-locked buffers between steps."),
  planned_speed("fine_grained_activation_offloading", kBool, "false", "", "Parts of layers whose activations wait in host memory."),
  planned_detail("offload_modules", kTextList, "[]", "", "Which parts those are."),
  planned_detail("min_offloaded_tensor_size", kInt, "1048576", ">=0", "Elements from which a tensor is worth moving."),
  planned_detail("activation_offload_fraction", kReal, "1.0", "0..1", "Part of the layers that move their activations."),
  planned_detail("delta_offload_bytes_across_pp_ranks", kInt, "0", ">=0", "Bytes that later pipeline ranks move less."),
  planned_detail("fine_grained_offloading_max_inflight_offloads", kInt, "null", ">=1", "Moves that may be under way together."),
  planned_detail("delay_offload_until_cuda_graph", kBool, "false", "", "Moves wait for the recorded part of the step."),
  planned_speed("moe_paged_stash", kBool, "false", "", "Expert activations in pages of fixed size."),
  planned_detail("moe_paged_stash_page_size", kInt, "64", ">=1", "Tokens of such a page."),
  planned_detail("moe_paged_stash_buffer_size_factor_cuda", kReal, "1.1", ">=0", "Device pages relative to evenly spread tokens."),
  planned_detail("moe_paged_stash_buffer_size_factor_cpu", kReal, "0.0", ">=0", "Host pages relative to evenly spread tokens."),
  no_effect("mlp_chunks_for_training", kInt, "1", ">=1", "Parts in which an MLP works through the tokens.", "memory is planned, and the numbers are the same"),
};

constexpr Key kGraphs[] = {
  no_effect("cuda_graph_impl", kText, "none", "none|local|transformer_engine|full_iteration", "Who records kernels for replay.", kNoGraphs),
  no_effect("cuda_graph_modules", kTextList, "[]", "", "Modules whose kernels are recorded.", kNoGraphs),
  no_effect("optimizer_cuda_graph", kBool, "false", "", "Record the optimizer's kernels too.", kNoGraphs),
};

}  // namespace

std::span<const Key> sharding_keys() { return kSharding; }
std::span<const Key> offload_keys() { return kOffload; }
std::span<const Key> graph_keys() { return kGraphs; }

}  // namespace primus::config::rows
