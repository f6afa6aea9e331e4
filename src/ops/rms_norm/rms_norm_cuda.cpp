#include "ops/rms_norm/rms_norm_cuda.hpp"

#include "ops/cuda_table.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

NormShape shape_of(const Tensor& x_TH) {
  return {x_TH.size(0), static_cast<int>(x_TH.size(1))};
}

template <typename T>
Rows<const T> input(const Tensor& x_TH) {
  return {gpu::data<T>(x_TH), x_TH.stride(0)};
}

template <typename T>
Rows<T> output(const Tensor& x_TH) {
  return {gpu::data<T>(x_TH), x_TH.stride(0)};
}

void forward(const Tensor& x_TH, const Tensor& weight_H, double epsilon, Tensor& y_TH, Tensor& rstd_T) {
  gpu::dispatch(x_TH.scalar_type(), "rms_norm_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_rms_norm<T>(shape_of(x_TH), input<T>(x_TH), gpu::data<T>(weight_H), static_cast<float>(epsilon),
                       Rstd::kCompute, gpu::data<float>(rstd_T), output<T>(y_TH), gpu::current_stream());
  });
}

void apply(const Tensor& x_TH, const Tensor& weight_H, const Tensor& rstd_T, Tensor& y_TH) {
  gpu::dispatch(x_TH.scalar_type(), "rms_norm_apply", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_rms_norm<T>(shape_of(x_TH), input<T>(x_TH), gpu::data<T>(weight_H), 0.0F, Rstd::kGiven,
                       gpu::data<float>(rstd_T), output<T>(y_TH), gpu::current_stream());
  });
}

void backward(const Tensor& dy_TH, const Tensor& x_TH, const Tensor& weight_H, const Tensor& rstd_T, Tensor& dx_TH,
              Write write, Tensor& main_grad_H) {
  const NormShape shape = shape_of(x_TH);
  const Tensor partial_PH = at::empty({rms_norm_gradient_parts(shape), shape.width}, main_grad_H.options());
  gpu::dispatch(x_TH.scalar_type(), "rms_norm_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_rms_norm_backward<T>(shape,
                                {input<T>(dy_TH), input<T>(x_TH), gpu::data<T>(weight_H), gpu::data<float>(rstd_T),
                                 output<T>(dx_TH), write, gpu::data<float>(partial_PH), gpu::data<float>(main_grad_H)},
                                gpu::current_stream());
  });
}

}  // namespace

void register_rms_norm(CudaOps& ops) {
  ops.rms_norm_forward = forward;
  ops.rms_norm_apply = apply;
  ops.rms_norm_backward = backward;
}

}  // namespace primus::ops::cuda
