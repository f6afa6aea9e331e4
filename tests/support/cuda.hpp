#pragma once
// Tests of the CUDA twins: they skip, and say why, where there is no device.
#include <gtest/gtest.h>

#include "ops/cuda_plugin.hpp"
#include "support/tensors.hpp"

namespace primus::test {

/// Empty when CUDA tensors can be used; else the message a user would get. Loads the GPU half.
inline const std::string& no_cuda_reason() {
  static const std::string reason = [] {
    try {
      ops::load_cuda_plugin();
      return std::string();
    } catch (const UserError& error) {
      return std::string(error.what());
    }
  }();
  return reason;
}

template <typename Base>
class OnCuda : public Base {
 protected:
  void SetUp() override {
    if (!no_cuda_reason().empty()) GTEST_SKIP() << no_cuda_reason();
  }
};
using CudaTest = OnCuda<::testing::Test>;
template <typename Param>
using CudaTestWithParam = OnCuda<::testing::TestWithParam<Param>>;

/// While it lives, the device's ops repeat themselves bit by bit.
class SameBits {
 public:
  SameBits() { ops::set_determinism(at::kCUDA, ops::Determinism::kSameBits); }
  ~SameBits() { ops::set_determinism(at::kCUDA, ops::Determinism::kAnyOrder); }
  SameBits(const SameBits&) = delete;
  SameBits& operator=(const SameBits&) = delete;
};

/// While it lives, the device computes with these kernels.
class WithKernels {
 public:
  explicit WithKernels(ops::KernelFamilies families) { ops::set_kernel_families(at::kCUDA, families); }
  ~WithKernels() { ops::set_kernel_families(at::kCUDA, {}); }
  WithKernels(const WithKernels&) = delete;
  WithKernels& operator=(const WithKernels&) = delete;
};

/// A copy on the device; an undefined tensor stays one.
inline Tensor to_cuda(const Tensor& x) {
  return x.defined() ? x.to(at::kCUDA) : x;
}

inline Tensor cuda_poisoned(std::vector<std::int64_t> shape, at::ScalarType dtype) {
  return poisoned(std::move(shape), dtype).to(at::kCUDA);
}

/// ‖a − b‖ / ‖b‖ of a result on the device and its fp64 reference: of outputs that were rounded once.
inline double rounded_tolerance(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 4e-3 : 1e-5;
}

inline Tensor to64(const Tensor& x) {
  return x.defined() ? x.cpu().to(at::kDouble) : x;
}

}  // namespace primus::test
