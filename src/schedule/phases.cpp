#include "schedule/phases.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace primus::schedule {
namespace {

constexpr int kNone = -1;

/// Issues phases one after the other and remembers what the next layer of each pass reads.
class PairWriter {
 public:
  explicit PairWriter(WeightGrad weight_grad) : weight_grad_(weight_grad) {}

  /// One layer of each pass. Backward's combine hides beneath forward's attention, forward's dispatch beneath the
  /// experts' gradients, backward's dispatch beneath the experts, forward's combine beneath attention's gradients.
  void both() {
    const int combined = backward_exchange(PhaseKind::kCombine, last_backward_);
    const int attention = forward(PhaseKind::kAttention, last_forward_);
    const int dispatched = forward_exchange(PhaseKind::kDispatch, attention);
    const int experts_backward = with_weight_grad(PhaseKind::kExperts, PhaseKind::kExpertsWeightGrad, combined);
    const int returned = backward_exchange(PhaseKind::kDispatch, experts_backward);
    const int experts = forward(PhaseKind::kExperts, dispatched);
    const int collected = forward_exchange(PhaseKind::kCombine, experts);
    last_backward_ = with_weight_grad(PhaseKind::kAttention, PhaseKind::kAttentionWeightGrad, returned);
    last_forward_ = collected;
    ++forward_layer_;
    ++backward_layer_;
  }

  void forward_alone() {
    const int attention = forward(PhaseKind::kAttention, last_forward_);
    const int dispatched = forward_exchange(PhaseKind::kDispatch, attention);
    const int experts = forward(PhaseKind::kExperts, dispatched);
    last_forward_ = forward_exchange(PhaseKind::kCombine, experts);
    ++forward_layer_;
  }

  void backward_alone() {
    const int combined = backward_exchange(PhaseKind::kCombine, last_backward_);
    const int experts = with_weight_grad(PhaseKind::kExperts, PhaseKind::kExpertsWeightGrad, combined);
    const int returned = backward_exchange(PhaseKind::kDispatch, experts);
    last_backward_ = with_weight_grad(PhaseKind::kAttention, PhaseKind::kAttentionWeightGrad, returned);
    ++backward_layer_;
  }

  std::vector<Phase> take() { return std::move(phases_); }

 private:
  int add(PhaseKind kind, Pass pass, Stream stream, int after) {
    Phase phase{kind, pass, pass == Pass::kForward ? forward_layer_ : backward_layer_, stream, {}};
    if (after != kNone) phase.after.push_back(after);
    phases_.push_back(std::move(phase));
    return static_cast<int>(phases_.size()) - 1;
  }
  int forward(PhaseKind kind, int after) { return add(kind, Pass::kForward, Stream::kCompute, after); }
  int backward(PhaseKind kind, int after) { return add(kind, Pass::kBackward, Stream::kCompute, after); }
  int forward_exchange(PhaseKind kind, int after) { return add(kind, Pass::kForward, Stream::kExchange, after); }
  int backward_exchange(PhaseKind kind, int after) { return add(kind, Pass::kBackward, Stream::kExchange, after); }

  /// An input gradient and, unless that is an action of its own, the weight gradient behind it. What comes next waits
  /// for both, or with late weight gradients for the first alone.
  int with_weight_grad(PhaseKind kind, PhaseKind weights, int after) {
    const int input_gradient = backward(kind, after);
    if (weight_grad_ == WeightGrad::kApart) return input_gradient;
    const int weight_gradient = backward(weights, input_gradient);
    return weight_grad_ == WeightGrad::kLate ? input_gradient : weight_gradient;
  }

  WeightGrad weight_grad_;
  std::vector<Phase> phases_;
  int forward_layer_ = 0;
  int backward_layer_ = 0;
  int last_forward_ = kNone;
  int last_backward_ = kNone;
};

double time_of(const Phase& phase, const PhaseTimes& forward, const PhaseTimes& backward) {
  const bool is_forward = phase.pass == Pass::kForward;
  switch (phase.kind) {
    case PhaseKind::kAttention:
      return is_forward ? forward.attention : backward.attention_backward;
    case PhaseKind::kExperts:
      return is_forward ? forward.experts : backward.experts_backward;
    case PhaseKind::kDispatch:
    case PhaseKind::kCombine:
      return is_forward ? forward.exchange : backward.exchange;
    case PhaseKind::kExpertsWeightGrad:
      return backward.experts_weight_grad;
    case PhaseKind::kAttentionWeightGrad:
      return backward.attention_weight_grad;
  }
  return 0.0;
}

}  // namespace

std::string_view name(PhaseKind kind) {
  switch (kind) {
    case PhaseKind::kAttention:
      return "attention";
    case PhaseKind::kDispatch:
      return "dispatch";
    case PhaseKind::kExperts:
      return "experts";
    case PhaseKind::kCombine:
      return "combine";
    case PhaseKind::kExpertsWeightGrad:
      return "experts_weight_grad";
    case PhaseKind::kAttentionWeightGrad:
      return "attention_weight_grad";
  }
  return "?";
}

std::vector<Phase> pair_phases(int num_forward_layers, int num_backward_layers, WeightGrad weight_grad) {
  PairWriter writer(weight_grad);
  const int together = std::min(num_forward_layers, num_backward_layers);
  for (int i = 0; i < together; ++i) writer.both();
  for (int i = together; i < num_forward_layers; ++i) writer.forward_alone();
  for (int i = together; i < num_backward_layers; ++i) writer.backward_alone();
  return writer.take();
}

void verify(const std::vector<Phase>& phases, int num_forward_layers, int num_backward_layers, WeightGrad weight_grad) {
  const int per_backward_layer = weight_grad == WeightGrad::kApart ? 4 : 6;
  PRIMUS_CHECK(static_cast<int>(phases.size()) == 4 * num_forward_layers + per_backward_layer * num_backward_layers,
               "{} phases of {} and {} layers", phases.size(), num_forward_layers, num_backward_layers);
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const Phase& phase = phases[i];
    const bool is_exchange = phase.kind == PhaseKind::kDispatch || phase.kind == PhaseKind::kCombine;
    PRIMUS_CHECK(is_exchange == (phase.stream == Stream::kExchange), "{} is on the wrong stream", name(phase.kind));
    for (const int before : phase.after) {
      PRIMUS_CHECK(before >= 0 && static_cast<std::size_t>(before) < i, "{} stands before what it reads",
                   name(phase.kind));
    }
    for (std::size_t j = 0; j < i; ++j) {
      PRIMUS_CHECK(phases[j].kind != phase.kind || phases[j].pass != phase.pass || phases[j].layer != phase.layer,
                   "{} of layer {} stands twice", name(phase.kind), phase.layer);
    }
  }
}

std::vector<Span> timed(const std::vector<Phase>& phases, const PhaseTimes& forward, const PhaseTimes& backward) {
  std::vector<Span> spans;
  spans.reserve(phases.size());
  double free_at[2] = {0.0, 0.0};
  for (const Phase& phase : phases) {
    double& stream = free_at[static_cast<std::size_t>(phase.stream)];
    double start = stream;
    for (const int before : phase.after) start = std::max(start, spans[static_cast<std::size_t>(before)].end);
    stream = start + time_of(phase, forward, backward);
    spans.push_back({start, stream});
  }
  return spans;
}

}  // namespace primus::schedule
