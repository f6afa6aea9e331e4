#include "ops/rms_norm/rms_norm_cuda.hpp"

#include "ops/cuda_table.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

/// Heads of tokens [T, A, H] as rows of their own. The kernels take one row stride: other heads are copied.
at::Tensor rows_of(const Tensor& x) {
  return x.dim() == 3 ? x.reshape({x.size(0) * x.size(1), x.size(2)}) : x;
}

/// A tensor to write rows to, and what brings them back where it is a copy.
void copy_back(const Tensor& rows, Tensor& x) {
  if (rows.data_ptr() != x.data_ptr()) x.copy_(rows.view(x.sizes()));
}

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

void forward_rows(const Tensor& x_TH, const Tensor& weight_H, double epsilon, const Tensor& y_TH,
                  const Tensor& rstd_T) {
  gpu::dispatch(x_TH.scalar_type(), "rms_norm_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_rms_norm<T>(shape_of(x_TH), input<T>(x_TH), gpu::data<T>(weight_H), static_cast<float>(epsilon),
                       Rstd::kCompute, gpu::data<float>(rstd_T), output<T>(y_TH), gpu::current_stream());
  });
}

void apply_rows(const Tensor& x_TH, const Tensor& weight_H, const Tensor& rstd_T, const Tensor& y_TH) {
  gpu::dispatch(x_TH.scalar_type(), "rms_norm_apply", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_rms_norm<T>(shape_of(x_TH), input<T>(x_TH), gpu::data<T>(weight_H), 0.0F, Rstd::kGiven,
                       gpu::data<float>(rstd_T), output<T>(y_TH), gpu::current_stream());
  });
}

void backward_rows(const Tensor& dy_TH, const Tensor& x_TH, const Tensor& weight_H, const Tensor& rstd_T,
                   const Tensor& dx_TH, Write write, Tensor& main_grad_H) {
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

void forward(const Tensor& x, const Tensor& weight_H, double epsilon, Tensor& y, Tensor& rstd) {
  const Tensor y_TH = rows_of(y);
  forward_rows(rows_of(x), weight_H, epsilon, y_TH, rstd);
  copy_back(y_TH, y);
}

void apply(const Tensor& x, const Tensor& weight_H, const Tensor& rstd, Tensor& y) {
  const Tensor y_TH = rows_of(y);
  apply_rows(rows_of(x), weight_H, rstd, y_TH);
  copy_back(y_TH, y);
}

void backward(const Tensor& dy, const Tensor& x, const Tensor& weight_H, const Tensor& rstd, Tensor& dx, Write write,
              Tensor& main_grad_H) {
  const Tensor dx_TH = rows_of(dx);
  backward_rows(rows_of(dy), rows_of(x), weight_H, rstd, dx_TH, write, main_grad_H);
  copy_back(dx_TH, dx);
}

}  // namespace

void register_rms_norm(CudaOps& ops) {
  ops.rms_norm_forward = forward;
  ops.rms_norm_apply = apply;
  ops.rms_norm_backward = backward;
}

}  // namespace primus::ops::cuda
