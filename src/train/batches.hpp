#pragma once
// Batches of the data half as tensors.
#include "data/data_source.hpp"
#include "nn/mtp_input.hpp"

namespace primus::train {

/// A step's micro-batches and the number of tokens that count in them.
struct StepBatches {
  std::vector<nn::MicroBatchInput> micro_batches;
  double num_tokens = 0.0;
  std::vector<double> depth_num_tokens;  // alike, of each prediction depth
};

/// What multi-token prediction reads besides. Without depths nothing of it is looked at.
struct DepthOptions {
  std::int64_t num_depths = 0;
  double loss_scale = 0.0;
  std::optional<std::int64_t> document_end;  // the token that ends a document, where depths stay within one
};

/// Copies on `device`. `dtype`: that of statistics. The tokens that count are summed over the whole step first: the
/// loss has one denominator (D4). A step without any such token has loss 0.
StepBatches to_tensors(const std::vector<data::GptBatch>& batches, at::ScalarType dtype, at::Device device,
                       const DepthOptions& depths);

}  // namespace primus::train
