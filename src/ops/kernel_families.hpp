#pragma once
// Which of several kernels for the same sums a GPU runs. The slower ones are there to be compared with.
#include "ops/dtype.hpp"

namespace primus::ops {

struct KernelFamilies {
  /// One product for all experts, whose sizes stay on the device; or one for each, over several streams: the host waits
  /// for the sizes (moe_use_legacy_grouped_gemm).
  enum class Experts { kTogether, kOneByOne } experts = Experts::kTogether;
  /// cuDNN's fused attention wherever it takes the sizes, or matrix products and softmax (attention_backend).
  enum class Attention { kFused, kPlain } attention = Attention::kFused;
};

/// For all that this process computes on a device from now on. A CPU has one of each.
void set_kernel_families(at::Device device, KernelFamilies families);

}  // namespace primus::ops
