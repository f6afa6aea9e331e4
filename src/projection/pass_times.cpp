#include "projection/pass_times.hpp"

#include <map>
#include <optional>

#include "base/error.hpp"

namespace primus::projection {
namespace {

using schedule::ActionKind;

/// Ends of what has run, by stage and micro-batch.
class Clock {
 public:
  explicit Clock(int num_stages) : num_stages_(num_stages) {}

  /// When what a pass reads is there; nothing: it is not yet known.
  std::optional<double> ready(ActionKind kind, int stage, int micro_batch) const {
    if (kind == ActionKind::kForward) return stage == 0 ? 0.0 : end_of(forward_, stage - 1, micro_batch);
    if (kind == ActionKind::kWeightGrad) return end_of(backward_, stage, micro_batch);
    const auto own = end_of(forward_, stage, micro_batch);
    if (stage == num_stages_ - 1 || !own) return own;
    const auto next = end_of(backward_, stage + 1, micro_batch);
    return next ? std::optional(std::max(*own, *next)) : std::nullopt;
  }

  void finish(ActionKind kind, int stage, int micro_batch, double end) {
    if (kind == ActionKind::kForward) forward_[{stage, micro_batch}] = end;
    if (kind == ActionKind::kBackward) backward_[{stage, micro_batch}] = end;
  }

 private:
  using Ends = std::map<std::pair<int, int>, double>;
  static std::optional<double> end_of(const Ends& ends, int stage, int micro_batch) {
    const auto found = ends.find({stage, micro_batch});
    return found == ends.end() ? std::nullopt : std::optional(found->second);
  }

  int num_stages_;
  Ends forward_;
  Ends backward_;
};

double duration(ActionKind kind, bool is_split) {
  return kind == ActionKind::kBackward && !is_split ? 2.0 : 1.0;
}

}  // namespace

std::vector<std::vector<TimedPass>> pass_times(const MemoryInputs& inputs) {
  const int num_ranks = inputs.stages.num_ranks();
  std::vector<std::vector<TimedPass>> all;
  bool is_split = false;
  for (int rank = 0; rank < num_ranks; ++rank) {
    all.emplace_back();
    for (const schedule::Action& action : passes(inputs.pipeline, rank)) {
      all.back().push_back({action});
      is_split = is_split || action.kind == ActionKind::kWeightGrad;
    }
  }
  Clock clock(inputs.stages.num_stages());
  std::vector<std::size_t> next(all.size(), 0);
  std::vector<double> free_at(all.size(), 0.0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      for (; next[rank] < all[rank].size(); ++next[rank], moved = true) {
        TimedPass& pass = all[rank][next[rank]];
        const int stage = inputs.stages.stage_at({static_cast<int>(rank), pass.action.chunk.value});
        const auto ready = clock.ready(pass.action.kind, stage, pass.action.micro_batch.value);
        if (!ready) break;
        pass.start = std::max(*ready, free_at[rank]);
        pass.end = free_at[rank] = pass.start + duration(pass.action.kind, is_split);
        clock.finish(pass.action.kind, stage, pass.action.micro_batch.value, pass.end);
      }
    }
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    PRIMUS_CHECK(next[rank] == all[rank].size(), "rank {} waits for ever", rank);
  }
  return all;
}

}  // namespace primus::projection
