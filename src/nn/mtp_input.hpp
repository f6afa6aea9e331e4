#pragma once
// What multi-token prediction reads of a step's micro-batches: ids, labels and masks shifted within sequences and
// documents.
#include "nn/model.hpp"

namespace primus::nn {

/// Fills in each micro-batch's depths. Place t of depth d gets the id, label and mask of place t + d + 1; where that
/// lies outside the sequence, or in another document (document_T), id and label are 0 and the mask is 0. A depth's
/// losses are averaged over its own counted tokens of the whole step (never fewer than 1), and their sum weighs
/// `scale` / depths in the step's loss. Returns the number of counted tokens of each depth.
std::vector<double> add_depths(std::vector<MicroBatchInput>& micro_batches, model::BatchShape batch,
                               std::int64_t num_depths, double scale);

}  // namespace primus::nn
