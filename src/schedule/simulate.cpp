#include "schedule/simulate.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/error.hpp"

namespace primus::schedule {
namespace {

const StageCost& cost_of(const Costs& costs, Stage stage) {
  return costs.stages.at(static_cast<std::size_t>(stage.value));
}

double alone(const Costs& costs, const Action& action, Stage stage) {
  const StageCost& cost = cost_of(costs, stage);
  switch (action.kind) {
    case ActionKind::kForward:
      return cost.forward;
    case ActionKind::kBackward:
      return action.weight_grad == WeightGrad::kApart ? cost.backward : cost.backward + cost.weight_grad;
    case ActionKind::kWeightGrad:
      return cost.weight_grad;
    case ActionKind::kReduceGradients:
      return costs.reduce;
    case ActionKind::kGatherParameters:
      return costs.gather;
    default:
      return 0.0;
  }
}

/// Length of the pair's phases; what lies outside the exchanging layers is added as it is.
double pair_length(const Costs& costs, const Action& backward, Stage forward_stage, Stage backward_stage) {
  const StageCost& f = cost_of(costs, forward_stage);
  const StageCost& b = cost_of(costs, backward_stage);
  const std::vector<Phase> phases = pair_phases(f.num_exchange_layers, b.num_exchange_layers, backward.weight_grad);
  double end = 0.0;
  for (const Span& span : timed(phases, f.phases, b.phases)) end = std::max(end, span.end);
  const bool includes = backward.weight_grad != WeightGrad::kApart;
  const double rest_forward = f.forward - f.num_exchange_layers * f.phases.forward();
  const double rest_backward = b.backward - b.num_exchange_layers * b.phases.backward() +
                               (includes ? b.weight_grad - b.num_exchange_layers * b.phases.weight_grad() : 0.0);
  return end + rest_forward + rest_backward;
}

class MemoryCurve {
 public:
  MemoryCurve(const Schedule& schedule, const Costs& costs) : schedule_(schedule), costs_(costs) {}

  void fill(std::size_t rank, RankTimeline& timeline) const {
    double amount = 0.0;
    for (std::size_t i = 0; i < timeline.spans.size(); ++i) {
      const Action& action = schedule_.ranks[rank][i];
      if (!is_compute(action.kind)) continue;
      const StageCost& cost = cost_of(costs_, stage_at(schedule_.shape, {{static_cast<int>(rank)}, action.chunk}));
      const bool is_whole = action.weight_grad != WeightGrad::kApart;
      if (action.kind == ActionKind::kForward) {
        amount += cost.activation;
        add(timeline, timeline.spans[i].start, amount);
      } else {
        amount -= action.kind == ActionKind::kWeightGrad ? cost.kept_for_weight_grad
                  : is_whole                             ? cost.activation
                                                         : cost.activation - cost.kept_for_weight_grad;
        add(timeline, timeline.spans[i].end, amount);
      }
    }
    timeline.peak_in_flight = primus::schedule::peak_in_flight(schedule_.ranks[rank]);
  }

 private:
  static void add(RankTimeline& timeline, double time, double amount) {
    timeline.peak = std::max(timeline.peak, amount);
    timeline.held.push_back({time, amount});
  }

  const Schedule& schedule_;
  const Costs& costs_;
};

void add_sums(const Schedule& schedule, const Costs& costs, std::size_t rank, RankTimeline& timeline) {
  const std::vector<Action>& actions = schedule.ranks[rank];
  const auto time = [&](std::size_t i) {
    return alone(costs, actions[i], stage_at(schedule.shape, {{static_cast<int>(rank)}, actions[i].chunk}));
  };
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const double length = timeline.spans[i].end - timeline.spans[i].start;
    timeline.end = std::max(timeline.end, timeline.spans[i].end);
    if (actions[i].pairing == Pairing::kWithNext) {
      const double both = time(i) + time(i + 1);
      const double share = both > 0.0 ? time(i) / both : 0.5;
      timeline.forward += share * length;
      timeline.backward += (1.0 - share) * length;
      ++i;
    } else if (actions[i].kind == ActionKind::kForward) {
      timeline.forward += length;
    } else if (actions[i].kind == ActionKind::kBackward) {
      timeline.backward += length;
    } else if (actions[i].kind == ActionKind::kWeightGrad) {
      timeline.weight_grad += length;
    }
  }
}

}  // namespace

Costs even_costs(const Shape& shape, double forward, double backward, double weight_grad) {
  const double share = 1.0 / shape.num_chunks;
  StageCost cost{.forward = forward * share, .backward = backward * share, .weight_grad = weight_grad * share};
  cost.activation = share;
  cost.kept_for_weight_grad = share;
  return {.stages = std::vector<StageCost>(static_cast<std::size_t>(shape.num_stages()), cost)};
}

double Timeline::mean_bubble() const {
  double sum = 0.0;
  for (const RankTimeline& rank : ranks) sum += bubble(rank);
  return ranks.empty() ? 0.0 : sum / static_cast<double>(ranks.size());
}

Durations durations_of(const Costs& costs) {
  // A pair's length depends on its two stages only, so each is worked out once.
  const auto lengths = std::make_shared<std::map<std::pair<int, int>, double>>();
  return {.alone = [costs](const Action& action, Stage stage) { return alone(costs, action, stage); },
          .pair =
              [costs, lengths](const Action&, Stage forward_stage, const Action& backward, Stage backward_stage) {
                const auto key = std::pair(forward_stage.value, backward_stage.value);
                const auto known = lengths->find(key);
                if (known != lengths->end()) return known->second;
                return lengths->emplace(key, pair_length(costs, backward, forward_stage, backward_stage)).first->second;
              },
          .message = costs.message};
}

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  PRIMUS_CHECK(static_cast<int>(costs.stages.size()) == schedule.shape.num_stages(), "costs of {} of {} stages",
               costs.stages.size(), schedule.shape.num_stages());
  Timeline timeline;
  const MemoryCurve memory(schedule, costs);
  std::vector<std::vector<Span>> spans = timed(schedule.shape, schedule.ranks, durations_of(costs));
  for (std::size_t rank = 0; rank < spans.size(); ++rank) {
    RankTimeline& row = timeline.ranks.emplace_back();
    row.spans = std::move(spans[rank]);
    add_sums(schedule, costs, rank, row);
    memory.fill(rank, row);
    timeline.step = std::max(timeline.step, row.end);
  }
  return timeline;
}

double bubble_formula(const Shape& shape) {
  const double idle = shape.num_ranks - 1;
  return idle / (idle + static_cast<double>(shape.num_micro_batches) * shape.num_chunks);
}

}  // namespace primus::schedule
