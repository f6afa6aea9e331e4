// Which product runs where. Operands of one type: cuBLASLt. An fp32 operand beside a bf16 one (the router's): the fp32
// one is split into three bf16 parts that add up to it exactly, so the tensor cores give the fp32 product without a
// widened copy of the activations. Groups: gemm_grouped_cuda.cpp.
#include "ops/gemm/gemm_cuda.hpp"

#include "ops/cuda_table.hpp"
#include "ops/gemm/cublas_lt.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

/// Tells which operands of a product are split, and how its result is put together.
enum class Method {
  kDirect,   // both operands of one type that the library takes
  kStacked,  // fp32 result: parts side by side give parts of the result
  kChained,  // bf16 result: parts one after the other in the summed dimension
};

LtMatrix matrix_of(const Tensor& x) {
  PRIMUS_CHECK(x.is_cuda(), "gemm: a tensor is on {}, its op's first one on the GPU", x.device().str());
  PRIMUS_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
               "gemm: element type {} is not supported on a GPU", c10::toString(x.scalar_type()));
  const std::int64_t stride = std::max<std::int64_t>({x.size(0) <= 1 ? 1 : x.stride(0), x.size(1), 1});
  return {x.data_ptr(), x.scalar_type() == at::kFloat ? CUDA_R_32F : CUDA_R_16BF, x.size(0), x.size(1), stride};
}

bool is_float(const LtMatrix& x) {
  return x.type == CUDA_R_32F;
}

/// The dimension of op(x) that is summed over, as stored: does it run along the rows (so that it has `columns` steps)?
enum class Side { kLeft, kRight };
bool sums_along_rows(const LtMatrix& x, Side side) {
  return (side == Side::kLeft) == (x.orientation == Orientation::kAsStored);
}

Tensor scratch(std::int64_t rows, std::int64_t columns, at::ScalarType type) {
  return at::empty({rows, columns}, at::TensorOptions(at::kCUDA).dtype(type));
}

void split(const LtMatrix& x, const PartBlocks& blocks, gpu::Bf16* to) {
  const MatrixShape shape{x.rows, x.columns};
  if (is_float(x)) {
    launch_split(shape, static_cast<const float*>(x.data), x.stride, blocks, to, gpu::current_stream());
  } else {
    launch_split(shape, static_cast<const gpu::Bf16*>(x.data), x.stride, blocks, to, gpu::current_stream());
  }
}

/// Which part stands in each block.
struct Parts {
  int count;
  int part[kMaxBlocks];
};
constexpr Parts kAllParts{3, {0, 1, 2}};

/// The given parts of x as blocks of one bf16 matrix: beside each other or below each other.
enum class Arrangement { kBeside, kBelow };
LtMatrix parts_of(const LtMatrix& x, const Parts& parts, Arrangement arrangement, Tensor& held) {
  const bool beside = arrangement == Arrangement::kBeside;
  held = scratch(beside ? x.rows : x.rows * parts.count, beside ? x.columns * parts.count : x.columns, at::kBFloat16);
  PartBlocks blocks{parts.count, {}, beside ? x.columns : x.rows * x.columns, held.size(1)};
  std::ranges::copy(parts.part, blocks.part);
  split(x, blocks, gpu::data<gpu::Bf16>(held));
  LtMatrix result = matrix_of(held);
  result.orientation = x.orientation;
  return result;
}

void multiply_stacked(const LtMatrix& a, const LtMatrix& b, const LtMatrix& c, Write write) {
  const bool left = is_float(a);
  const LtMatrix& wide = left ? a : b;
  // Beside each other where the kept dimension runs along the rows.
  const Side side = left ? Side::kLeft : Side::kRight;
  Tensor held;
  const LtMatrix parts =
      parts_of(wide, kAllParts, sums_along_rows(wide, side) ? Arrangement::kBelow : Arrangement::kBeside, held);
  const Tensor products =
      left ? scratch(kBf16Parts * c.rows, c.columns, at::kFloat) : scratch(c.rows, kBf16Parts * c.columns, at::kFloat);
  lt_multiply(left ? parts : a, left ? b : parts, matrix_of(products), Write::kOverwrite, gpu::current_stream());
  launch_sum_parts({c.rows, c.columns}, gpu::data<float>(products), left ? c.rows * c.columns : c.columns,
                   products.size(1), write, static_cast<float*>(c.data), c.stride, gpu::current_stream());
}

/// What is left out, second parts times second parts, is 2^-16 of the result, which is rounded to 2^-9.
void multiply_chained(const LtMatrix& a, const LtMatrix& b, const LtMatrix& c, Write write) {
  // a₀b₀ + a₀b₁ + a₁b₀, of which a bf16 operand has no second part.
  constexpr Parts kBothLeft{3, {0, 0, 1}};
  constexpr Parts kBothRight{3, {0, 1, 0}};
  constexpr Parts kSplit{2, {0, 1}};
  constexpr Parts kRepeated{2, {0, 0}};
  const bool both = is_float(a) && is_float(b);
  const auto arrangement = [](const LtMatrix& x, Side side) {
    return sums_along_rows(x, side) ? Arrangement::kBeside : Arrangement::kBelow;
  };
  Tensor a_held;
  Tensor b_held;
  const LtMatrix left = parts_of(a,
                                 both          ? kBothLeft
                                 : is_float(a) ? kSplit
                                               : kRepeated,
                                 arrangement(a, Side::kLeft), a_held);
  const LtMatrix right = parts_of(b,
                                  both          ? kBothRight
                                  : is_float(b) ? kSplit
                                                : kRepeated,
                                  arrangement(b, Side::kRight), b_held);
  lt_multiply(left, right, c, write, gpu::current_stream());
}

Method method_of(const LtMatrix& a, const LtMatrix& b, const LtMatrix& c) {
  if (a.type == b.type && (!is_float(a) || is_float(c))) return Method::kDirect;
  return is_float(c) ? Method::kStacked : Method::kChained;
}

/// c (+)= op(a) · op(b).
void multiply(const LtMatrix& a, const LtMatrix& b, Tensor& c_MN, Write write) {
  if (c_MN.numel() == 0) return;
  if (a.rows == 0 || a.columns == 0) {
    if (write == Write::kOverwrite) c_MN.zero_();
    return;
  }
  const LtMatrix c = matrix_of(c_MN);
  switch (method_of(a, b, c)) {
    case Method::kDirect:
      return lt_multiply(a, b, c, write, gpu::current_stream());
    case Method::kStacked:
      return multiply_stacked(a, b, c, write);
    case Method::kChained:
      return multiply_chained(a, b, c, write);
  }
}

void forward(const Tensor& x_TI, const Tensor& w_OI, Tensor& y_TO, Write write) {
  multiply(matrix_of(x_TI), matrix_of(w_OI).transposed(), y_TO, write);
}

void dgrad(const Tensor& dy_TO, const Tensor& w_OI, Tensor& dx_TI, Write write) {
  multiply(matrix_of(dy_TO), matrix_of(w_OI), dx_TI, write);
}

void wgrad(const Tensor& dy_TO, const Tensor& x_TI, Tensor& main_grad_OI, Write write) {
  multiply(matrix_of(dy_TO).transposed(), matrix_of(x_TI), main_grad_OI, write);
}

}  // namespace

void register_gemm(CudaOps& ops) {
  ops.linear_forward = forward;
  ops.linear_dgrad = dgrad;
  ops.linear_wgrad = wgrad;
}

}  // namespace primus::ops::cuda
