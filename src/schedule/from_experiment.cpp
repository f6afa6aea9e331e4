#include "schedule/from_experiment.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "config/rules.hpp"
#include "model/flops.hpp"

namespace primus::schedule {
namespace {

Algorithm zero_bubble_algorithm(const config::Experiment& experiment) {
  if (experiment.get_bool("enable_1f1b_v")) return Algorithm::kSearchedV;
  if (!experiment.get_bool("zero_bubble_v_schedule")) {
    return experiment.get_bool("enable_zero_bubble") ? Algorithm::kZb1p : Algorithm::k1F1B;
  }
  const std::string memory = experiment.get_string("zero_bubble_v_schedule_mem_setup");
  return memory == "half" ? Algorithm::kVHalf : memory == "min" ? Algorithm::kVMin : Algorithm::kZbv;
}

/// FLOPs of a token, forward. Projections have weights, so they have a weight gradient.
struct Work {
  double linear = 0.0;
  double core = 0.0;

  double forward() const { return linear + core; }
  double backward() const { return linear + 2.0 * core; }
  double weight_grad() const { return linear; }
};

Work operator+(const Work& a, const Work& b) {
  return {a.linear + b.linear, a.core + b.core};
}

/// A layer's two halves: before the experts, and they.
struct LayerWork {
  Work attention;
  Work mlp;
};

LayerWork layer_work(const model::ModelSpec& spec, int layer) {
  model::ModelSpec one = spec;
  one.layers = {spec.kind(layer)};
  one.mixers = {spec.mixer(layer)};
  one.windows = {spec.window(layer)};
  one.choosing_layers = {spec.picks_keys(layer) ? model::Part::kPresent : model::Part::kAbsent};
  const model::FlopsPerToken flops = model::flops_per_token(one);
  const auto mlp = static_cast<double>(flops.dense_mlp + flops.experts + flops.shared_experts);
  return {{static_cast<double>(flops.attention_linear), static_cast<double>(flops.attention_core)}, {mlp, 0.0}};
}

/// What a stage holds beside its layers.
Work rest_work(const model::ModelSpec& spec, const model::StageContent& content) {
  Work work;
  if (content.output == model::Part::kPresent) work.linear += static_cast<double>(model::flops_per_token(spec).output);
  if (content.num_mtp_layers > 0) {
    work.linear += static_cast<double>(model::mtp_training_flops_per_token(spec)) / 3.0;
  }
  return work;
}

PhaseTimes phases_of(const LayerWork& layer, double exchange_share) {
  return {.attention = layer.attention.forward(),
          .experts = layer.mlp.forward(),
          .exchange = exchange_share * (layer.attention.forward() + layer.mlp.forward()),
          .attention_backward = layer.attention.backward(),
          .experts_backward = layer.mlp.backward(),
          .attention_weight_grad = layer.attention.weight_grad(),
          .experts_weight_grad = layer.mlp.weight_grad()};
}

StageCost stage_cost(const model::ModelSpec& spec, const model::StageContent& content, double exchange_share) {
  Work work = rest_work(spec, content);
  StageCost cost{.num_exchange_layers = 0};
  for (int layer = content.first_layer; layer < content.first_layer + content.num_layers; ++layer) {
    const LayerWork one = layer_work(spec, layer);
    work = work + one.attention + one.mlp;
    if (spec.kind(layer) != model::LayerKind::kMoe) continue;
    ++cost.num_exchange_layers;
    cost.phases = phases_of(one, exchange_share);  // a stage's expert layers are taken to be alike
  }
  const double exchanges = 2.0 * cost.num_exchange_layers * cost.phases.exchange;
  cost.forward = work.forward() + exchanges;
  cost.backward = work.backward() + exchanges;
  cost.weight_grad = work.weight_grad();
  return cost;
}

void scale(StageCost& cost, double factor) {
  for (double* time : {&cost.forward, &cost.backward, &cost.weight_grad, &cost.phases.attention, &cost.phases.experts,
                       &cost.phases.exchange, &cost.phases.attention_backward, &cost.phases.experts_backward,
                       &cost.phases.attention_weight_grad, &cost.phases.experts_weight_grad}) {
    *time *= factor;
  }
}

double number_of(const config::Value& value) {
  const auto* whole = std::get_if<std::int64_t>(&value.data);
  return whole != nullptr ? static_cast<double>(*whole) : std::get<double>(value.data);
}

/// A cost key's numbers, one a rank: a single number stands for all, null for 1.
std::vector<double> written_costs(const config::Experiment& experiment, std::string_view key, int num_ranks) {
  std::vector<double> costs;
  const config::Value& value = experiment.setting(key).value;
  if (const auto* list = std::get_if<config::Value::List>(&value.data)) {
    for (const config::Value& item : *list) costs.push_back(number_of(item));
  } else if (!value.is_null()) {
    costs.push_back(number_of(value));
  }
  if (costs.size() == 1 || costs.empty()) {
    costs.assign(static_cast<std::size_t>(num_ranks), costs.empty() ? 1.0 : costs.front());
  }
  if (static_cast<int>(costs.size()) != num_ranks) {
    const auto& origin = experiment.setting(key).origin;
    throw ConfigError({{.file = origin.file,
                        .line = origin.line,
                        .key = std::string(key),
                        .message = "has neither one cost nor one for each pipeline rank",
                        .expected = fmt::format("1 or {} numbers", num_ranks),
                        .found = std::to_string(costs.size())}});
  }
  return costs;
}

/// What the search of zero-bubble-heuristic is told: pp_cost_f, pp_cost_b, pp_cost_w.
Durations searched_durations(const config::Experiment& experiment, int num_ranks) {
  const std::vector<double> forward = written_costs(experiment, "pp_cost_f", num_ranks);
  const std::vector<double> backward = written_costs(experiment, "pp_cost_b", num_ranks);
  const std::vector<double> weight_grad = written_costs(experiment, "pp_cost_w", num_ranks);
  Costs costs;
  for (std::size_t rank = 0; rank < forward.size(); ++rank) {
    costs.stages.push_back({.forward = forward[rank], .backward = backward[rank], .weight_grad = weight_grad[rank]});
  }
  return durations_of(costs);
}

layout::StagePlacement placement_of(Algorithm algorithm) {
  return info(algorithm).placement == Placement::kV ? layout::StagePlacement::kV : layout::StagePlacement::kRoundRobin;
}

}  // namespace

Algorithm algorithm_of(const config::Experiment& experiment) {
  const bool has_pipeline = experiment.get_int("pipeline_model_parallel_size") > 1;
  const bool has_chunks = config::virtual_pipeline_size(experiment) > 1;
  if (has_pipeline && experiment.get_bool("patch_zero_bubble")) return zero_bubble_algorithm(experiment);
  const bool is_ours = has_pipeline && experiment.get_bool("patch_primus_pipeline");
  const std::string name = is_ours ? experiment.get_string("pp_algorithm") : "1f1b-interleaved";
  if (name != "1f1b-interleaved") {
    const AlgorithmInfo* row = find_algorithm(name);
    PRIMUS_CHECK(row != nullptr, "no schedule is called {}", name);
    return row->algorithm;
  }
  if (experiment.get_bool("overlap_moe_expert_parallel_comm") && (has_chunks || !has_pipeline)) {
    return Algorithm::kOverlapped;
  }
  return has_chunks ? Algorithm::kInterleaved : Algorithm::k1F1B;
}

Request request_of(const config::Experiment& experiment, const layout::StageLayout& stages, int num_micro_batches) {
  Request request{.algorithm = algorithm_of(experiment),
                  .num_ranks = stages.num_ranks(),
                  .num_micro_batches = num_micro_batches,
                  .num_chunks = stages.num_chunks()};
  // A longer row than there are micro-batches is refused all the same.
  const std::int64_t group = experiment.get_optional_int("microbatch_group_size_per_vp_stage").value_or(0);
  request.group = static_cast<int>(std::min<std::int64_t>(group, std::numeric_limits<int>::max()));
  if (experiment.get_bool("delay_wgrad_compute")) request.weight_grad = WeightGrad::kLate;
  if (experiment.get_bool("use_distributed_optimizer") && experiment.get_bool("overlap_param_gather")) {
    request.gather = ParameterGather::kPresent;
  }
  if (request.algorithm == Algorithm::kSearched) {
    request.durations = searched_durations(experiment, request.num_ranks);
    constexpr double kMost = 1e6;
    if (const auto memory = experiment.get_optional_double("pp_max_mem")) {
      request.max_in_flight = static_cast<int>(std::clamp(*memory, 1.0, kMost));
    }
  }
  return request;
}

layout::StageLayout stages_for(const config::Experiment& experiment, Algorithm algorithm, int num_chunks) {
  const auto num_ranks = static_cast<int>(experiment.get_int("pipeline_model_parallel_size"));
  const config::PipelineLayout own = layout::pipeline_layout(experiment);
  const std::int64_t num_stages = std::int64_t{num_ranks} * num_chunks;
  if (own.num_stages() == num_stages) return {own, num_ranks, placement_of(algorithm)};
  if (num_stages > own.num_layers()) {
    throw ConfigError({{.file = "command line",
                        .key = std::string(info(algorithm).name),
                        .message = fmt::format("{} ranks with {} chunks each are more stages than the model has layers",
                                               num_ranks, num_chunks),
                        .expected = fmt::format("at most {} stages", own.num_layers()),
                        .found = std::to_string(num_stages)}});
  }
  return {config::balanced_layout(own.num_layers(), own.num_mtp_layers(), num_stages), num_ranks,
          placement_of(algorithm)};
}

Costs model_costs(const model::ModelSpec& spec, const layout::StageLayout& stages, const CommunicationShares& shares) {
  Costs costs;
  double total = 0.0;
  for (int stage = 0; stage < stages.num_stages(); ++stage) {
    costs.stages.push_back(stage_cost(spec, stages.stage(stage), shares.exchange));
    const StageCost& cost = costs.stages.back();
    total += cost.forward - 2.0 * cost.num_exchange_layers * cost.phases.exchange;
  }
  const double unit = total / stages.num_ranks();
  for (StageCost& cost : costs.stages) {
    scale(cost, unit > 0.0 ? 1.0 / unit : 0.0);
    cost.activation = cost.kept_for_weight_grad = 1.0 / stages.num_chunks();
  }
  costs.message = shares.message;
  return costs;
}

}  // namespace primus::schedule
