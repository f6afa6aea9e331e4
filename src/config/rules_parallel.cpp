// Rules: the world, what the parallel sizes divide, and the batch over them.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "config/interleaving.hpp"
#include "config/rules.hpp"

namespace primus::config {
namespace {

// "1 rank", "2 ranks".
std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : noun.ends_with('s') ? "es" : "s");
}

bool fit(const ParallelSizes& sizes, std::int64_t world) {
  return world % (sizes.dense() * sizes.pipeline) == 0 && world % (sizes.sparse() * sizes.pipeline) == 0;
}

// The largest divisor of a parallel size with which all of them fit the processes; none if there is none.
std::optional<std::int64_t> fitting_size(const RuleContext& context, std::string_view key) {
  ParallelSizes sizes = sizes_of(context.experiment());
  const std::int64_t size = context.integer(key);
  for (std::int64_t smaller = size; smaller >= 1; --smaller) {
    if (size % smaller != 0) continue;
    if (key == "tensor_model_parallel_size") {
      sizes.tensor = smaller;
      if (context.is_null("expert_tensor_parallel_size") && !context.is_null("num_experts"))
        sizes.expert_tensor = smaller;
    } else {
      (key == "pipeline_model_parallel_size" ? sizes.pipeline : sizes.expert) = smaller;
    }
    if (fit(sizes, context.world().size)) return smaller;
  }
  return std::nullopt;
}

// Parallelism never changes the mathematics, so an inherited size may follow the world, in a plan as in a train. The
// smallest legal world, which stands in for one that nobody named, fits every size.
void inherited_expert_parallel(RuleContext& context) {
  if (context.is_wanted("expert_model_parallel_size")) return;
  const std::int64_t expert = context.integer("expert_model_parallel_size");
  const std::int64_t fitting = fitting_size(context, "expert_model_parallel_size").value_or(expert);
  if (fitting == expert) return;
  context.require("expert_model_parallel_size", {fitting},
                  fmt::format("{} ({})", counted(context.world().size, "process"), context.world().source));
}

void experts_divide(RuleContext& context) {
  const auto experts = context.experiment().get_optional_int("num_experts");
  const std::int64_t expert = context.integer("expert_model_parallel_size");
  if (!experts || *experts % expert == 0) return;
  context.report("expert_model_parallel_size",
                 fmt::format("does not divide {}", setting_text(context.experiment(), "num_experts")), "a divisor",
                 fmt::format("nearest: {}", nearest_divisor(*experts, expert)));
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
  const auto fitting = fitting_size(context, key);
  context.report(
      key, {.message = fmt::format("TP {} x CP {} x PP {} and EP {} x ETP {} x PP {} do not fit the processes ({})",
                                   sizes.tensor, sizes.context, sizes.pipeline, sizes.expert, sizes.expert_tensor,
                                   sizes.pipeline, context.world().source),
            .expected = fmt::format("a multiple of {}", std::lcm(dense, sparse)),
            .found = counted(world, "process"),
            .nearest = fitting ? fmt::format("write {}: {} for {}", key, *fitting, counted(world, "process")) : ""});
}

void rank_order(RuleContext& context) {
  const ParallelSizes sizes = sizes_of(context.experiment());
  if (!context.is_on("use_tp_pp_dp_mapping") || sizes.dense() == sizes.sparse()) return;
  context.report("use_tp_pp_dp_mapping",
                 fmt::format("this order needs equally many data ranks of dense layers and of experts, but TP {} x CP "
                             "{} is not EP {} x ETP {}",
                             sizes.tensor, sizes.context, sizes.expert, sizes.expert_tensor),
                 "false, or equal products");
}

void sequence_parallel(RuleContext& context) {
  const bool is_on = context.is_on("sequence_parallel");
  const std::int64_t tensor = context.integer("tensor_model_parallel_size");
  if (is_on && tensor == 1) {
    if (context.is_wanted("sequence_parallel")) {
      context.note("sequence_parallel", "true -> false, because there is one tensor rank",
                   "tensor_model_parallel_size");
    }
    context.set("sequence_parallel", {false});
  } else if (!is_on && tensor > 1 && !context.is_null("num_experts")) {
    context.require("sequence_parallel", {true},
                    fmt::format("experts on {}: their tokens must not be doubled", counted(tensor, "tensor rank")));
  }
}

struct Divided {
  std::string_view key;
  std::string_view divisor;  // the parallel size
  std::string_view reason;
};

// With latent attention there are no query groups, and the widths of heads are not divided.
constexpr Divided kDivided[] = {
    {"num_attention_heads", "tensor_model_parallel_size", "each tensor rank has whole heads"},
    {"num_query_groups", "tensor_model_parallel_size", "each tensor rank has whole query groups"},
    {"ffn_hidden_size", "tensor_model_parallel_size", "the tensor ranks share the MLP evenly"},
    {"hidden_size", "tensor_model_parallel_size", "the tensor ranks share the residual stream evenly"},
    {"moe_ffn_hidden_size", "expert_tensor_parallel_size", "the expert tensor ranks share each expert evenly"},
    {"moe_shared_expert_intermediate_size", "tensor_model_parallel_size",
     "the tensor ranks share the shared experts evenly"},
};

// The size that a tensor rank shares, and the key of the ranks that share it; none where the model has no such size.
struct Shared {
  std::int64_t size = 0;
  std::string_view divisor;
};

std::optional<Shared> shared_size(const Experiment& experiment, const Divided& row) {
  const bool has_groups =
      experiment.get_bool("group_query_attention") && !experiment.get_bool("multi_latent_attention");
  const auto size = experiment.get_optional_int(row.key);
  if (!size || (row.key == "num_query_groups" && !has_groups)) return std::nullopt;
  if (row.key.starts_with("moe_") && experiment.is_null("num_experts")) return std::nullopt;
  return Shared{*size, experiment.is_null(row.divisor) ? std::string_view("tensor_model_parallel_size") : row.divisor};
}

// What divides all that these ranks share: a size that only mends one of several faults is no remedy.
std::int64_t common_size(const Experiment& experiment, std::string_view divisor) {
  std::int64_t common = 0;
  for (const Divided& row : kDivided) {
    if (const auto shared = shared_size(experiment, row); shared && shared->divisor == divisor)
      common = std::gcd(common, shared->size);
  }
  return common;
}

// A parallel size that divides nothing is told already: what follows from it is not worth telling beside it.
bool has_wrong_size(const RuleContext& context) {
  return std::any_of(context.problems().begin(), context.problems().end(), [](const Problem& problem) {
    return problem.key.ends_with("_parallel_size") && problem.message.find("does not divide") != std::string::npos;
  });
}

void tensor_divides(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  for (const Divided& row : kDivided) {
    const auto shared = shared_size(experiment, row);
    if (!shared) continue;
    const std::int64_t ranks = context.integer(shared->divisor);
    if (shared->size % ranks == 0) continue;
    context.report(shared->divisor,
                   fmt::format("does not divide {}: {}", setting_text(experiment, row.key), row.reason), "a divisor",
                   fmt::format("nearest: {}", nearest_divisor(common_size(experiment, shared->divisor), ranks)));
  }
}

// Each context rank holds two chunks of a sequence, one from its front and one from its back.
void sequence_divides(RuleContext& context) {
  const std::int64_t length = context.integer("seq_length");
  const std::int64_t ranks = context.integer("context_parallel_size");
  if (ranks > 1 && length % (2 * ranks) != 0) {
    context.report(
        "seq_length",
        fmt::format("is not a multiple of 2 x {}", setting_text(context.experiment(), "context_parallel_size")),
        fmt::format("a multiple of {}", 2 * ranks),
        fmt::format("nearest: {}", std::max<std::int64_t>(length / (2 * ranks), 1) * 2 * ranks));
    return;
  }
  const std::int64_t tensor = context.integer("tensor_model_parallel_size");
  if (has_wrong_size(context)) return;
  if (!context.is_on("sequence_parallel") || tensor == 1 || length / ranks % tensor == 0) return;
  context.report("seq_length",
                 fmt::format("sequence parallelism cuts each context rank's {} tokens into {} equal parts",
                             length / ranks, tensor),
                 fmt::format("a multiple of {}", tensor * ranks),
                 fmt::format("nearest: {}", std::max<std::int64_t>(length / (tensor * ranks), 1) * tensor * ranks));
}

void context_communication(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::int64_t ranks = context.integer("context_parallel_size");
  if (ranks == 1) return;
  const std::vector<std::string> kinds = experiment.get_strings("cp_comm_type");
  const std::int64_t layers = context.integer("num_layers");
  if (kinds.size() > 1 && static_cast<std::int64_t>(kinds.size()) != layers) {
    context.report("cp_comm_type", fmt::format("names {} layers, the model has {}", kinds.size(), layers),
                   fmt::format("one kind, or {}", layers));
  }
  const bool uses_heads = std::find(kinds.begin(), kinds.end(), "a2a") != kinds.end();
  const std::int64_t heads = context.integer("num_attention_heads") / context.integer("tensor_model_parallel_size");
  if (uses_heads && heads % ranks != 0) {
    context.report("cp_comm_type",
                   fmt::format("a2a gives each context rank whole heads, but {} heads of a tensor rank do not divide "
                               "over {}",
                               heads, setting_text(experiment, "context_parallel_size")),
                   "p2p, all_gather, or a divisor of the heads");
  }
}

void context_hierarchy(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::int64_t ranks = context.integer("context_parallel_size");
  const std::vector<std::string> kinds = experiment.get_strings("cp_comm_type");
  const bool is_needed = ranks > 1 && std::find(kinds.begin(), kinds.end(), "a2a+p2p") != kinds.end();
  if (context.is_null("hierarchical_context_parallel_sizes")) {
    if (is_needed) {
      context.report("hierarchical_context_parallel_sizes", "cp_comm_type a2a+p2p needs the sizes of its two levels",
                     "list of integers whose product is context_parallel_size");
    }
    return;
  }
  double product = 1.0;
  for (const Value& size :
       std::get<Value::List>(experiment.setting("hierarchical_context_parallel_sizes").value.data)) {
    product *= static_cast<double>(std::get<std::int64_t>(size.data));
  }
  if (product == static_cast<double>(ranks)) return;
  context.report("hierarchical_context_parallel_sizes",
                 fmt::format("the product is not {}", setting_text(experiment, "context_parallel_size")),
                 fmt::format("sizes whose product is {}", ranks));
}

// Sequences of one micro-batch on all data ranks; none if the world does not fit.
std::optional<std::int64_t> sequences_of_a_step(const RuleContext& context) {
  const ParallelSizes sizes = sizes_of(context.experiment());
  const std::int64_t ranks = sizes.dense() * sizes.pipeline;
  if (context.world().size % ranks != 0) return std::nullopt;
  return context.integer("micro_batch_size") * (context.world().size / ranks);
}

// A multiple of `step` near `global` whose micro-batches the pipeline can take.
std::int64_t nearest_batch(const RuleContext& context, std::int64_t global, std::int64_t step) {
  const Experiment& experiment = context.experiment();
  const bool is_interleaved = virtual_pipeline_size(experiment) > 1;
  Interleaving shape{.ranks = context.integer("pipeline_model_parallel_size")};
  shape.group = experiment.get_optional_int("microbatch_group_size_per_vp_stage").value_or(shape.ranks);
  const auto is_legal = [&](std::int64_t micro_batches) {
    shape.micro_batches = micro_batches;
    return micro_batches > 0 && (!is_interleaved || shape.is_legal());
  };
  const std::int64_t below = global / step;
  const std::int64_t rest = global % step;
  const std::int64_t first = below > 0 && rest <= step - rest ? below : below + 1;
  for (std::int64_t distance = 0; distance <= shape.ranks + shape.group; ++distance) {
    for (const std::int64_t count : {first - distance, first + distance}) {
      if (is_legal(count)) return count * step;
    }
  }
  return first * step;
}

void batch(RuleContext& context) {
  const auto step = sequences_of_a_step(context);
  const std::int64_t global = context.integer("global_batch_size");
  // A world that was made of wrong sizes says nothing about the batch.
  const bool is_derived = context.world().size == smallest_world(context.experiment());
  if (!step || global % *step == 0 || (is_derived && has_wrong_size(context))) return;
  if (context.is_on("decrease_batch_size_if_needed") && global >= *step) return;
  const std::int64_t micro = context.integer("micro_batch_size");
  const std::int64_t nearest = nearest_batch(context, global, *step);
  context.report(
      "global_batch_size",
      fmt::format("is not a multiple of micro_batch_size {} x {}", micro, counted(*step / micro, "data-parallel rank")),
      fmt::format("a multiple of {}", *step), fmt::format("nearest: {}", nearest));
}

void batch_rampup(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (context.is_null("rampup_batch_size")) return;
  const auto& list = std::get<Value::List>(experiment.setting("rampup_batch_size").value.data);
  constexpr std::string_view kShape = "three integers: first batch, step, samples until the whole batch";
  if (list.size() != 3) return context.report("rampup_batch_size", "malformed", std::string(kShape));
  const std::int64_t first = std::get<std::int64_t>(list[0].data);
  const std::int64_t step = std::get<std::int64_t>(list[1].data);
  const std::int64_t samples = std::get<std::int64_t>(list[2].data);
  const std::int64_t global = context.integer("global_batch_size");
  if (first < 1 || step < 1 || samples < 0) {
    context.report("rampup_batch_size", "malformed", std::string(kShape));
  } else if (first > global || (global - first) % step != 0) {
    context.report("rampup_batch_size",
                   fmt::format("does not end at {}", setting_text(experiment, "global_batch_size")),
                   fmt::format("a first batch of at most {} and a step that divides what is missing", global));
  } else if (const auto all = sequences_of_a_step(context); all && (first % *all != 0 || step % *all != 0)) {
    context.report("rampup_batch_size", "its batches do not divide over micro-batches and data ranks",
                   fmt::format("first batch and step multiples of {}", *all));
  }
}

constexpr Rule kRules[] = {
    {"inherited_expert_parallel", "An inherited expert-parallel size follows the number of processes.",
     inherited_expert_parallel},
    {"experts_divide", "Expert-parallel ranks hold equally many experts.", experts_divide},
    {"world_size", "The processes divide into the parallel sizes.", world_size},
    {"rank_order", "The order tensor, pipeline, data needs equal data groups of dense layers and experts.", rank_order},
    {"sequence_parallel", "Sequence parallelism needs several tensor ranks; experts on several tensor ranks need it.",
     sequence_parallel},
    {"tensor_divides", "Tensor ranks divide heads, query groups and widths.", tensor_divides},
    {"sequence_divides", "A sequence divides over context ranks, in two chunks each, and over tensor ranks.",
     sequence_divides},
    {"context_communication", "cp_comm_type names one kind or one a layer; a2a divides the heads.",
     context_communication},
    {"context_hierarchy", "The sizes of a two-level context group multiply to context_parallel_size.",
     context_hierarchy},
    {"batch", "The global batch is micro-batch x data ranks x accumulation.", batch},
    {"batch_rampup", "A growing batch ends at the global batch and always divides.", batch_rampup},
};

}  // namespace

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
  const std::int64_t global = experiment.get_int("global_batch_size");
  const bool is_decreased = experiment.get_bool("decrease_batch_size_if_needed") && global >= step;
  if (global % step != 0 && !is_decreased) return std::nullopt;
  plan.accumulation = global / step;
  return plan;
}

std::span<const Rule> parallel_rules() {
  return kRules;
}

}  // namespace primus::config
