#pragma once
// What the router's contract and its kernels both speak of; without torch headers.
#include <cstdint>

namespace primus::ops {

enum class SoftmaxOrder {
  kPre,   // softmax over E, choose the top k of it, no renormalisation
  kPost,  // choose the top k logits, softmax over the chosen (equals pre-softmax with renormalisation)
};

enum class Selection {
  kTopK,
  // Choice k of token t is expert (t·K + k) mod E, whatever the logits: every expert gets T·K/E tokens, give or take
  // one. Probabilities and gradients are those of the chosen. For benchmarks.
  kForcedBalance,
};

enum class AuxLossKind { kNone, kAux, kSeqAux };

struct RouterOptions {
  std::int64_t top_k = 1;
  SoftmaxOrder softmax_order = SoftmaxOrder::kPre;
  double scaling_factor = 1.0;
  Selection selection = Selection::kTopK;
  AuxLossKind aux_loss = AuxLossKind::kNone;
  double aux_loss_coefficient = 0.0;
  std::int64_t num_sequences = 1;  // B, for the sequence-level loss
};

/// c · E / (k · n²), and for sequences the mean over them: the factor of Σ_e P_e · n_e of one group of n tokens.
inline double auxiliary_factor(const RouterOptions& options, std::int64_t experts, std::int64_t tokens_per_group,
                               std::int64_t groups) {
  const auto n = static_cast<double>(tokens_per_group);
  return options.aux_loss_coefficient * static_cast<double>(experts) /
         (static_cast<double>(options.top_k) * n * n * static_cast<double>(groups));
}

}  // namespace primus::ops
