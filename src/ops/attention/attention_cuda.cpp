// cuDNN's fused attention, for plain causal attention in bf16 and the head sizes that it takes, where the run wants it;
// elsewhere (windows, documents, sinks, bounded scores; fp32, which only tests use; odd head sizes, single tokens, a
// build without cuDNN's headers) attention_plain: the same sums through matrix products in blocks of queries.
#include "ops/attention/attention_plain.hpp"
#include "ops/cuda_table.hpp"
#include "ops/gpu/device.hpp"
#ifdef PRIMUS_HAS_CUDNN
#include "ops/attention/attention_cudnn.hpp"
#endif

namespace primus::ops::cuda {
namespace {

using at::Tensor;

#ifdef PRIMUS_HAS_CUDNN
bool is_fused(const Tensor& q_BSAD, const Tensor& v_BSGV, const AttentionOptions& options) {
  return gpu::kernel_families().attention == KernelFamilies::Attention::kFused && fits_cudnn(q_BSAD, v_BSGV, options);
}
#endif

void forward(const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV, const AttentionOptions& options,
             Tensor& context_BSAV, Tensor& lse_BAS) {
  if (context_BSAV.numel() == 0) return;
#ifdef PRIMUS_HAS_CUDNN
  if (is_fused(q_BSAD, v_BSGV, options)) {
    return attention_cudnn_forward(q_BSAD, k_BSGD, v_BSGV, options.scale, context_BSAV, lse_BAS);
  }
#endif
  attention_plain_forward(q_BSAD, k_BSGD, v_BSGV, options, context_BSAV, lse_BAS);
}

void backward(const Tensor& dcontext_BSAV, const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV,
              const Tensor& context_BSAV, const Tensor& lse_BAS, const AttentionOptions& options, Tensor& dq_BSAD,
              Tensor& dk_BSGD, Tensor& dv_BSGV) {
  if (context_BSAV.numel() == 0) return;
#ifdef PRIMUS_HAS_CUDNN
  if (is_fused(q_BSAD, v_BSGV, options)) {
    return attention_cudnn_backward(
        {dcontext_BSAV, q_BSAD, k_BSGD, v_BSGV, context_BSAV, lse_BAS, dq_BSAD, dk_BSGD, dv_BSGV}, options.scale);
  }
#endif
  attention_plain_backward({dcontext_BSAV, q_BSAD, k_BSGD, v_BSGV, context_BSAV, lse_BAS, dq_BSAD, dk_BSGD, dv_BSGV},
                           options);
}

}  // namespace

void register_attention(CudaOps& ops) {
  ops.attention_forward = forward;
  ops.attention_backward = backward;
  ops.attention_sink_backward = attention_plain_sink_backward;
}

}  // namespace primus::ops::cuda
