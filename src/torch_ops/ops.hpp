#pragma once
// The functions behind torch.ops.primus. Each is functional: it returns new tensors and changes none of its arguments.
// docs/torch_ops.md says what each argument is.
// Legend: T tokens, E experts, K top_k, G slopes, R rows sorted by expert (T·K), H hidden, F ffn width, V vocabulary.
#include <tuple>

#include "ops/dtype.hpp"

namespace primus::torch_ops {

using at::Tensor;

/// prob_TK, index_TK, num_tokens_E, loss (one value), slope_GE. See ops/router/router.hpp.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> router(const Tensor& logits_TE, const std::optional<Tensor>& bias_E,
                                                          std::int64_t top_k, std::string_view score_function,
                                                          bool use_pre_softmax, double scaling_factor,
                                                          std::int64_t num_groups, std::int64_t group_topk,
                                                          double aux_loss_coeff, double z_loss_coeff);

/// dlogits_TE from dprob_TK and dloss; each may be absent, for zero.
Tensor router_backward(const std::optional<Tensor>& dprob_TK, const std::optional<Tensor>& dloss,
                       const Tensor& logits_TE, const Tensor& prob_TK, const Tensor& index_TK, const Tensor& slope_GE,
                       std::int64_t top_k, std::string_view score_function, bool use_pre_softmax, double scaling_factor,
                       std::int64_t num_groups, std::int64_t group_topk, double aux_loss_coeff, double z_loss_coeff);

/// offsets [E+1], row_of_TK, slot_of_R: int32. See ops/permute/permute.hpp.
std::tuple<Tensor, Tensor, Tensor> permute_plan(const Tensor& index_TK, std::int64_t num_experts);

/// x_RH: the tokens' rows by expert. Its backward is unpermute.
Tensor permute(const Tensor& x_TH, const Tensor& row_of_TK);

/// y_TH: the sum of each token's rows. Its backward is permute.
Tensor unpermute(const Tensor& y_RH, const Tensor& row_of_TK);

/// prob_R, in the rows' order, and back.
Tensor permute_probs(const Tensor& prob_TK, const Tensor& slot_of_R);
Tensor unpermute_probs(const Tensor& prob_R, const Tensor& row_of_TK);

/// y_RH = SwiGLU experts on sorted rows, prob_R applied before the down projection; and the pre-activation for
/// backward. w1_E2FH holds gate (first F) and up; w2_EHF.
std::tuple<Tensor, Tensor> grouped_mlp(const Tensor& x_RH, const Tensor& offsets, const Tensor& prob_R,
                                       const Tensor& w1_E2FH, const Tensor& w2_EHF);

/// dx_RH, dprob_R, dw1, dw2 (in the weights' types; added up in fp32).
std::tuple<Tensor, Tensor, Tensor, Tensor> grouped_mlp_backward(const Tensor& dy_RH, const Tensor& x_RH,
                                                                const Tensor& offsets, const Tensor& prob_R,
                                                                const Tensor& w1_E2FH, const Tensor& w2_EHF,
                                                                const Tensor& pre_R2F);

/// The mean loss of the tokens whose label is not ignore_index, and its gradients, all in one pass: logits of a chunk
/// of tokens are the most that exists. dx_TH in x's type, dw_VH in the weight's.
std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy(const Tensor& x_TH, const Tensor& w_VH, const Tensor& label_T,
                                                        std::int64_t ignore_index);

}  // namespace primus::torch_ops
