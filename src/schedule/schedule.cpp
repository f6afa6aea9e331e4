#include "schedule/schedule.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace primus::schedule {

std::string_view name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kWeightGrad:
      return "weight_grad";
    case ActionKind::kReceiveForward:
      return "receive_forward";
    case ActionKind::kSendForward:
      return "send_forward";
    case ActionKind::kReceiveBackward:
      return "receive_backward";
    case ActionKind::kSendBackward:
      return "send_backward";
    case ActionKind::kGatherParameters:
      return "gather_parameters";
    case ActionKind::kReduceGradients:
      return "reduce_gradients";
    case ActionKind::kOptimizerStep:
      return "optimizer_step";
  }
  return "?";
}

bool is_compute(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackward || kind == ActionKind::kWeightGrad;
}

bool is_message(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kReceiveForward || kind == ActionKind::kSendBackward ||
         kind == ActionKind::kReceiveBackward;
}

bool ends_activation(const Action& action) {
  return action.kind == ActionKind::kWeightGrad ||
         (action.kind == ActionKind::kBackward && action.weight_grad != WeightGrad::kApart);
}

Stage stage_at(const Shape& shape, Place place) {
  if (shape.placement == Placement::kLoop) return {place.chunk.value * shape.num_ranks + place.rank.value};
  return {place.chunk.value == 0 ? place.rank.value : 2 * shape.num_ranks - 1 - place.rank.value};
}

Place place_of(const Shape& shape, Stage stage) {
  if (shape.placement == Placement::kLoop) return {{stage.value % shape.num_ranks}, {stage.value / shape.num_ranks}};
  if (stage.value < shape.num_ranks) return {{stage.value}, {0}};
  return {{2 * shape.num_ranks - 1 - stage.value}, {1}};
}

int peak_in_flight(const std::vector<Action>& actions) {
  int held = 0;
  int peak = 0;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kForward) peak = std::max(peak, ++held);
    if (ends_activation(action)) --held;
  }
  return peak;
}

}  // namespace primus::schedule
