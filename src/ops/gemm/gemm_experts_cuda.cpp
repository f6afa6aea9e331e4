#include "ops/gemm/gemm_experts_cuda.hpp"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <cublas_v2.h>

#include <vector>

#include "ops/gemm/cublas_lt.hpp"

namespace primus::ops::cuda {
namespace {

constexpr int kStreams = 4;

/// Streams that begin where the current one is; it goes on when all of them are done.
class Fork {
 public:
  Fork() {
    at::cuda::CUDAEvent begin;
    begin.record(current_);
    for (int i = 0; i < kStreams; ++i) {
      streams_.push_back(c10::cuda::getStreamFromPool());
      begin.block(streams_.back());
    }
  }
  ~Fork() {
    for (const c10::cuda::CUDAStream& stream : streams_) {
      at::cuda::CUDAEvent end;
      end.record(stream);
      end.block(current_);
    }
  }
  Fork(const Fork&) = delete;
  Fork& operator=(const Fork&) = delete;

  const c10::cuda::CUDAStream& stream(std::int64_t expert) const {
    return streams_[static_cast<std::size_t>(expert % kStreams)];
  }

 private:
  c10::cuda::CUDAStream current_ = c10::cuda::getCurrentCUDAStream();
  std::vector<c10::cuda::CUDAStream> streams_;
};

cudaDataType_t type_of(const Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  PRIMUS_CHECK(x.is_cuda() && (type == at::kFloat || type == at::kBFloat16), "experts' products in {} on {}",
               c10::toString(type), x.device().str());
  return type == at::kFloat ? CUDA_R_32F : CUDA_R_16BF;
}

/// Calls body(expert, first row, rows) for each expert that has any, on its stream.
template <typename Body>
void for_each_expert(const Tensor& offsets, const Body& body) {
  const Tensor border = offsets.cpu();
  const auto* row = border.const_data_ptr<std::int32_t>();
  const Fork fork;
  for (std::int64_t expert = 0; expert + 1 < border.numel(); ++expert) {
    const std::int64_t rows = row[expert + 1] - row[expert];
    if (rows == 0) continue;
    const c10::cuda::CUDAStreamGuard guard(fork.stream(expert));
    body(expert, row[expert], rows);
  }
}

struct Sides {
  cublasOperation_t left, right;
};

/// One product in cuBLAS's column-major words: of rows as we store them, the transposed matrices.
void multiply(Sides sides, std::int64_t m, std::int64_t n, std::int64_t k, const Tensor& left, const Tensor& right,
              const Tensor& result, Write write) {
  const float one = 1.0F;
  const float beta = write == Write::kOverwrite ? 0.0F : 1.0F;
  const auto width = [](const Tensor& x) { return static_cast<int>(x.size(0) == 1 ? x.size(1) : x.stride(0)); };
  PRIMUS_CUBLAS_CHECK(cublasGemmEx(at::cuda::getCurrentCUDABlasHandle(), sides.left, sides.right, static_cast<int>(m),
                                   static_cast<int>(n), static_cast<int>(k), &one, left.const_data_ptr(), type_of(left),
                                   width(left), right.const_data_ptr(), type_of(right), width(right), &beta,
                                   result.data_ptr(), type_of(result), width(result), CUBLAS_COMPUTE_32F,
                                   CUBLAS_GEMM_DEFAULT));
}

}  // namespace

void experts_forward(const Tensor& x_RI, const Tensor& w_EOI, const Tensor& offsets, Tensor& y_RO) {
  for_each_expert(offsets, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
    multiply({CUBLAS_OP_T, CUBLAS_OP_N}, w_EOI.size(1), rows, w_EOI.size(2), w_EOI[expert], x_RI.narrow(0, first, rows),
             y_RO.narrow(0, first, rows), Write::kOverwrite);
  });
}

void experts_dgrad(const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& offsets, Tensor& dx_RI) {
  for_each_expert(offsets, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
    multiply({CUBLAS_OP_N, CUBLAS_OP_N}, w_EOI.size(2), rows, w_EOI.size(1), w_EOI[expert],
             dy_RO.narrow(0, first, rows), dx_RI.narrow(0, first, rows), Write::kOverwrite);
  });
}

void experts_wgrad(const Tensor& dy_RO, const Tensor& x_RI, const Tensor& offsets, Tensor& main_grad_EOI, Write write) {
  for_each_expert(offsets, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
    multiply({CUBLAS_OP_N, CUBLAS_OP_T}, main_grad_EOI.size(2), main_grad_EOI.size(1), rows,
             x_RI.narrow(0, first, rows), dy_RO.narrow(0, first, rows), main_grad_EOI[expert], write);
  });
}

}  // namespace primus::ops::cuda
