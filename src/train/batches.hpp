#pragma once
// Batches of the data half as tensors.
#include "data/data_source.hpp"
#include "nn/model.hpp"

namespace primus::train {

/// A step's micro-batches and the number of tokens that count in them.
struct StepBatches {
  std::vector<nn::MicroBatchInput> micro_batches;
  double num_tokens = 0.0;
};

/// Copies on `device`. `dtype`: that of statistics. The tokens that count are summed over the whole step first: the
/// loss has one denominator (D4). A step without any such token has loss 0.
StepBatches to_tensors(const std::vector<data::GptBatch>& batches, at::ScalarType dtype, at::Device device);

}  // namespace primus::train
