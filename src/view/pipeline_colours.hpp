#pragma once
// Colours of boxes, told apart with any colour vision and in grey. Passes are hues, chunks are shades of them.
#include <string>

#include "view/pipeline_chart.hpp"

namespace primus::view {

struct Rgb {
  int red = 0;
  int green = 0;
  int blue = 0;

  std::string hex() const;
  /// Does dark text read better on it than white?
  bool is_light() const;
};

Rgb pass_colour(BoxKind kind, int chunk, int num_chunks);

/// Micro-batches take turns through these; numbers on the boxes say the rest.
inline constexpr int kNumMicroBatchColours = 8;
Rgb micro_batch_colour(int micro_batch);

}  // namespace primus::view
