#pragma once
// What a picture of a pipeline shows: boxes in time, rank by rank, from a simulation or from what a run wrote.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/simulate.hpp"

namespace primus::view {

/// kWholeBackward: with its weight gradient.
enum class BoxKind : std::uint8_t { kForward, kBackward, kWholeBackward, kWeightGrad };
inline constexpr int kNumBoxKinds = 4;
std::string_view name(BoxKind kind);

/// Two boxes side by side in time share their rank's row.
enum class RowPart : std::uint8_t { kAll, kUpper, kLower };

struct Box {
  double start = 0.0;
  double end = 0.0;
  int micro_batch = 0;
  int chunk = 0;
  BoxKind kind = BoxKind::kForward;
  RowPart part = RowPart::kAll;
};

struct ChartRank {
  std::vector<Box> boxes;  // ascending starts
  double forward = 0.0;    // sums
  double backward = 0.0;
  double weight_grad = 0.0;
  double busy = 0.0;  // time with a box, each moment once
  double end = 0.0;
  std::optional<double> memory;      // the most that is held
  std::vector<schedule::Held> held;  // steps of the curve, ascending; empty: unknown
};

struct PipelineChart {
  std::string name;  // of the schedule, or of the folder
  std::string note;  // what the figures rest on
  std::vector<ChartRank> ranks;
  double step = 0.0;  // until the last rank ends
  int num_chunks = 1;
  int num_micro_batches = 1;
  std::optional<double> formula_bubble;  // where the schedule has a formula

  double bubble(const ChartRank& rank) const { return step > 0.0 ? 1.0 - rank.busy / step : 0.0; }
  double mean_bubble() const;
  std::optional<double> peak_memory() const;
};

/// Charts that share one time axis.
struct PipelinePicture {
  std::string title;
  std::string basis;        // one sentence on where the times come from
  std::string time_unit;    // "ms", or "forwards": what a rank's forward takes in the mean
  std::string memory_unit;  // "GB", or "activations"
  std::vector<PipelineChart> charts;

  double longest_step() const;
};

/// Forward and backward, and weight gradients where some stand apart: what a legend names.
std::vector<BoxKind> passes_shown(const PipelinePicture& picture);

/// A simulated table.
PipelineChart chart_of(const schedule::Schedule& schedule, const schedule::Timeline& timeline, std::string name);

/// Fills in what follows from a rank's boxes: sums, busy time, end, and which boxes share their row.
void sum_up(ChartRank& rank);

}  // namespace primus::view
