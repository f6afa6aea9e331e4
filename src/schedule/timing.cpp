#include "schedule/timing.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"

namespace primus::schedule {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

/// Goes round the ranks that may have something to do, each as far as it comes.
class Clock {
 public:
  Clock(const Shape& shape, const Order& ranks, const Durations& durations)
      : shape_(shape), ranks_(ranks), durations_(durations) {
    const auto cells = static_cast<std::size_t>(shape.num_stages()) * static_cast<std::size_t>(shape.num_micro_batches);
    forward_.assign(cells, kNotYet);
    backward_.assign(cells, kNotYet);
    for (const std::vector<Action>& actions : ranks) spans_.emplace_back(actions.size());
    next_.assign(ranks.size(), 0);
    now_.assign(ranks.size(), 0.0);
    is_queued_.assign(ranks.size(), false);
  }

  std::vector<std::vector<Span>> run() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) wake(static_cast<int>(rank));
    for (std::size_t i = 0; i < queue_.size(); ++i) {
      const int rank = queue_[i];
      is_queued_[static_cast<std::size_t>(rank)] = false;
      while (step(rank)) {
      }
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      PRIMUS_CHECK(next_[rank] == ranks_[rank].size(), "deadlock: rank {} waits at {} of micro-batch {}, chunk {}",
                   rank, name(ranks_[rank][next_[rank]].kind), ranks_[rank][next_[rank]].micro_batch.value,
                   ranks_[rank][next_[rank]].chunk.value);
    }
    return std::move(spans_);
  }

 private:
  void wake(int rank) {
    if (is_queued_[static_cast<std::size_t>(rank)]) return;
    is_queued_[static_cast<std::size_t>(rank)] = true;
    queue_.push_back(rank);
  }

  std::size_t cell(Stage stage, MicroBatch micro_batch) const {
    return static_cast<std::size_t>(stage.value) * static_cast<std::size_t>(shape_.num_micro_batches) +
           static_cast<std::size_t>(micro_batch.value);
  }

  /// When what a stage reads of its neighbour is there.
  double arrival(const std::vector<double>& ends, Stage from, Stage to, MicroBatch micro_batch) const {
    const bool is_near = place_of(shape_, from).rank == place_of(shape_, to).rank;
    return ends[cell(from, micro_batch)] + (is_near ? 0.0 : durations_.message);
  }

  double ready(const Action& action, Stage stage) const {
    const std::size_t own = cell(stage, action.micro_batch);
    switch (action.kind) {
      case ActionKind::kForward:
        return stage.value == 0 ? 0.0 : arrival(forward_, {stage.value - 1}, stage, action.micro_batch);
      case ActionKind::kBackward:
        if (stage.value == shape_.num_stages() - 1) return forward_[own];
        return std::max(forward_[own], arrival(backward_, {stage.value + 1}, stage, action.micro_batch));
      case ActionKind::kWeightGrad:
        return backward_[own];
      default:
        return 0.0;
    }
  }

  void finish(const Action& action, Stage stage, double end) {
    if (action.kind == ActionKind::kForward) {
      forward_[cell(stage, action.micro_batch)] = end;
      if (stage.value + 1 < shape_.num_stages()) wake(place_of(shape_, {stage.value + 1}).rank.value);
    } else if (action.kind == ActionKind::kBackward) {
      backward_[cell(stage, action.micro_batch)] = end;
      if (stage.value > 0) wake(place_of(shape_, {stage.value - 1}).rank.value);
    }
  }

  bool step(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (next_[r] >= ranks_[r].size()) return false;
    const Action& action = ranks_[r][next_[r]];
    if (is_message(action.kind)) {
      spans_[r][next_[r]++] = {now_[r], now_[r]};
      return true;
    }
    const Stage stage = stage_at(shape_, {{rank}, action.chunk});
    double start = std::max(now_[r], ready(action, stage));
    if (action.pairing == Pairing::kWithNext) return step_pair(rank, action, stage, start);
    if (start == kNotYet) return false;
    now_[r] = start + durations_.alone(action, stage);
    finish(action, stage, now_[r]);
    spans_[r][next_[r]++] = {start, now_[r]};
    return true;
  }

  bool step_pair(int rank, const Action& forward, Stage stage, double start) {
    const auto r = static_cast<std::size_t>(rank);
    PRIMUS_CHECK(next_[r] + 1 < ranks_[r].size(), "rank {} ends with half a pair", rank);
    const Action& backward = ranks_[r][next_[r] + 1];
    PRIMUS_CHECK(forward.kind == ActionKind::kForward && backward.kind == ActionKind::kBackward,
                 "rank {} pairs {} with {}", rank, name(forward.kind), name(backward.kind));
    const Stage other = stage_at(shape_, {{rank}, backward.chunk});
    start = std::max(start, ready(backward, other));
    if (start == kNotYet) return false;
    now_[r] = start + durations_.pair(forward, stage, backward, other);
    finish(forward, stage, now_[r]);
    finish(backward, other, now_[r]);
    spans_[r][next_[r]++] = {start, now_[r]};
    spans_[r][next_[r]++] = {start, now_[r]};
    return true;
  }

  const Shape& shape_;
  const Order& ranks_;
  const Durations& durations_;
  std::vector<double> forward_;  // ends, by stage and micro-batch
  std::vector<double> backward_;
  std::vector<std::vector<Span>> spans_;
  std::vector<std::size_t> next_;
  std::vector<double> now_;
  std::vector<bool> is_queued_;
  std::vector<int> queue_;
};

}  // namespace

std::vector<std::vector<Span>> timed(const Shape& shape, const Order& ranks, const Durations& durations) {
  return Clock(shape, ranks, durations).run();
}

Durations unit_durations() {
  const auto alone = [](const Action& action, Stage) {
    if (!is_compute(action.kind)) return 0.0;
    return action.kind == ActionKind::kBackward && action.weight_grad != WeightGrad::kApart ? 2.0 : 1.0;
  };
  const auto pair = [alone](const Action& forward, Stage forward_stage, const Action& backward, Stage backward_stage) {
    return alone(forward, forward_stage) + alone(backward, backward_stage);
  };
  return {.alone = alone, .pair = pair};
}

}  // namespace primus::schedule
