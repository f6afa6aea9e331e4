#pragma once
// Token look-up. Legend: T tokens, V padded vocabulary, H hidden. ids: int64, each in [0, V): InternalError otherwise
// (on a GPU the kernel ends, and the runtime's next call reports it).
#include "ops/dtype.hpp"

namespace primus::ops {

/// x_TH[t] = w_VH[ids[t]].
void embedding_forward(const Tensor& ids_T, const Tensor& w_VH, Tensor& x_TH);

/// main_grad_VH[ids[t]] += dx_TH[t], bit-equal from run to run: on a CPU in the order of t, on a GPU in fixed parts.
void embedding_backward(const Tensor& ids_T, const Tensor& dx_TH, Tensor& main_grad_VH);

}  // namespace primus::ops
