#pragma once
// Which layers live on which pipeline rank, with each rank's parameters and work, as self-contained SVG.
#include <string>
#include <vector>

namespace primus::view {

enum class BlockKind { kEmbedding, kDense, kMoe, kDepth, kOutput };

/// A part of a stage: a layer with its number, or what stands before and behind the layers.
struct StageBlock {
  BlockKind kind = BlockKind::kDense;
  int layer = -1;
};

struct StageRow {
  std::string label;                            // "rank 3"
  std::vector<std::vector<StageBlock>> chunks;  // in the order of the rank's chunks
  double parameters = 0.0;
  double flops = 0.0;  // of a token in training
};

struct StagePicture {
  std::string title;
  std::string subtitle;
  std::vector<StageRow> rows;  // from the top
};

/// SVG text; legible in print, for colour-blind readers, in dark and light.
std::string stage_picture_svg(const StagePicture& picture);

/// How far the largest lies above the mean, in percent; 0 where all are alike or nothing.
double imbalance_percent(const std::vector<double>& values);

}  // namespace primus::view
