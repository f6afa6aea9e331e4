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

}  // namespace

StepBatches to_tensors(const std::vector<data::GptBatch>& batches, at::ScalarType dtype, at::Device device) {
  const ops::MemoryScope scope(ops::MemoryTag::kBatch);
  StepBatches step;
  for (const data::GptBatch& batch : batches) step.num_tokens += static_cast<double>(batch.num_valid);
  step.num_tokens = std::max(step.num_tokens, 1.0);
  for (const data::GptBatch& batch : batches) {
    step.micro_batches.push_back({.ids_T = copy_of(batch.tokens, at::kLong).to(device),
                                  .loss = {.label_T = copy_of(batch.labels, at::kLong).to(device),
                                           .mask_T = copy_of(batch.loss_mask, at::kFloat).to(device).to(dtype),
                                           .inverse_num_tokens = 1.0 / step.num_tokens}});
  }
  return step;
}

}  // namespace primus::train
