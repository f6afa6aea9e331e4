// Rules: what overlaps with what, and how states are divided over data ranks.
#include <fmt/format.h>

#include <algorithm>

#include "config/rules.hpp"

namespace primus::config {
namespace {

void parameter_gather(RuleContext& context) {
  if (!context.is_on("overlap_param_gather")) return;
  context.demand("overlap_param_gather", {{"use_distributed_optimizer", {true}}, {"overlap_grad_reduce", {true}}});
}

void optimizer_instances(RuleContext& context) {
  const std::int64_t instances = context.integer("num_distributed_optimizer_instances");
  if (instances == 1) return;
  if (!context.demand("num_distributed_optimizer_instances", {{"use_distributed_optimizer", {true}}})) return;
  const auto plan = batch_plan(context.experiment(), context.world().size);
  if (!plan || plan->data_parallel % instances == 0) return;
  context.report("num_distributed_optimizer_instances",
                 fmt::format("does not divide the {} data-parallel ranks", plan->data_parallel), "a divisor",
                 fmt::format("nearest: {}", nearest_divisor(plan->data_parallel, instances)));
}

void replicated_shards(RuleContext& context) {
  if (context.integer("data_parallel_replicate_degree") == 1) return;
  context.demand("data_parallel_replicate_degree",
                 {{"use_torch_fsdp2", {true}}, {"ckpt_format", {std::string("torch_dcp")}}});
}

void fully_sharded(RuleContext& context) {
  const bool is_torch = context.is_on("use_torch_fsdp2");
  const bool is_megatron = context.is_on("use_megatron_fsdp") || context.is_on("use_custom_fsdp");
  if (is_torch && context.is_on("use_megatron_fsdp")) {
    context.exclude({"use_torch_fsdp2", {false}}, {"use_megatron_fsdp", {false}});
  }
  if (context.is_on("use_fsdp2_fp32_param_optimizer") && context.is_on("use_fsdp2_bf16_master_weight_optimizer")) {
    context.exclude({"use_fsdp2_fp32_param_optimizer", {false}}, {"use_fsdp2_bf16_master_weight_optimizer", {false}});
  }
  if (is_torch) {
    context.demand("use_torch_fsdp2", {{"use_distributed_optimizer", {false}},
                                       {"overlap_param_gather", {false}},
                                       {"gradient_accumulation_fusion", {false}},
                                       {"fp16", {false}}});
  }
  const std::string_view key = is_torch                             ? "use_torch_fsdp2"
                               : context.is_on("use_megatron_fsdp") ? "use_megatron_fsdp"
                                                                    : "use_custom_fsdp";
  if ((!is_torch && !is_megatron) || context.integer("pipeline_model_parallel_size") == 1) return;
  context.report(key,
                 fmt::format("fully sharded parameters and pipeline stages exclude each other: {}",
                             setting_text(context.experiment(), "pipeline_model_parallel_size")),
                 "false, or one pipeline rank");
}

void tensor_overlap(RuleContext& context) {
  if (!context.is_on("tp_comm_overlap")) return;
  if (context.integer("tensor_model_parallel_size") == 1) {
    context.note("tp_comm_overlap", "does nothing with one tensor rank", "tensor_model_parallel_size");
    return;
  }
  context.demand("tp_comm_overlap", {{"sequence_parallel", {true}}});
}

void average_in_collective(RuleContext& context) {
  if (!context.is_on("ddp_average_in_collective") || !context.is_on("calculate_per_token_loss")) return;
  context.exclude({"calculate_per_token_loss", {false}}, {"ddp_average_in_collective", {false}});
}

// Forward of one micro-batch runs beside backward of another: both must be whole, and their experts far apart.
void expert_overlap(RuleContext& context) {
  constexpr std::string_view kKey = "overlap_moe_expert_parallel_comm";
  const Experiment& experiment = context.experiment();
  if (!context.is_on(kKey)) return;
  if (!context.demand(
          kKey, {{"moe_shared_expert_overlap", {false}}, {"recompute_method", {}}, {"recompute_num_layers", {}}})) {
    return;
  }
  const auto refuse = [&](std::string message, std::string expected) {
    context.report(kKey, std::move(message), std::move(expected));
  };
  if (context.integer("expert_model_parallel_size") == 1)
    refuse("has nothing to overlap with one expert rank", "false");
  if (context.integer("pipeline_model_parallel_size") > 1 && virtual_pipeline_size(experiment) == 1 &&
      !context.is_on("patch_primus_pipeline")) {
    refuse("on several pipeline ranks needs several chunks a rank",
           "false, or num_virtual_stages_per_pipeline_rank of at least 2");
  }
  if (experiment.get_string("moe_token_dispatcher_type") == "allgather") {
    refuse(fmt::format("needs tokens that travel: {}", setting_text(experiment, "moe_token_dispatcher_type")),
           "false, or moe_token_dispatcher_type alltoall or flex");
  }
  if (!context.is_on("bf16") && !context.is_on("fp16")) refuse("works in bf16 or fp16", "false");
  if (experiment.get_optional_string("recompute_granularity").value_or("") == "full") {
    refuse(fmt::format("cannot run layers again: {}", setting_text(experiment, "recompute_granularity")), "false");
  }
  const std::vector<std::string> modules = experiment.get_strings("recompute_modules");
  if (std::find(modules.begin(), modules.end(), "moe") != modules.end()) {
    refuse(fmt::format("cannot run experts again: {}", setting_text(experiment, "recompute_modules")), "false");
  }
  if (experiment.get_optional_int("mtp_num_layers").value_or(0) > 1) {
    refuse(fmt::format("knows one prediction depth: {}", setting_text(experiment, "mtp_num_layers")), "false");
  }
}

// One hardware queue would put the kernels that should overlap into a row. Common environments set it to 1.
void expert_overlap_queues(RuleContext& context) {
  if (!context.is_on("overlap_moe_expert_parallel_comm")) return;
  if (context.variable("CUDA_DEVICE_MAX_CONNECTIONS").value_or("8") != "1") return;
  context.report("overlap_moe_expert_parallel_comm", {.message = "needs more than one hardware queue",
                                                      .expected = "CUDA_DEVICE_MAX_CONNECTIONS unset, or larger than 1",
                                                      .found = "CUDA_DEVICE_MAX_CONNECTIONS=1 in the environment",
                                                      .nearest = "export CUDA_DEVICE_MAX_CONNECTIONS=32"});
}

void delayed_weight_gradients(RuleContext& context) {
  if (!context.is_on("delay_wgrad_compute")) return;
  context.demand("delay_wgrad_compute", {{"overlap_moe_expert_parallel_comm", {true}}});
}

constexpr Rule kRules[] = {
    {"parameter_gather", "Overlapped parameter gathers need the distributed optimizer and overlapped reductions.",
     parameter_gather},
    {"optimizer_instances", "Copies of the sharded optimizer divide the data ranks.", optimizer_instances},
    {"replicated_shards", "Copies of sharded parameters need use_torch_fsdp2 and the format torch_dcp.",
     replicated_shards},
    {"fully_sharded", "Fully sharded parameters exclude pipeline stages and the distributed optimizer.", fully_sharded},
    {"tensor_overlap", "Overlapped tensor communication needs sequence parallelism.", tensor_overlap},
    {"average_in_collective", "A mean over ranks and a mean over tokens exclude each other.", average_in_collective},
    {"delayed_weight_gradients", "Delayed weight gradients belong to overlapped expert communication.",
     delayed_weight_gradients},
    {"expert_overlap",
     "Overlapped expert communication needs several chunks, no recomputation of layers, bf16 or fp16.", expert_overlap},
    {"expert_overlap_queues", "Overlapped expert communication needs more than one hardware queue.",
     expert_overlap_queues},
};

}  // namespace

std::span<const Rule> communication_rules() {
  return kRules;
}

}  // namespace primus::config
