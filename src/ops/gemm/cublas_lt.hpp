#pragma once
// Dense products by cuBLASLt on row-major matrices. A plan (descriptors and an algorithm) is made once per shape,
// strides, types and alignment and kept; so a product costs the host one launch, never waits and can be captured into
// a CUDA graph once its plan exists. The algorithm of a large product is the fastest of those that the library's
// heuristic names, timed when the plan is made; of others, and where a run must repeat itself, the one it names first.
#include <cublasLt.h>

#include "ops/gpu/runtime.hpp"
#include "ops/write.hpp"

/// PRIMUS_CUBLAS_CHECK(call): the call must give success.
#define PRIMUS_CUBLAS_CHECK(call)                                                                    \
  do {                                                                                               \
    const cublasStatus_t primus_status = (call);                                                     \
    if (primus_status != CUBLAS_STATUS_SUCCESS)                                                      \
      ::primus::gpu::throw_error(__FILE__, __LINE__, #call, cublasLtGetStatusString(primus_status)); \
  } while (false)

namespace primus::ops::cuda {

enum class Orientation { kAsStored, kTransposed };

/// A row-major matrix: rows, columns and row stride (in elements) as stored, of bf16 or fp32.
struct LtMatrix {
  void* data;
  cudaDataType_t type;
  std::int64_t rows, columns, stride;
  Orientation orientation = Orientation::kAsStored;

  LtMatrix transposed() const {
    LtMatrix result = *this;
    result.orientation = Orientation::kTransposed;
    return result;
  }
};

/// c (+)= op(a) · op(b), summed in fp32 (fp32 operands without TF32). a and b have the same type; c bf16 or fp32 beside
/// bf16, fp32 beside fp32.
void lt_multiply(const LtMatrix& a, const LtMatrix& b, const LtMatrix& c, Write write, gpu::Stream stream);

}  // namespace primus::ops::cuda
