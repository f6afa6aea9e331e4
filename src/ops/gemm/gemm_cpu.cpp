#include "ops/gemm/gemm.hpp"

#include "model/host_cuts.hpp"
#include "ops/adamw/adamw.hpp"
#include "ops/cuda_ops.hpp"
#include "ops/gemm/blas.hpp"
#include "ops/scratch.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

using model::kPanelDepth;
using model::kPanelRows;

// A row-major matrix of any supported element type.
struct Matrix {
  void* data;
  at::ScalarType dtype;
  std::int64_t rows, columns, stride;
  Transpose transpose = Transpose::kNo;

  Matrix transposed() const {
    Matrix result = *this;
    result.transpose = Transpose::kYes;
    return result;
  }
  Matrix rows_from(std::int64_t begin, std::int64_t count) const { return block(begin, count, 0, columns); }
  Matrix columns_from(std::int64_t begin, std::int64_t count) const { return block(0, rows, begin, count); }
  Matrix block(std::int64_t row, std::int64_t row_count, std::int64_t column, std::int64_t column_count) const {
    Matrix result = *this;
    const std::int64_t offset = row * stride + column;
    result.data = static_cast<char*>(data) + offset * static_cast<std::int64_t>(c10::elementSize(dtype));
    result.rows = row_count;
    result.columns = column_count;
    return result;
  }
  // Block of op(matrix), in op's own rows and columns.
  Matrix op_block(std::int64_t row, std::int64_t row_count, std::int64_t column, std::int64_t column_count) const {
    return transpose == Transpose::kNo ? block(row, row_count, column, column_count)
                                       : block(column, column_count, row, row_count);
  }
};

Matrix as_matrix(const Tensor& x, const char* name) {
  PRIMUS_CHECK(x.dim() == 2 && (x.stride(1) == 1 || x.size(1) <= 1), "gemm: {} must be a matrix of dense rows", name);
  PRIMUS_CHECK(x.size(0) <= 1 || x.stride(0) >= x.size(1), "gemm: rows of {} overlap", name);
  const std::int64_t stride = std::max<std::int64_t>({x.size(0) <= 1 ? 1 : x.stride(0), x.size(1), 1});
  return {x.data_ptr(), x.scalar_type(), x.size(0), x.size(1), stride};
}

// Weight of one expert, w_EOI[e].
Matrix expert_matrix(const Tensor& w_EOI, std::int64_t expert) {
  Matrix all{w_EOI.data_ptr(), w_EOI.scalar_type(), w_EOI.size(1), w_EOI.size(2), w_EOI.size(2)};
  return all.block(expert * all.rows, all.rows, 0, all.columns);
}

template <typename From, typename To>
void convert_row(const From* from, To* to, std::int64_t columns) {
#pragma omp simd
  for (std::int64_t j = 0; j < columns; ++j) {
    if constexpr (sizeof(To) < sizeof(From)) {
      to[j] = to_storage<To>(from[j]);
    } else {
      to[j] = static_cast<To>(from[j]);
    }
  }
}

template <typename From, typename To>
void convert_rows(const From* from, std::int64_t from_stride, To* to, std::int64_t to_stride, std::int64_t rows,
                  std::int64_t columns) {
  const std::int64_t grain = std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(columns, 1));
  at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) convert_row(from + i * from_stride, to + i * to_stride, columns);
  });
}

// Rows of a bf16 or fp16 matrix in a wider type, and back.
template <typename Acc>
void widen_rows(const Matrix& from, Acc* to, std::int64_t to_stride) {
  if (from.dtype == at::kHalf) {
    convert_rows(static_cast<const at::Half*>(from.data), from.stride, to, to_stride, from.rows, from.columns);
  } else {
    convert_rows(static_cast<const at::BFloat16*>(from.data), from.stride, to, to_stride, from.rows, from.columns);
  }
}
void narrow_rows(const float* from, std::int64_t from_stride, const Matrix& to) {
  if (to.dtype == at::kHalf) {
    convert_rows(from, from_stride, static_cast<at::Half*>(to.data), to.stride, to.rows, to.columns);
  } else {
    convert_rows(from, from_stride, static_cast<at::BFloat16*>(to.data), to.stride, to.rows, to.columns);
  }
}

// The matrix's elements as Acc: where they are if they have that type, else widened into `panel`.
template <typename Acc>
BlasOperand<Acc> widened(const Matrix& matrix, Tensor& panel) {
  if (matrix.dtype == c10::CppTypeToScalarType<Acc>::value) {
    return {static_cast<const Acc*>(matrix.data), matrix.stride, matrix.transpose};
  }
  // The first block of a product is its largest.
  if (!panel.defined()) panel = scratch({matrix.rows * matrix.columns}, c10::CppTypeToScalarType<Acc>::value);
  Acc* target = panel.data_ptr<Acc>();
  widen_rows(matrix, target, matrix.columns);
  return {target, std::max<std::int64_t>(matrix.columns, 1), matrix.transpose};
}

// c (+)= op(a) · op(b), all of type Acc.
template <typename Acc>
void multiply_same_type(const Matrix& a, const Matrix& b, const Matrix& c, std::int64_t depth, Write write) {
  Tensor unused;
  blas_gemm<Acc>(c.rows, c.columns, depth, widened<Acc>(a, unused), widened<Acc>(b, unused),
                 write == Write::kAccumulate ? Acc{1} : Acc{0}, static_cast<Acc*>(c.data), c.stride);
}

// c (+)= op(a) · op(b) where some are bf16 or fp16: widened block by block, summed in fp32, rounded once.
void multiply_mixed(const Matrix& a, const Matrix& b, const Matrix& c, std::int64_t depth, Write write) {
  Tensor a_panel;
  Tensor b_panel;
  Tensor c_panel;
  const bool c_is_float = c.dtype == at::kFloat;
  if (!c_is_float) {
    c_panel = scratch({std::min(c.rows, kPanelRows) * std::min(c.columns, kPanelRows)}, at::kFloat);
  }
  for (std::int64_t column = 0; column < c.columns; column += kPanelRows) {
    const std::int64_t columns = std::min(kPanelRows, c.columns - column);
    for (std::int64_t row = 0; row < c.rows; row += kPanelRows) {
      const std::int64_t rows = std::min(kPanelRows, c.rows - row);
      const Matrix target = c.block(row, rows, column, columns);
      float* sum = c_is_float ? static_cast<float*>(target.data) : c_panel.data_ptr<float>();
      const std::int64_t sum_stride = c_is_float ? target.stride : columns;
      if (!c_is_float && write == Write::kAccumulate) {
        widen_rows(target, sum, sum_stride);
      }
      for (std::int64_t k = 0; k < depth; k += kPanelDepth) {
        const std::int64_t block_depth = std::min(kPanelDepth, depth - k);
        const float beta = k > 0 || write == Write::kAccumulate ? 1.0F : 0.0F;
        blas_gemm<float>(rows, columns, block_depth, widened<float>(a.op_block(row, rows, k, block_depth), a_panel),
                         widened<float>(b.op_block(k, block_depth, column, columns), b_panel), beta, sum, sum_stride);
      }
      if (!c_is_float) {
        narrow_rows(sum, sum_stride, target);
      }
    }
  }
}

/// c (+)= op(a) · op(b).
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, Write write) {
  const std::int64_t depth = a.transpose == Transpose::kNo ? a.columns : a.rows;
  if (c.rows == 0 || c.columns == 0) return;
  if (a.dtype == at::kDouble) return multiply_same_type<double>(a, b, c, depth, write);
  if (a.dtype == at::kFloat && b.dtype == at::kFloat && c.dtype == at::kFloat) {
    return multiply_same_type<float>(a, b, c, depth, write);
  }
  multiply_mixed(a, b, c, depth, write);
}

void check_types(const Tensor& a, const Tensor& b, const Tensor& c) {
  for (const Tensor* x : {&a, &b, &c}) {
    const at::ScalarType dtype = x->scalar_type();
    PRIMUS_CHECK(dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
                 "gemm: element type {} is not supported", c10::toString(dtype));
    PRIMUS_CHECK((dtype == at::kDouble) == (a.scalar_type() == at::kDouble), "gemm: fp64 does not mix with others");
  }
}

void check_main_grad(const Tensor& main_grad, const Tensor& dy) {
  PRIMUS_CHECK(main_grad.scalar_type() == accumulator_type(dy.scalar_type()), "gemm: main gradient of type {}",
               c10::toString(main_grad.scalar_type()));
}

void check_offsets(const Tensor& offsets, std::int64_t experts) {
  PRIMUS_CHECK(offsets.scalar_type() == at::kInt && offsets.is_contiguous() && offsets.numel() == experts + 1,
               "gemm: offsets must be int32 [{}], contiguous", experts + 1);
}

// Rows of each expert; the offsets are read once, on the host.
class Groups {
 public:
  Groups(const Tensor& offsets, std::int64_t experts, std::int64_t capacity) : experts_(experts) {
    check_offsets(offsets, experts);
    offsets_ = offsets.data_ptr<int>();
    PRIMUS_CHECK(offsets_[0] == 0 && offsets_[experts] <= capacity, "gemm: offsets end at {} of {} rows",
                 offsets_[experts], capacity);
    for (std::int64_t e = 0; e < experts; ++e) {
      PRIMUS_CHECK(offsets_[e] <= offsets_[e + 1], "gemm: offsets of expert {} decrease", e);
    }
  }

  std::int64_t experts() const { return experts_; }
  std::int64_t begin(std::int64_t expert) const { return offsets_[expert]; }
  std::int64_t rows(std::int64_t expert) const { return offsets_[expert + 1] - offsets_[expert]; }
  std::int64_t total() const { return offsets_[experts_]; }

 private:
  const int* offsets_;
  std::int64_t experts_;
};

void zero_empty(const Groups& groups, Tensor& main_grad_EOI) {
  for (std::int64_t e = 0; e < groups.experts(); ++e) {
    if (groups.rows(e) == 0) main_grad_EOI[e].zero_();
  }
}

void check_experts(const Tensor& w_EOI) {
  PRIMUS_CHECK(w_EOI.dim() == 3 && w_EOI.is_contiguous(), "gemm: expert matrices must be contiguous");
}

// to[group] = from[group] · op(w[e]): threads share the rows evenly, so one full group is split like many small ones.
void multiply_groups(const Matrix& from, const Tensor& w_EOI, Transpose transpose, const Groups& groups,
                     const Matrix& to) {
  at::parallel_for(0, groups.total(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t e = 0; e < groups.experts(); ++e) {
      const std::int64_t first = std::max(begin, groups.begin(e));
      const std::int64_t count = std::min(end, groups.begin(e) + groups.rows(e)) - first;
      if (count <= 0) continue;
      Matrix weight = expert_matrix(w_EOI, e);
      weight.transpose = transpose;
      multiply(from.rows_from(first, count), weight, to.rows_from(first, count), Write::kOverwrite);
    }
  });
}

}  // namespace

void linear_forward(const Tensor& x_TI, const Tensor& w_OI, Tensor& y_TO, Write write) {
  const ZoneScope zone(Zone::kLinearForward);
  check_types(x_TI, w_OI, y_TO);
  const Matrix x = as_matrix(x_TI, "x");
  const Matrix w = as_matrix(w_OI, "w");
  const Matrix y = as_matrix(y_TO, "y");
  PRIMUS_CHECK(x.rows == y.rows && x.columns == w.columns && w.rows == y.columns, "linear_forward: shapes differ");
  if (x_TI.is_cuda()) return cuda_ops().linear_forward(x_TI, w_OI, y_TO, write);
  multiply(x, w.transposed(), y, write);
}

void linear_dgrad(const Tensor& dy_TO, const Tensor& w_OI, Tensor& dx_TI, Write write) {
  const ZoneScope zone(Zone::kLinearDgrad);
  check_types(dy_TO, w_OI, dx_TI);
  const Matrix dy = as_matrix(dy_TO, "dy");
  const Matrix w = as_matrix(w_OI, "w");
  const Matrix dx = as_matrix(dx_TI, "dx");
  PRIMUS_CHECK(dy.rows == dx.rows && dy.columns == w.rows && w.columns == dx.columns, "linear_dgrad: shapes differ");
  if (dy_TO.is_cuda()) return cuda_ops().linear_dgrad(dy_TO, w_OI, dx_TI, write);
  multiply(dy, w, dx, write);
}

void linear_wgrad(const Tensor& dy_TO, const Tensor& x_TI, Tensor& main_grad_OI, Write write) {
  const ZoneScope zone(Zone::kLinearWgrad);
  check_types(dy_TO, x_TI, main_grad_OI);
  check_main_grad(main_grad_OI, dy_TO);
  const Matrix dy = as_matrix(dy_TO, "dy");
  const Matrix x = as_matrix(x_TI, "x");
  const Matrix grad = as_matrix(main_grad_OI, "main_grad");
  PRIMUS_CHECK(dy.rows == x.rows && dy.columns == grad.rows && x.columns == grad.columns,
               "linear_wgrad: shapes differ");
  if (dy_TO.is_cuda()) return cuda_ops().linear_wgrad(dy_TO, x_TI, main_grad_OI, write);
  if (dy.rows > 0) return multiply(dy.transposed(), x, grad, write);
  if (write == Write::kOverwrite) main_grad_OI.zero_();
}

void grouped_linear_forward(const Tensor& x_RI, const Tensor& w_EOI, const Tensor& offsets, Tensor& y_RO) {
  const ZoneScope zone(Zone::kGroupedForward);
  check_types(x_RI, w_EOI, y_RO);
  check_experts(w_EOI);
  const Matrix x = as_matrix(x_RI, "x");
  const Matrix y = as_matrix(y_RO, "y");
  PRIMUS_CHECK(x.rows == y.rows && x.columns == w_EOI.size(2) && y.columns == w_EOI.size(1),
               "grouped_linear_forward: shapes differ");
  if (x_RI.is_cuda()) {
    check_offsets(offsets, w_EOI.size(0));
    return cuda_ops().grouped_linear_forward(x_RI, w_EOI, offsets, y_RO);
  }
  multiply_groups(x, w_EOI, Transpose::kYes, Groups(offsets, w_EOI.size(0), x.rows), y);
}

void grouped_linear_dgrad(const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& offsets, Tensor& dx_RI) {
  const ZoneScope zone(Zone::kGroupedDgrad);
  check_types(dy_RO, w_EOI, dx_RI);
  check_experts(w_EOI);
  const Matrix dy = as_matrix(dy_RO, "dy");
  const Matrix dx = as_matrix(dx_RI, "dx");
  PRIMUS_CHECK(dy.rows == dx.rows && dy.columns == w_EOI.size(1) && dx.columns == w_EOI.size(2),
               "grouped_linear_dgrad: shapes differ");
  if (dy_RO.is_cuda()) {
    check_offsets(offsets, w_EOI.size(0));
    return cuda_ops().grouped_linear_dgrad(dy_RO, w_EOI, offsets, dx_RI);
  }
  multiply_groups(dy, w_EOI, Transpose::kNo, Groups(offsets, w_EOI.size(0), dy.rows), dx);
}

namespace {

struct WgradOperands {
  Matrix dy, x;
};

WgradOperands wgrad_operands(const Tensor& dy_RO, const Tensor& x_RI, const Tensor& offsets,
                             const Tensor& main_grad_EOI) {
  check_types(dy_RO, x_RI, main_grad_EOI);
  check_main_grad(main_grad_EOI, dy_RO);
  check_experts(main_grad_EOI);
  const WgradOperands operands{as_matrix(dy_RO, "dy"), as_matrix(x_RI, "x")};
  PRIMUS_CHECK(operands.dy.rows == operands.x.rows && operands.dy.columns == main_grad_EOI.size(1) &&
                   operands.x.columns == main_grad_EOI.size(2),
               "grouped_linear_wgrad: shapes differ");
  if (dy_RO.is_cuda()) check_offsets(offsets, main_grad_EOI.size(0));
  return operands;
}

}  // namespace

void grouped_linear_wgrad(const Tensor& dy_RO, const Tensor& x_RI, const Tensor& offsets, Tensor& main_grad_EOI,
                          Write write) {
  const ZoneScope zone(Zone::kGroupedWgrad);
  const auto [dy, x] = wgrad_operands(dy_RO, x_RI, offsets, main_grad_EOI);
  if (dy_RO.is_cuda()) {
    return cuda_ops().grouped_linear_wgrad(dy_RO, x_RI, offsets, main_grad_EOI, write);
  }
  const Groups groups(offsets, main_grad_EOI.size(0), x.rows);
  if (write == Write::kOverwrite) zero_empty(groups, main_grad_EOI);
  const std::int64_t outputs = dy.columns;
  // Work is counted in (row of x, row of the gradient) pairs and shared evenly: at each border between two threads at
  // most one expert's gradient is cut, between two of its rows.
  at::parallel_for(0, groups.total() * outputs, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t e = 0; e < groups.experts(); ++e) {
      const std::int64_t rows = groups.rows(e);
      if (rows == 0) continue;
      const auto gradient_row = [&](std::int64_t work) {
        return std::clamp<std::int64_t>((work - groups.begin(e) * outputs + rows - 1) / rows, 0, outputs);
      };
      const std::int64_t first = gradient_row(begin);
      const std::int64_t count = gradient_row(end) - first;
      if (count <= 0) continue;
      const Matrix dy_group = dy.block(groups.begin(e), rows, first, count);
      const Matrix x_group = x.rows_from(groups.begin(e), rows);
      multiply(dy_group.transposed(), x_group, expert_matrix(main_grad_EOI, e).rows_from(first, count), write);
    }
  });
}

void grouped_linear_wgrad_squares(const Tensor& dy_RO, const Tensor& x_RI, const Tensor& offsets, Tensor& main_grad_EOI,
                                  Tensor& square_sum_1) {
  if (x_RI.is_cuda()) {
    const ZoneScope zone(Zone::kGroupedWgrad);
    wgrad_operands(dy_RO, x_RI, offsets, main_grad_EOI);
    return cuda_ops().grouped_linear_wgrad_squares(dy_RO, x_RI, offsets, main_grad_EOI, square_sum_1);
  }
  grouped_linear_wgrad(dy_RO, x_RI, offsets, main_grad_EOI, Write::kOverwrite);
  add_sum_of_squares(main_grad_EOI, square_sum_1);
}

}  // namespace primus::ops
