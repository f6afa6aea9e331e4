#include "diag/op_cases.hpp"

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <cmath>

namespace primus::diag {

Workload workload_of(at::Device device) {
  if (device.is_cuda()) {
    return {.name = "DeepSeek-V2-Lite, 16,384 tokens, bf16",
            .device = device,
            .dtype = at::kBFloat16,
            .cache_bytes = 60e6,
            .tokens = 16384,
            .sequence = 4096,
            .hidden = 2048,
            .heads = 16,
            .nope = 128,
            .rotary = 64,
            .value = 128,
            .kv_rank = 512,
            .dense_ffn = 10944,
            .expert_ffn = 1408,
            .shared_ffn = 2816,
            .experts = 64,
            .top_k = 6,
            .vocabulary = 102400,
            .loss_tokens = 4096,
            .parameters = std::int64_t{128} << 20};
  }
  return {.name = "a small model of DeepSeek-V2's shape, 1,024 tokens, fp32",
          .device = device,
          .dtype = at::kFloat,
          .cache_bytes = 32e6,
          .tokens = 1024,
          .sequence = 256,
          .hidden = 256,
          .heads = 4,
          .nope = 64,
          .rotary = 32,
          .value = 64,
          .kv_rank = 64,
          .dense_ffn = 704,
          .expert_ffn = 128,
          .shared_ffn = 128,
          .experts = 16,
          .top_k = 4,
          .vocabulary = 4096,
          .loss_tokens = 512,
          .parameters = std::int64_t{4} << 20};
}

Tensor Workload::random(std::initializer_list<std::int64_t> shape, at::ScalarType type) const {
  return at::randn(shape, at::TensorOptions(device).dtype(type));
}

Tensor Workload::numbers_below(std::int64_t limit, std::int64_t count) const {
  return at::randint(limit, {count}, at::TensorOptions(device).dtype(at::kLong));
}

int num_buffer_sets(const Workload& workload, double bytes) {
  return static_cast<int>(std::clamp(std::ceil(4.0 * workload.cache_bytes / bytes), 2.0, 64.0));
}

std::vector<OpCase> op_cases(const Workload& workload) {
  std::vector<OpCase> cases;
  for (const auto add : {add_product_cases, add_attention_cases, add_row_cases, add_routing_cases, add_update_cases}) {
    add(workload, cases);
  }
  return cases;
}

}  // namespace primus::diag
