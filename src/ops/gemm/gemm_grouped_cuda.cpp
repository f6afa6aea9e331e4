// Grouped products: Hopper's tensor cores where the operands allow it, plain tiles elsewhere. Offsets stay on the
// device: that they begin at 0, never fall and end within the rows is the caller's word (permute_plan's), not checked
// here.
#include "ops/cuda_table.hpp"
#include "ops/gemm/gemm_experts_cuda.hpp"
#include "ops/gemm/gemm_grouped.hpp"
#include "ops/gpu/device.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

using gpu::Bf16;

GroupedShape shape_of(const Tensor& offsets, const Tensor& w_EOI, std::int64_t rows) {
  return {static_cast<int>(w_EOI.size(0)), static_cast<int>(w_EOI.size(1)), static_cast<int>(w_EOI.size(2)), rows,
          gpu::data<std::int32_t>(offsets)};
}

bool is_one_by_one() {
  return gpu::kernel_families().experts == KernelFamilies::Experts::kOneByOne;
}

std::int64_t row_stride(const Tensor& x) {
  return x.size(0) <= 1 ? x.size(1) : x.stride(0);
}

#ifdef PRIMUS_HAS_CUTLASS
bool has_packed_rows(const Tensor& x) {
  const auto bytes = row_stride(x) * static_cast<std::int64_t>(x.element_size());
  return (reinterpret_cast<std::uintptr_t>(x.data_ptr()) | static_cast<std::uintptr_t>(bytes)) % 16 == 0;
}

/// The tensor cores' kernels move whole 16-byte pieces of rows and of expert matrices.
bool fits_sm90(const Tensor& left_R, const Tensor& right, const Tensor& result) {
  if (gpu::device_info().compute_major != 9) return false;
  for (const Tensor* x : {&left_R, &right, &result}) {
    const std::int64_t width = x->size(-1);
    if (x->scalar_type() == at::kBFloat16 && width % 8 != 0) return false;
    if (x->dim() == 3 && (width % 8 != 0 || x->size(1) % 8 != 0)) return false;
    if (!has_packed_rows(x->dim() == 3 ? x->view({-1, width}) : *x)) return false;
  }
  return left_R.scalar_type() == at::kBFloat16 && right.scalar_type() == at::kBFloat16;
}

/// Runs launch(multiprocessors, scratch, stream) with as much scratch as it needs.
template <typename Bytes, typename Launch>
void with_scratch(int experts, const Bytes& bytes, const Launch& launch) {
  const int multiprocessors = gpu::device_info().multiprocessors;
  const auto size = static_cast<std::int64_t>(bytes(experts, multiprocessors));
  const Tensor scratch = at::empty({size}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
  launch(multiprocessors, scratch.data_ptr(), gpu::current_stream());
}
#endif

template <typename Left, typename Result>
GroupedOperands<Left, Left, Result> operands(const Tensor& left, const Tensor& right, const Tensor& result) {
  const auto stride = [](const Tensor& x) { return x.dim() == 3 ? x.size(2) : row_stride(x); };
  return {gpu::data<Left>(left),     stride(left),  gpu::data<Left>(right), stride(right),
          gpu::data<Result>(result), stride(result)};
}

void check_same_type(const Tensor& a, const Tensor& b, const char* op) {
  PRIMUS_CHECK(a.scalar_type() == b.scalar_type(), "{}: operands of different element types, on a GPU", op);
}

void forward(const Tensor& x_RI, const Tensor& w_EOI, const Tensor& offsets, Tensor& y_RO) {
  check_same_type(x_RI, w_EOI, "grouped_linear_forward");
  check_same_type(x_RI, y_RO, "grouped_linear_forward");
  const GroupedShape shape = shape_of(offsets, w_EOI, x_RI.size(0));
  if (y_RO.numel() == 0) return;
  if (is_one_by_one()) return experts_forward(x_RI, w_EOI, offsets, y_RO);
#ifdef PRIMUS_HAS_CUTLASS
  if (fits_sm90(x_RI, w_EOI, y_RO)) {
    return with_scratch(
        shape.experts, grouped_forward_scratch_sm90, [&](int multiprocessors, void* scratch, auto stream) {
          launch_grouped_forward_sm90(shape, operands<Bf16, Bf16>(x_RI, w_EOI, y_RO), multiprocessors, scratch, stream);
        });
  }
#endif
  gpu::dispatch(x_RI.scalar_type(), "grouped_linear_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_grouped_forward<T>(shape, operands<T, T>(x_RI, w_EOI, y_RO), gpu::current_stream());
  });
}

void dgrad(const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& offsets, Tensor& dx_RI) {
  check_same_type(dy_RO, w_EOI, "grouped_linear_dgrad");
  check_same_type(dy_RO, dx_RI, "grouped_linear_dgrad");
  const GroupedShape shape = shape_of(offsets, w_EOI, dy_RO.size(0));
  if (dx_RI.numel() == 0) return;
  if (is_one_by_one()) return experts_dgrad(dy_RO, w_EOI, offsets, dx_RI);
#ifdef PRIMUS_HAS_CUTLASS
  if (fits_sm90(dy_RO, w_EOI, dx_RI)) {
    return with_scratch(
        shape.experts, grouped_dgrad_scratch_sm90, [&](int multiprocessors, void* scratch, auto stream) {
          launch_grouped_dgrad_sm90(shape, operands<Bf16, Bf16>(dy_RO, w_EOI, dx_RI), multiprocessors, scratch, stream);
        });
  }
#endif
  gpu::dispatch(dy_RO.scalar_type(), "grouped_linear_dgrad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_grouped_dgrad<T>(shape, operands<T, T>(dy_RO, w_EOI, dx_RI), gpu::current_stream());
  });
}

void wgrad(const Tensor& dy_RO, const Tensor& x_RI, const Tensor& offsets, Tensor& main_grad_EOI, Write write) {
  check_same_type(dy_RO, x_RI, "grouped_linear_wgrad");
  const GroupedShape shape = shape_of(offsets, main_grad_EOI, x_RI.size(0));
  if (main_grad_EOI.numel() == 0) return;
  if (write == Write::kOverwrite) {
    if (shape.rows == 0) return static_cast<void>(main_grad_EOI.zero_());
    launch_zero_empty_groups(shape, gpu::data<float>(main_grad_EOI), gpu::current_stream());
  }
  if (shape.rows == 0) return;
  if (is_one_by_one()) return experts_wgrad(dy_RO, x_RI, offsets, main_grad_EOI, write);
#ifdef PRIMUS_HAS_CUTLASS
  if (fits_sm90(dy_RO, x_RI, main_grad_EOI)) {
    return with_scratch(shape.experts, grouped_wgrad_scratch_sm90,
                        [&](int multiprocessors, void* scratch, auto stream) {
                          launch_grouped_wgrad_sm90(shape, operands<Bf16, float>(dy_RO, x_RI, main_grad_EOI), write,
                                                    multiprocessors, scratch, stream);
                        });
  }
#endif
  gpu::dispatch(x_RI.scalar_type(), "grouped_linear_wgrad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_grouped_wgrad<T>(shape, operands<T, float>(dy_RO, x_RI, main_grad_EOI), write, gpu::current_stream());
  });
}

void wgrad_squares(const Tensor& dy_RO, const Tensor& x_RI, const Tensor& offsets, Tensor& main_grad_EOI,
                   Tensor& square_sum_1) {
#ifdef PRIMUS_HAS_CUTLASS
  const GroupedShape shape = shape_of(offsets, main_grad_EOI, x_RI.size(0));
  if (!is_one_by_one() && shape.rows > 0 && main_grad_EOI.numel() > 0 && fits_sm90(dy_RO, x_RI, main_grad_EOI)) {
    launch_zero_empty_groups(shape, gpu::data<float>(main_grad_EOI), gpu::current_stream());
    const std::int64_t count = grouped_square_parts_sm90(shape);
    const Tensor parts = at::empty({count}, square_sum_1.options());
    with_scratch(shape.experts, grouped_wgrad_squares_scratch_sm90,
                 [&](int multiprocessors, void* scratch, auto stream) {
                   launch_grouped_wgrad_squares_sm90(shape, operands<Bf16, float>(dy_RO, x_RI, main_grad_EOI),
                                                     gpu::data<double>(parts), multiprocessors, scratch, stream);
                 });
    return launch_add_parts(count, gpu::data<double>(parts), gpu::data<double>(square_sum_1), gpu::current_stream());
  }
#endif
  wgrad(dy_RO, x_RI, offsets, main_grad_EOI, Write::kOverwrite);
  add_squares(main_grad_EOI, square_sum_1);
}

}  // namespace

void register_grouped_gemm(CudaOps& ops) {
  ops.grouped_linear_forward = forward;
  ops.grouped_linear_dgrad = dgrad;
  ops.grouped_linear_wgrad = wgrad;
  ops.grouped_linear_wgrad_squares = wgrad_squares;
}

}  // namespace primus::ops::cuda
