#include "ops/gemm/gemm.hpp"
#include "ops/swiglu/swiglu.hpp"
#include "torch_ops/arguments.hpp"
#include "torch_ops/ops.hpp"

namespace primus::torch_ops {
namespace {

struct Experts {
  Tensor x_RH;
  Tensor offsets;
  Tensor prob_R;
  Tensor w1_E2FH;
  Tensor w2_EHF;
};

Experts checked_experts(const char* op, const Tensor& x_RH, const Tensor& offsets, const Tensor& prob_R,
                        const Tensor& w1_E2FH, const Tensor& w2_EHF) {
  require_device(x_RH);
  for (const Tensor* tensor : {&offsets, &prob_R, &w1_E2FH, &w2_EHF}) require_same_device(op, x_RH, *tensor);
  Experts experts{.x_RH = checked(x_RH, {op, "x", Kind::kFloating, {-1, -1}})};
  const std::int64_t hidden = x_RH.size(1);
  experts.w2_EHF = checked(w2_EHF, {op, "w2", Kind::kFloating, {-1, hidden, -1}});
  const std::int64_t num_experts = w2_EHF.size(0);
  experts.w1_E2FH = checked(w1_E2FH, {op, "w1", Kind::kFloating, {num_experts, 2 * w2_EHF.size(2), hidden}});
  experts.offsets = checked(offsets, {op, "offsets", Kind::kInt32, {num_experts + 1}});
  experts.prob_R = checked(prob_R, {op, "prob", Kind::kStatistics, {x_RH.size(0)}});
  if (w1_E2FH.scalar_type() != x_RH.scalar_type() || w2_EHF.scalar_type() != x_RH.scalar_type()) {
    throw UserError(fmt::format("primus::{}: x, w1 and w2 must have one type, found {}, {} and {}", op,
                                c10::toString(x_RH.scalar_type()), c10::toString(w1_E2FH.scalar_type()),
                                c10::toString(w2_EHF.scalar_type())));
  }
  experts.prob_R = experts.prob_R.to(ops::accumulator_type(x_RH.scalar_type()));
  return experts;
}

/// Rows that hold a choice; the rest keeps what the caller put there.
Tensor num_rows(const Experts& experts) {
  return experts.offsets.narrow(0, experts.w2_EHF.size(0), 1);
}

}  // namespace

std::tuple<Tensor, Tensor> grouped_mlp(const Tensor& x_RH, const Tensor& offsets, const Tensor& prob_R,
                                       const Tensor& w1_E2FH, const Tensor& w2_EHF) {
  const Experts experts = checked_experts("grouped_mlp", x_RH, offsets, prob_R, w1_E2FH, w2_EHF);
  const std::int64_t rows = x_RH.size(0);
  Tensor pre_R2F = at::zeros({rows, w1_E2FH.size(1)}, experts.x_RH.options());
  ops::grouped_linear_forward(experts.x_RH, experts.w1_E2FH, experts.offsets, pre_R2F);
  Tensor activation_RF = at::empty({rows, w2_EHF.size(2)}, experts.x_RH.options());
  ops::swiglu_forward(pre_R2F, experts.prob_R, num_rows(experts), activation_RF);
  Tensor y_RH = at::zeros_like(experts.x_RH);
  ops::grouped_linear_forward(activation_RF, experts.w2_EHF, experts.offsets, y_RH);
  return {y_RH, pre_R2F};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> grouped_mlp_backward(const Tensor& dy_RH, const Tensor& x_RH,
                                                                const Tensor& offsets, const Tensor& prob_R,
                                                                const Tensor& w1_E2FH, const Tensor& w2_EHF,
                                                                const Tensor& pre_R2F) {
  const char* op = "grouped_mlp_backward";
  const Experts experts = checked_experts(op, x_RH, offsets, prob_R, w1_E2FH, w2_EHF);
  const Tensor dy = checked(dy_RH, {op, "dy", Kind::kFloating, x_RH.sizes().vec()}).to(x_RH.scalar_type());
  const auto sums = experts.x_RH.options().dtype(ops::accumulator_type(x_RH.scalar_type()));
  Tensor dactivation_RF = at::empty({x_RH.size(0), w2_EHF.size(2)}, experts.x_RH.options());
  ops::grouped_linear_dgrad(dy, experts.w2_EHF, experts.offsets, dactivation_RF);
  Tensor activation_RF = at::empty_like(dactivation_RF);
  Tensor dpre_R2F = at::empty_like(pre_R2F);
  Tensor dprob_R = at::zeros_like(experts.prob_R);
  ops::swiglu_backward(dactivation_RF, pre_R2F.contiguous(), experts.prob_R, num_rows(experts), dpre_R2F, dprob_R,
                       activation_RF);
  Tensor dw2 = at::empty(w2_EHF.sizes(), sums);
  ops::grouped_linear_wgrad(dy, activation_RF, experts.offsets, dw2, ops::Write::kOverwrite);
  Tensor dw1 = at::empty(w1_E2FH.sizes(), sums);
  ops::grouped_linear_wgrad(dpre_R2F, experts.x_RH, experts.offsets, dw1, ops::Write::kOverwrite);
  Tensor dx_RH = at::zeros_like(experts.x_RH);
  ops::grouped_linear_dgrad(dpre_R2F, experts.w1_E2FH, experts.offsets, dx_RH);
  return {dx_RH, dprob_R.to(prob_R.scalar_type()), dw1.to(w1_E2FH.scalar_type()), dw2.to(w2_EHF.scalar_type())};
}

}  // namespace primus::torch_ops
