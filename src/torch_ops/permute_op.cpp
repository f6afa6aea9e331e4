#include "ops/permute/permute.hpp"

#include "torch_ops/arguments.hpp"
#include "torch_ops/ops.hpp"

namespace primus::torch_ops {

std::tuple<Tensor, Tensor, Tensor> permute_plan(const Tensor& index_TK, std::int64_t num_experts) {
  require_device(index_TK);
  const Tensor index = checked(index_TK, {"permute_plan", "index", Kind::kInt32, {-1, -1}});
  if (num_experts < 1)
    throw UserError(fmt::format("primus::permute_plan: num_experts: expected at least 1, found {}", num_experts));
  Tensor offsets = at::empty({num_experts + 1}, index.options());
  Tensor row_of = at::empty_like(index);
  Tensor slot_of = at::empty({index.numel()}, index.options());
  ops::permute_plan(index, num_experts, offsets, row_of, slot_of);
  return {offsets, row_of, slot_of};
}

Tensor permute(const Tensor& x_TH, const Tensor& row_of_TK) {
  require_device(x_TH);
  require_same_device("permute", x_TH, row_of_TK);
  const Tensor x = checked(x_TH, {"permute", "x", Kind::kFloating, {row_of_TK.size(0), -1}});
  const Tensor row_of = checked(row_of_TK, {"permute", "row_of", Kind::kInt32, {-1, -1}});
  Tensor x_RH = at::zeros({row_of.numel(), x.size(1)}, x.options());
  ops::permute_rows(x, row_of, x_RH);
  return x_RH;
}

Tensor unpermute(const Tensor& y_RH, const Tensor& row_of_TK) {
  require_device(y_RH);
  require_same_device("unpermute", y_RH, row_of_TK);
  const Tensor row_of = checked(row_of_TK, {"unpermute", "row_of", Kind::kInt32, {-1, -1}});
  const Tensor y = checked(y_RH, {"unpermute", "y", Kind::kFloating, {row_of.numel(), -1}});
  Tensor y_TH = at::empty({row_of.size(0), y.size(1)}, y.options());
  ops::unpermute_sum(y, row_of, y_TH, ops::Write::kOverwrite);
  return y_TH;
}

Tensor permute_probs(const Tensor& prob_TK, const Tensor& slot_of_R) {
  require_device(prob_TK);
  require_same_device("permute_probs", prob_TK, slot_of_R);
  const Tensor prob = checked(prob_TK, {"permute_probs", "prob", Kind::kStatistics, {-1, -1}});
  const Tensor slot_of = checked(slot_of_R, {"permute_probs", "slot_of", Kind::kInt32, {prob.numel()}});
  Tensor prob_R = at::empty({slot_of.numel()}, prob.options());
  ops::permute_values(prob, slot_of, prob_R);
  return prob_R;
}

Tensor unpermute_probs(const Tensor& prob_R, const Tensor& row_of_TK) {
  require_device(prob_R);
  require_same_device("unpermute_probs", prob_R, row_of_TK);
  const Tensor row_of = checked(row_of_TK, {"unpermute_probs", "row_of", Kind::kInt32, {-1, -1}});
  const Tensor prob = checked(prob_R, {"unpermute_probs", "prob", Kind::kStatistics, {row_of.numel()}});
  Tensor prob_TK = at::empty_like(row_of, prob.options());
  ops::unpermute_values(prob, row_of, prob_TK);
  return prob_TK;
}

}  // namespace primus::torch_ops
