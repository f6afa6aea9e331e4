#include "train/batches.hpp"

#include <cstring>

#include "ops/allocator.hpp"
#include "ops/host_copy.hpp"

namespace primus::train {
namespace {

template <typename T>
at::Tensor copy_of(const std::vector<T>& values, at::ScalarType dtype, at::Device device) {
  const at::Tensor tensor = ops::staging({static_cast<std::int64_t>(values.size())}, dtype, device);
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
  const auto copy = [&](const auto& values, at::ScalarType type) { return copy_of(values, type, device); };
  for (const data::GptBatch& batch : batches) {
    nn::MicroBatchInput input{.ids_T = copy(batch.tokens, at::kLong),
                              .loss = {.label_T = copy(batch.labels, at::kLong),
                                       .mask_T = copy(batch.loss_mask, at::kFloat).to(dtype),
                                       .inverse_num_tokens = 1.0 / step.num_tokens},
                              .depths = {}};
    if (!batch.positions.empty()) input.positions_T = copy(batch.positions, at::kLong);
    if (!batch.first_keys.empty()) input.first_key_BS = copy(batch.first_keys, at::kInt).view({batch.batch_size, -1});
    if (depths.num_depths > 0 && depths.document_end) {
      input.document_T = copy(document_numbers(batch, *depths.document_end), at::kLong);
    }
    step.micro_batches.push_back(std::move(input));
  }
  if (depths.num_depths > 0) {
    const model::BatchShape shape{.num_sequences = batches.front().batch_size,
                                  .seq_length = batches.front().seq_length};
    step.depth_num_tokens = nn::add_depths(step.micro_batches, shape, depths.num_depths, depths.loss_scale);
  }
  if (device.is_cpu()) return step;
  for (nn::MicroBatchInput& input : step.micro_batches) {
    nn::for_each_tensor(input, [&](at::Tensor& tensor) {
      if (tensor.defined()) tensor = tensor.to(device, tensor.scalar_type(), /*non_blocking=*/true);
    });
  }
  return step;
}

}  // namespace primus::train
