#include "ops/cross_entropy/cross_entropy.hpp"

#include "torch_ops/arguments.hpp"
#include "torch_ops/ops.hpp"

namespace primus::torch_ops {

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy(const Tensor& x_TH, const Tensor& w_VH, const Tensor& label_T,
                                                        std::int64_t ignore_index) {
  const char* op = "linear_cross_entropy";
  require_device(x_TH);
  require_same_device(op, x_TH, w_VH);
  require_same_device(op, x_TH, label_T);
  const Tensor x = checked(x_TH, {op, "x", Kind::kFloating, {-1, -1}});
  const Tensor w = checked(w_VH, {op, "weight", Kind::kFloating, {-1, x.size(1)}});
  const Tensor label = checked(label_T, {op, "label", Kind::kInt64, {x.size(0)}});
  if (x.scalar_type() != w.scalar_type()) {
    throw UserError(fmt::format("primus::{}: x and weight must have one type, found {} and {}", op,
                                c10::toString(x.scalar_type()), c10::toString(w.scalar_type())));
  }
  const auto sums = x.options().dtype(ops::accumulator_type(x.scalar_type()));
  const Tensor counts_T = label.ne(ignore_index).to(sums.dtype());
  // No token that counts: 0/0, as torch.nn.functional.cross_entropy has it.
  const Tensor grad_T = counts_T.mul(counts_T.sum().reciprocal());
  Tensor loss_T = at::empty({x.size(0)}, sums);
  Tensor dx_TH = at::empty_like(x);
  Tensor dw_VH = at::zeros(w.sizes(), sums);
  ops::linear_cross_entropy(x, w, label.masked_fill(label.eq(ignore_index), 0), grad_T, 0, loss_T, dx_TH, dw_VH);
  return {loss_T.dot(grad_T), dx_TH, dw_VH.to(w.scalar_type())};
}

}  // namespace primus::torch_ops
