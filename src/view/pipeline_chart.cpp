#include "view/pipeline_chart.hpp"

#include <algorithm>
#include <utility>

namespace primus::view {
namespace {

BoxKind kind_of(const schedule::Action& action) {
  switch (action.kind) {
    case schedule::ActionKind::kForward:
      return BoxKind::kForward;
    case schedule::ActionKind::kWeightGrad:
      return BoxKind::kWeightGrad;
    default:
      return action.weight_grad == schedule::WeightGrad::kApart ? BoxKind::kBackward : BoxKind::kWholeBackward;
  }
}

bool share_time(const Box& a, const Box& b) {
  const bool is_pair = a.kind == BoxKind::kForward ? b.kind == BoxKind::kBackward || b.kind == BoxKind::kWholeBackward
                                                   : b.kind == BoxKind::kForward && a.kind != BoxKind::kWeightGrad;
  return is_pair && a.start == b.start && a.end == b.end && a.end > a.start;
}

void mark_pairs(std::vector<Box>& boxes) {
  for (std::size_t i = 0; i + 1 < boxes.size(); ++i) {
    if (!share_time(boxes[i], boxes[i + 1])) continue;
    const bool first_is_forward = boxes[i].kind == BoxKind::kForward;
    boxes[i].part = first_is_forward ? RowPart::kUpper : RowPart::kLower;
    boxes[i + 1].part = first_is_forward ? RowPart::kLower : RowPart::kUpper;
    ++i;
  }
}

}  // namespace

std::string_view name(BoxKind kind) {
  switch (kind) {
    case BoxKind::kForward:
      return "forward";
    case BoxKind::kBackward:
    case BoxKind::kWholeBackward:
      return "backward";
    case BoxKind::kWeightGrad:
      return "weight gradient";
  }
  return "?";
}

double PipelineChart::mean_bubble() const {
  double sum = 0.0;
  for (const ChartRank& rank : ranks) sum += bubble(rank);
  return ranks.empty() ? 0.0 : sum / static_cast<double>(ranks.size());
}

std::optional<double> PipelineChart::peak_memory() const {
  std::optional<double> peak;
  for (const ChartRank& rank : ranks) {
    if (rank.memory) peak = std::max(peak.value_or(*rank.memory), *rank.memory);
  }
  return peak;
}

double PipelinePicture::longest_step() const {
  double longest = 0.0;
  for (const PipelineChart& chart : charts) longest = std::max(longest, chart.step);
  return longest;
}

std::vector<BoxKind> passes_shown(const PipelinePicture& picture) {
  bool has_weight_grads = false;
  for (const PipelineChart& chart : picture.charts) {
    for (const ChartRank& rank : chart.ranks) has_weight_grads = has_weight_grads || rank.weight_grad > 0.0;
  }
  std::vector<BoxKind> kinds = {BoxKind::kForward, BoxKind::kBackward};
  if (has_weight_grads) kinds.push_back(BoxKind::kWeightGrad);
  return kinds;
}

void sum_up(ChartRank& rank) {
  std::stable_sort(rank.boxes.begin(), rank.boxes.end(), [](const Box& a, const Box& b) { return a.start < b.start; });
  mark_pairs(rank.boxes);
  double covered_until = 0.0;
  for (const Box& box : rank.boxes) {
    double& sum = box.kind == BoxKind::kForward      ? rank.forward
                  : box.kind == BoxKind::kWeightGrad ? rank.weight_grad
                                                     : rank.backward;
    sum += box.end - box.start;
    rank.busy += std::max(0.0, box.end - std::max(box.start, covered_until));
    covered_until = std::max(covered_until, box.end);
  }
  rank.end = std::max(rank.end, covered_until);
}

PipelineChart chart_of(const schedule::Schedule& schedule, const schedule::Timeline& timeline, std::string name) {
  PipelineChart chart{.name = std::move(name), .note = "", .ranks = {}};
  chart.step = timeline.step;
  chart.num_chunks = schedule.shape.num_chunks;
  chart.num_micro_batches = schedule.shape.num_micro_batches;
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    const schedule::RankTimeline& row = timeline.ranks[r];
    ChartRank& rank = chart.ranks.emplace_back();
    rank.boxes.reserve(row.spans.size());
    for (std::size_t i = 0; i < row.spans.size(); ++i) {
      const schedule::Action& action = schedule.ranks[r][i];
      if (!schedule::is_compute(action.kind)) continue;
      rank.boxes.push_back({row.spans[i].start, row.spans[i].end, action.micro_batch.value, action.chunk.value,
                            kind_of(action), RowPart::kAll});
    }
    rank.end = row.end;
    rank.memory = row.peak;
    rank.held = row.held;
    sum_up(rank);
  }
  return chart;
}

}  // namespace primus::view
