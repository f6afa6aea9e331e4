#include "train/batches.hpp"

#include <cstring>

#include "ops/allocator.hpp"

namespace primus::train {
namespace {

template <typename T>
at::Tensor copy_of(const std::vector<T>& values, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, dtype);
  std::memcpy(tensor.data_ptr(), values.data(), values.size() * sizeof(T));
  return tensor;
}

/// Number of each token's document, counted over the whole micro-batch; the end token still belongs to its own.
std::vector<std::int64_t> document_numbers(const data::GptBatch& batch, std::int64_t end) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(batch.tokens.size());
  std::int64_t number = 0;
  for (const std::int64_t token : batch.tokens) {
    numbers.push_back(number);
    number += token == end ? 1 : 0;
  }
  return numbers;
}

}  // namespace

StepBatches to_tensors(const std::vector<data::GptBatch>& batches, at::ScalarType dtype, at::Device device,
                       const DepthOptions& depths) {
  const ops::MemoryScope scope(ops::MemoryTag::kBatch);
  StepBatches step;
  for (const data::GptBatch& batch : batches) step.num_tokens += static_cast<double>(batch.num_valid);
  step.num_tokens = std::max(step.num_tokens, 1.0);
  for (const data::GptBatch& batch : batches) {
    const at::Tensor positions_T =
        batch.positions.empty() ? at::Tensor() : copy_of(batch.positions, at::kLong).to(device);
    const at::Tensor first_key_BS = batch.first_keys.empty()
                                        ? at::Tensor()
                                        : copy_of(batch.first_keys, at::kInt).view({batch.batch_size, -1}).to(device);
    step.micro_batches.push_back({.ids_T = copy_of(batch.tokens, at::kLong).to(device),
                                  .loss = {.label_T = copy_of(batch.labels, at::kLong).to(device),
                                           .mask_T = copy_of(batch.loss_mask, at::kFloat).to(device).to(dtype),
                                           .inverse_num_tokens = 1.0 / step.num_tokens},
                                  .positions_T = positions_T,
                                  .first_key_BS = first_key_BS,
                                  .document_T = {},
                                  .depths = {}});
    if (depths.num_depths > 0 && depths.document_end) {
      step.micro_batches.back().document_T =
          copy_of(document_numbers(batch, *depths.document_end), at::kLong).to(device);
    }
  }
  if (depths.num_depths > 0) {
    const model::BatchShape shape{.num_sequences = batches.front().batch_size,
                                  .seq_length = batches.front().seq_length};
    step.depth_num_tokens = nn::add_depths(step.micro_batches, shape, depths.num_depths, depths.loss_scale);
  }
  return step;
}

}  // namespace primus::train
