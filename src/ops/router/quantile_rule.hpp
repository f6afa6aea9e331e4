#pragma once
// The expert bias from a quantile: histograms of routing margins over a step, and the bias that gives every expert its
// share of the tokens they count. Legend: T tokens, E experts, B bins.
#include "ops/dtype.hpp"
#include "ops/router/router_options.hpp"

namespace primus::ops {

struct MarginOptions {
  std::int64_t top_k = 1;
  ScoreFunction score_function = ScoreFunction::kSigmoid;  // of one expert at a time
  double logit_softcap = 0.0;
  double lowest = -1.0;  // margins outside count in the bins at the ends
  double highest = 1.0;
};

/// histogram_EB (int64, on the CPU) += 1 in the bin of each routed token's margin: its score less its (top_k + 1)-th
/// largest score + bias. is_routed_T undefined: every token.
void count_margins(const Tensor& logits_TE, const Tensor& bias_E, const Tensor& is_routed_T,
                   const MarginOptions& options, Tensor& histogram_EB);

/// bias_E (fp64): minus the (1 − top_k / E) quantile of each expert's margins, linear within its bin.
void quantile_bias(const Tensor& histogram_EB, const MarginOptions& options, Tensor& bias_E);

}  // namespace primus::ops
