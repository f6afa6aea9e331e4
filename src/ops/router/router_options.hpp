#pragma once
// What the router's contract and its kernels both speak of; without torch headers.
#include <cstdint>

namespace primus::ops {

/// How a logit l becomes a score. kSigmoid and kSqrtSoftplus (sqrt(ln(1 + e^l))) look at one expert at a time.
enum class ScoreFunction { kSoftmax, kSigmoid, kSqrtSoftplus };

/// Of the softmax score.
enum class SoftmaxOrder {
  kPre,   // softmax over E, choose the top k of it, no renormalisation
  kPost,  // choose the top k logits, softmax over the chosen (equals pre-softmax with renormalisation)
};

enum class Selection {
  kTopK,
  // Choice k of token t is expert (t·K + k) mod E, whatever the logits: every expert gets T·K/E tokens, give or take
  // one. Probabilities and gradients are those of the chosen. For benchmarks.
  kForcedBalance,
  // The top k of the logits after Sinkhorn's normalisation over tokens and experts, which spreads the tokens evenly.
  kSinkhorn,
  // The top k of logit − bias, where the bias is a quantile that gives every expert its share (RouterOutput).
  kQuantile,
  // The experts that the caller names (RouterInput::chosen_TK), whatever the logits; these still weigh them.
  kGiven,
};

/// Score of a group of experts: its best expert's, or the sum of its best max(1, top_k / group_top_k) ones.
enum class GroupScore { kMax, kSumOfBest };

struct RouterOptions {
  std::int64_t top_k = 1;
  ScoreFunction score_function = ScoreFunction::kSoftmax;
  SoftmaxOrder softmax_order = SoftmaxOrder::kPre;
  double scaling_factor = 1.0;
  Selection selection = Selection::kTopK;
  std::int64_t num_groups = 1;  // of E / num_groups neighbouring experts; 1: no limit
  std::int64_t group_top_k = 1;
  GroupScore group_score = GroupScore::kSumOfBest;
  double logit_softcap = 0.0;  // c · tanh(l / c) takes the place of every logit l; 0: not
  // Coefficients of the losses; 0: without that loss.
  double aux_loss = 0.0;
  double seq_aux_loss = 0.0;
  double global_aux_loss = 0.0;
  double z_loss = 0.0;
  std::int64_t num_sequences = 1;  // B, for the sequence-level loss

  bool has_balance_loss() const { return aux_loss != 0.0 || seq_aux_loss != 0.0 || global_aux_loss != 0.0; }
  /// Rows of the slopes: sequences, or the micro-batch as one.
  std::int64_t num_slopes() const { return seq_aux_loss != 0.0 ? num_sequences : 1; }
  /// Are the chosen experts those of the plain top k of the scores, which the balancing losses count?
  bool counts_choices(bool has_bias) const {
    return selection == Selection::kForcedBalance || (selection == Selection::kTopK && num_groups == 1 && !has_bias);
  }
};

/// E / (k · n²): the factor of Σ_e P_e · n_e over n tokens, before the coefficient.
inline double balance_factor(std::int64_t experts, std::int64_t top_k, std::int64_t tokens) {
  if (tokens == 0) return 0.0;
  const auto n = static_cast<double>(tokens);
  return static_cast<double>(experts) / (static_cast<double>(top_k) * n * n);
}

}  // namespace primus::ops
