#include <gmock/gmock.h>

#include "support/cuda.hpp"

namespace primus {
namespace {

using test::no_cuda_reason;
using ::testing::HasSubstr;

TEST(CudaPluginTest, LoadsOrSaysWhatIsMissing) {
  if (no_cuda_reason().empty()) {
    EXPECT_TRUE(at::full({3}, 2.0, at::TensorOptions(at::kCUDA)).is_cuda());
    return;
  }
#ifdef PRIMUS_HAS_CUDA
  // Where the GPU half is built it loads, so that only a driver or a device can be missing.
  EXPECT_THAT(no_cuda_reason(), ::testing::AnyOf(HasSubstr("driver"), HasSubstr("device")));
  EXPECT_THAT(no_cuda_reason(), ::testing::Not(HasSubstr(".so")));
#else
  EXPECT_THAT(no_cuda_reason(), HasSubstr("no CUDA half"));
#endif
}

TEST(CudaPluginTest, AnOpWithoutATwinNamesItself) {
  const ops::CudaOp<decltype(&ops::has_nonfinite)> op("has_nonfinite");
  try {
    op(at::zeros({1}, at::kFloat));
    ADD_FAILURE() << "no error";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has_nonfinite"));
  }
}

}  // namespace
}  // namespace primus
