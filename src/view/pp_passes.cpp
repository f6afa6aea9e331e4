#include "view/pp_passes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "view/pipeline_labels.hpp"

namespace primus::view {
namespace {

using Pass = std::pair<int, int>;  // micro-batch, chunk

/// Forwards may run beside the other passes, passes of one of these never beside each other.
enum class Lane { kForwards, kOthers };

Lane lane_of(const Box& box) {
  return box.kind == BoxKind::kForward ? Lane::kForwards : Lane::kOthers;
}

/// Times are written with few digits: a box may seem to begin just before the last one's end.
bool overlap(const Box& first, const Box& second) {
  constexpr double kRounding = 1e-6;  // of the time
  return second.start < first.end - kRounding * std::max(1.0, first.end) && second.end > second.start;
}

std::string text_of(const Box& box) {
  return fmt::format("{} from {} to {}", name(box.kind), box.start, box.end);
}

std::string text_of(Pass pass) {
  return fmt::format("micro-batch {}, chunk {}", pass.first, pass.second);
}

std::string overlap_in(const ChartRank& rank, Lane lane) {
  const Box* last = nullptr;
  for (const Box& box : rank.boxes) {
    if (lane_of(box) != lane) continue;
    if (last != nullptr && overlap(*last, box)) {
      return fmt::format("two passes at once: {}, {}", text_of(*last), text_of(box));
    }
    if (last == nullptr || box.end > last->end) last = &box;
  }
  return "";
}

enum class PassKind { kForward, kBackward, kWeightGrad };

PassKind pass_kind(const Box& box) {
  switch (box.kind) {
    case BoxKind::kForward:
      return PassKind::kForward;
    case BoxKind::kWeightGrad:
      return PassKind::kWeightGrad;
    default:
      return PassKind::kBackward;
  }
}

std::string repeated_pass(const ChartRank& rank) {
  std::set<std::pair<PassKind, Pass>> seen;
  for (const Box& box : rank.boxes) {
    const Pass pass{box.micro_batch, box.chunk};
    if (seen.emplace(pass_kind(box), pass).second) continue;
    return fmt::format("{} of {} stands twice", name(box.kind), text_of(pass));
  }
  return "";
}

std::set<Pass> passes_of(const ChartRank& rank, PassKind kind) {
  std::set<Pass> passes;
  for (const Box& box : rank.boxes) {
    if (pass_kind(box) == kind) passes.emplace(box.micro_batch, box.chunk);
  }
  return passes;
}

/// The first of `some` that `all` has not.
std::string not_in(const std::set<Pass>& all, const std::set<Pass>& some, const char* what) {
  const auto lone = std::find_if(some.begin(), some.end(), [&](Pass pass) { return !all.contains(pass); });
  return lone == some.end() ? "" : fmt::format("{} of {}", what, text_of(*lone));
}

std::string missing_on(const ChartRank& rank, Numbers numbers) {
  const std::set<Pass> forwards = passes_of(rank, PassKind::kForward);
  const std::set<Pass> backwards = passes_of(rank, PassKind::kBackward);
  const std::set<Pass> weight_grads = passes_of(rank, PassKind::kWeightGrad);
  if (numbers == Numbers::kMissing) {
    if (forwards.size() == backwards.size() && weight_grads.size() <= backwards.size()) return "";
    return fmt::format("{} forward, {} backward, {} weight gradient boxes", forwards.size(), backwards.size(),
                       weight_grads.size());
  }
  const std::string no_backward = not_in(backwards, forwards, "no backward");
  if (!no_backward.empty()) return no_backward;
  const std::string no_forward = not_in(forwards, backwards, "no forward");
  return no_forward.empty() ? not_in(backwards, weight_grads, "no backward") : no_forward;
}

}  // namespace

std::string fault_of_passes(const ChartRank& rank, Numbers numbers) {
  for (const Lane lane : {Lane::kForwards, Lane::kOthers}) {
    std::string fault = overlap_in(rank, lane);
    if (!fault.empty()) return fault;
  }
  return numbers == Numbers::kWritten ? repeated_pass(rank) : "";
}

std::string missing_passes(const PipelineChart& chart, Numbers numbers) {
  std::string first;
  int num_ranks = 0;
  for (std::size_t rank = 0; rank < chart.ranks.size(); ++rank) {
    const std::string missing = missing_on(chart.ranks[rank], numbers);
    if (missing.empty()) continue;
    if (++num_ranks == 1) first = fmt::format("passes are missing: rank {} has {}", rank, missing);
  }
  return num_ranks < 2 ? first : fmt::format("{}, and {} like it", first, counted(num_ranks - 1, "more rank"));
}

void share_rows(ChartRank& rank) {
  for (const Lane lane : {Lane::kForwards, Lane::kOthers}) {
    // Boxes of the other lane that end before this one begins are behind for good: both lanes ascend.
    std::size_t from = 0;
    for (Box& box : rank.boxes) {
      if (lane_of(box) != lane || box.part != RowPart::kAll) continue;
      while (from < rank.boxes.size() && rank.boxes[from].end <= box.start) ++from;
      for (std::size_t i = from; i < rank.boxes.size() && rank.boxes[i].start < box.end; ++i) {
        const Box& other = rank.boxes[i];
        if (lane_of(other) == lane) continue;
        if (!(other.start <= box.start ? overlap(other, box) : overlap(box, other))) continue;
        box.part = lane == Lane::kForwards ? RowPart::kUpper : RowPart::kLower;
        break;
      }
    }
  }
}

}  // namespace primus::view
