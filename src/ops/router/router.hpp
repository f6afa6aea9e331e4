#pragma once
// Top-k softmax routing and its auxiliary losses, Megatron's semantics (kernels.md section 4).
// Legend: T tokens, B sequences of the micro-batch, S = T/B, E experts, K top_k. All values fp32 (fp64 in fp64 tests).
#include "ops/dtype.hpp"
#include "ops/router/router_options.hpp"

namespace primus::ops {

/// From logits_TE: the chosen experts index_TK (int32, by falling score; ties: lower index first), their probabilities
/// prob_TK, each expert's number of tokens count_E (int32) and the auxiliary loss, coefficient included, as a tensor of
/// one element. aux and seq_aux: c·E/(k·n²)·Σ_e P_e·n_e over the n tokens of the micro-batch or of each sequence (then
/// the mean). Logits without a softmax (NaN, +inf): a NonFiniteError that names the first token; on a GPU, where
/// throwing would wait, NaN probabilities for experts 0 .. K−1, so that the step's loss is NaN.
void router_forward(const Tensor& logits_TE, const RouterOptions& options, Tensor& index_TK, Tensor& prob_TK,
                    Tensor& count_E, Tensor& aux_loss_1);

/// dlogits_TE from dprob_TK and the auxiliary loss's own gradient times `aux_scale`.
void router_backward(const Tensor& logits_TE, const Tensor& index_TK, const Tensor& prob_TK, const Tensor& dprob_TK,
                     const RouterOptions& options, double aux_scale, Tensor& dlogits_TE);

}  // namespace primus::ops
