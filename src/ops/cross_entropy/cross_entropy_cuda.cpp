#include "ops/cross_entropy/cross_entropy_cuda.hpp"

#include "ops/cuda_table.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

LossShape shape_of(const Tensor& logits_TV) {
  return {logits_TV.size(0), logits_TV.size(1)};
}

void forward_backward(Tensor& logits_TV, const Tensor& label_T, const Tensor& grad_T, Tensor& loss_T) {
  gpu::dispatch(logits_TV.scalar_type(), "cross_entropy_forward_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_cross_entropy_backward<T>(shape_of(logits_TV), gpu::data<T>(logits_TV), gpu::data<std::int64_t>(label_T),
                                     gpu::data<float>(grad_T), gpu::data<float>(loss_T), gpu::current_stream());
  });
}

void forward(const Tensor& logits_TV, const Tensor& label_T, Tensor& loss_T) {
  gpu::dispatch(logits_TV.scalar_type(), "cross_entropy_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_cross_entropy<T>(shape_of(logits_TV), gpu::data<T>(logits_TV), gpu::data<std::int64_t>(label_T),
                            gpu::data<float>(loss_T), gpu::current_stream());
  });
}

}  // namespace

void register_cross_entropy(CudaOps& ops) {
  ops.cross_entropy_forward_backward = forward_backward;
  ops.cross_entropy_forward = forward;
}

}  // namespace primus::ops::cuda
