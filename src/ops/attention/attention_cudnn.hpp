#pragma once
// cuDNN's fused attention as graphs of our own: it reads and writes the layers' tensors in place, whatever their
// strides.
#include "ops/attention/attention.hpp"

namespace primus::ops::cuda {

/// What attention's backward reads and writes; legend of attention.hpp.
struct CudnnGradients {
  const Tensor &dcontext_BSAV, &q_BSAD, &k_BSGD, &v_BSGV, &context_BSAV, &lse_BAS;
  Tensor &dq_BSAD, &dk_BSGD, &dv_BSGV;
};

/// Can cuDNN do it on this device: plain causal attention, bf16, Hopper or later, head sizes that its kernels have,
/// more than one query.
bool fits_cudnn(const Tensor& q_BSAD, const Tensor& v_BSGV, const AttentionOptions& options);

/// The contract of attention_forward.
void attention_cudnn_forward(const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV, double scale,
                             Tensor& context_BSAV, Tensor& lse_BAS);

/// The contract of attention_backward. dq is added up in a fixed order where gpu::determinism() asks for it.
void attention_cudnn_backward(const CudnnGradients& tensors, double scale);

}  // namespace primus::ops::cuda
