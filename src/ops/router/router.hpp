#pragma once
// Top-k routing and its losses, Megatron's semantics (kernels.md section 4).
// Legend: T tokens, B sequences of the micro-batch, S = T/B, E experts, K top_k, G = num_slopes() (B or 1), n tokens
// that are routed. All values fp32 or all fp64, counts apart.
#include "ops/dtype.hpp"
#include "ops/router/router_options.hpp"

namespace primus::ops {

struct RouterInput {
  Tensor logits_TE;
  Tensor bias_E;         // added to scores for the choice alone (kQuantile: taken from logits); undefined: zero
  Tensor is_routed_T;    // bool; false: filling, which is neither routed nor counted. Undefined: all are routed
  Tensor chosen_TK;      // int32, with kGiven: each token's experts, no one twice
  Tensor num_earlier_E;  // int64, for global_aux_loss: num_balance_E of the step's earlier micro-batches, added up
  std::int64_t num_earlier_batches = 0;
};

struct RouterOutput {
  Tensor index_TK;       // int32, by falling value of choice (ties: lower index first); −1 for filling
  Tensor prob_TK;        // 0 for filling
  Tensor num_tokens_E;   // int32, choices of each expert
  Tensor num_balance_E;  // int32, with global_aux_loss: tokens whose plain top k of the scores holds the expert
  Tensor loss_4;         // aux, seq_aux, global_aux and z loss, coefficients included
  Tensor slope_GE;       // with a balancing loss: d (their sum) / d P_te of every token of a group
  Tensor quantile_E;     // with kQuantile: the bias that would give every expert of this micro-batch T·K/E tokens
};

/// Routes a micro-batch into the tensors of `output`, which the caller allocated (those not asked for: undefined).
/// P_te is the softmax over E, or score / (Σ_E score + 1e-20). The balancing losses are c·E/(k·n²)·Σ_e P_e·n_e over the
/// micro-batch (aux), each sequence (seq_aux, then the mean over B), or with n_e the mean over the step's micro-batches
/// so far (global_aux); n_e counts the plain top k of the scores, without bias and groups (forced balance: the
/// choices). z: c · mean_t logsumexp²(l_t).
/// A routed token without a softmax (NaN, +inf): a NonFiniteError that names the first; on a GPU, where throwing would
/// wait, NaN probabilities for experts 0 .. K−1, so that the step's loss is NaN.
void router_forward(const RouterInput& input, const RouterOptions& options, RouterOutput& output);

/// dlogits_TE from dprob_TK and the losses' own gradients times `loss_scale`. Reads index, prob and slope of `output`;
/// of `input` only the logits.
void router_backward(const RouterInput& input, const RouterOutput& output, const Tensor& dprob_TK,
                     const RouterOptions& options, double loss_scale, Tensor& dlogits_TE);

/// Places in loss_4.
struct RouterLoss {
  enum : int { kAux, kSeqAux, kGlobalAux, kZ };
  static constexpr int kNum = 4;
};

}  // namespace primus::ops
