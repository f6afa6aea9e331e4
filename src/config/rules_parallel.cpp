// Rules: the world, and the batch over it.
#include <fmt/format.h>

#include <numeric>

#include "config/rules.hpp"

namespace primus::config {
namespace {

struct ParallelSizes {
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t context = 1;
  std::int64_t expert = 1;
  std::int64_t expert_tensor = 1;

  std::int64_t dense() const { return tensor * context; }
  std::int64_t sparse() const { return expert * expert_tensor; }
};

ParallelSizes sizes_of(const Experiment& experiment) {
  ParallelSizes sizes;
  sizes.tensor = experiment.get_int("tensor_model_parallel_size");
  sizes.pipeline = experiment.get_int("pipeline_model_parallel_size");
  sizes.context = experiment.get_int("context_parallel_size");
  if (!experiment.is_null("num_experts")) {
    sizes.expert = experiment.get_int("expert_model_parallel_size");
    sizes.expert_tensor = experiment.get_optional_int("expert_tensor_parallel_size").value_or(sizes.tensor);
  }
  return sizes;
}

// Parallelism never changes the mathematics, so an inherited size may follow the world.
void inherited_expert_parallel(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (context.purpose() != Purpose::kTrain || experiment.is_explicitly_set("expert_model_parallel_size")) return;
  const std::int64_t expert = experiment.get_int("expert_model_parallel_size");
  const std::int64_t fitting = std::gcd(expert, context.world().size);
  if (fitting == expert) return;
  context.require("expert_model_parallel_size", {fitting},
                  fmt::format("{} process{} ({})", context.world().size, context.world().size == 1 ? "" : "es",
                              context.world().source));
}

void experts_divide(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto experts = experiment.get_optional_int("num_experts");
  const std::int64_t expert = experiment.get_int("expert_model_parallel_size");
  if (!experts || *experts % expert == 0) return;
  context.report("expert_model_parallel_size",
                 fmt::format("does not divide {}", setting_text(experiment, "num_experts")), "a divisor",
                 fmt::format("for instance {}", std::gcd(*experts, expert)));
}

void world_size(RuleContext& context) {
  const ParallelSizes sizes = sizes_of(context.experiment());
  const std::int64_t world = context.world().size;
  const std::int64_t dense = sizes.dense() * sizes.pipeline;
  const std::int64_t sparse = sizes.sparse() * sizes.pipeline;
  if (world % dense == 0 && world % sparse == 0) return;
  const std::string_view key =
      world % dense != 0 ? (sizes.pipeline > 1 ? "pipeline_model_parallel_size" : "tensor_model_parallel_size")
                         : "expert_model_parallel_size";
  context.report(
      key, {.message = fmt::format("TP {} x CP {} x PP {} and EP {} x ETP {} x PP {} do not fit the processes ({})",
                                   sizes.tensor, sizes.context, sizes.pipeline, sizes.expert, sizes.expert_tensor,
                                   sizes.pipeline, context.world().source),
            .expected = fmt::format("a multiple of {}", std::lcm(dense, sparse)),
            .found = fmt::format("{} process{}", world, world == 1 ? "" : "es")});
}

void sequence_parallel(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (!experiment.get_bool("sequence_parallel") || experiment.get_int("tensor_model_parallel_size") > 1) return;
  if (experiment.is_explicitly_set("sequence_parallel")) {
    context.note("sequence_parallel", "true -> false, because there is one tensor rank");
  }
  context.set("sequence_parallel", {false});
}

void batch(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const ParallelSizes sizes = sizes_of(experiment);
  const std::int64_t ranks = sizes.dense() * sizes.pipeline;
  if (context.world().size % ranks != 0) return;
  const std::int64_t data_parallel = context.world().size / ranks;
  const std::int64_t micro = experiment.get_int("micro_batch_size");
  const std::int64_t global = experiment.get_int("global_batch_size");
  const std::int64_t step = micro * data_parallel;
  if (global % step == 0) return;
  const std::int64_t below = global / step * step;
  const std::int64_t above = below + step;
  const std::int64_t nearest = below > 0 && global - below <= above - global ? below : above;
  context.report("global_batch_size",
                 fmt::format("is not a multiple of micro_batch_size {} x {} data-parallel rank{}", micro, data_parallel,
                             data_parallel == 1 ? "" : "s"),
                 fmt::format("a multiple of {}", step), fmt::format("nearest: {}", nearest));
}

constexpr Rule kRules[] = {
    {"inherited_expert_parallel", "An inherited expert-parallel size follows the number of processes.",
     inherited_expert_parallel},
    {"experts_divide", "Expert-parallel ranks hold equally many experts.", experts_divide},
    {"world_size", "The processes divide into the parallel sizes.", world_size},
    {"sequence_parallel", "Sequence parallelism needs more than one tensor rank.", sequence_parallel},
    {"batch", "The global batch is micro-batch x data ranks x accumulation.", batch},
};

}  // namespace

std::int64_t smallest_world(const Experiment& experiment) {
  const ParallelSizes sizes = sizes_of(experiment);
  return sizes.pipeline * std::lcm(sizes.dense(), sizes.sparse());
}

std::optional<BatchPlan> batch_plan(const Experiment& experiment, std::int64_t world_size) {
  const ParallelSizes sizes = sizes_of(experiment);
  const std::int64_t ranks = sizes.dense() * sizes.pipeline;
  if (world_size % ranks != 0) return std::nullopt;
  BatchPlan plan;
  plan.data_parallel = world_size / ranks;
  const std::int64_t step = experiment.get_int("micro_batch_size") * plan.data_parallel;
  if (experiment.get_int("global_batch_size") % step != 0) return std::nullopt;
  plan.accumulation = experiment.get_int("global_batch_size") / step;
  return plan;
}

std::span<const Rule> parallel_rules() {
  return kRules;
}

}  // namespace primus::config
