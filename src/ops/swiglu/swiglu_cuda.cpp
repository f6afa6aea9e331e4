#include "ops/swiglu/swiglu_cuda.hpp"

#include "ops/cuda_table.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

SwigluShape shape_of(const Tensor& a_RF, const Tensor& num_rows) {
  return {a_RF.size(0), static_cast<int>(a_RF.size(1)), gpu::data<std::int32_t>(num_rows)};
}

void forward(const Tensor& h_R2F, const Tensor& prob_R, const Tensor& num_rows, Tensor& a_RF) {
  gpu::dispatch(h_R2F.scalar_type(), "swiglu_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_swiglu_forward<T>(shape_of(a_RF, num_rows), gpu::data<T>(h_R2F), gpu::data<float>(prob_R),
                             gpu::data<T>(a_RF), gpu::current_stream());
  });
}

void backward(const Tensor& da_RF, const Tensor& h_R2F, const Tensor& prob_R, const Tensor& num_rows, Tensor& dh_R2F,
              Tensor& dprob_R, Tensor& a_RF) {
  gpu::dispatch(h_R2F.scalar_type(), "swiglu_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_swiglu_backward<T>(shape_of(a_RF, num_rows),
                              {gpu::data<T>(da_RF), gpu::data<T>(h_R2F), gpu::data<float>(prob_R), gpu::data<T>(dh_R2F),
                               gpu::data<float>(dprob_R), gpu::data<T>(a_RF)},
                              gpu::current_stream());
  });
}

}  // namespace

void register_swiglu(CudaOps& ops) {
  ops.swiglu_forward = forward;
  ops.swiglu_backward = backward;
}

}  // namespace primus::ops::cuda
