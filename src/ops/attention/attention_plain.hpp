#pragma once
// Causal attention through ATen's products: any device, element type and sizes; scores are held for a block of queries
// at a time. Correct rather than fast.
#include "ops/attention/attention.hpp"

namespace primus::ops {

void attention_plain_forward(const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV,
                             const AttentionOptions& options, Tensor& context_BSAV, Tensor& lse_BAS);

struct AttentionBackwardTensors {
  const Tensor &dcontext, &q, &k, &v, &context, &lse;
  Tensor &dq, &dk, &dv;
};
void attention_plain_backward(const AttentionBackwardTensors& tensors, const AttentionOptions& options);

void attention_plain_sink_backward(const Tensor& dcontext_BSAV, const Tensor& context_BSAV, const Tensor& lse_BAS,
                                   const Tensor& sink_A, Tensor& main_grad_A);

}  // namespace primus::ops
