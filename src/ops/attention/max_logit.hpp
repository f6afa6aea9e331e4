#pragma once
// The largest attention logit of every head. Legend as in attention.hpp.
#include "ops/attention/attention.hpp"

namespace primus::ops {

/// max_A (fp32 or fp64) = max(max_A, scale · q·k over the pairs that see each other). The softcap does not count.
void attention_max_logit(const Tensor& q_BSAD, const Tensor& k_BSGD, const AttentionOptions& options, Tensor& max_A);

}  // namespace primus::ops
