// cuDNN's fused attention through ATen, for plain causal attention in bf16 and the head sizes that it takes; elsewhere
// (windows, documents, sinks, bounded scores; fp32, which only tests use; odd head sizes, single tokens)
// attention_plain: the same sums through matrix products in blocks of queries.
// ATen's operators give outputs of their own, hence the copies, and its backward adds up dq in no fixed order: two runs
// may differ in the last bits.
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>

#include "ops/attention/attention_plain.hpp"
#include "ops/cuda_table.hpp"
#include "ops/gpu/device.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

using at::Tensor;

constexpr std::int64_t kHeadStep = 8;          // head sizes are multiples of it
constexpr std::int64_t kLargestHead = 128;     // of any pair of sizes
constexpr std::int64_t kLatentHead = 192;      // q and k of MLA, beside values of 128
constexpr std::int64_t kSmallestSequence = 2;  // its causal kernels refuse a single query

bool fits_cudnn(const Tensor& q_BSAD, const Tensor& v_BSGV, const AttentionOptions& options) {
  if (options.softcap > 0.0 || options.sink_A.defined() || options.first_key_BS.defined()) return false;
  if (options.window > 0 && options.window < q_BSAD.size(1)) return false;
  const std::int64_t query_size = q_BSAD.size(3);
  const std::int64_t value_size = v_BSGV.size(3);
  const bool sizes = (query_size <= kLargestHead && value_size <= kLargestHead) ||
                     (query_size == kLatentHead && value_size == kLargestHead);
  return q_BSAD.scalar_type() == at::kBFloat16 && gpu::device_info().compute_major >= 9 && sizes &&
         query_size % kHeadStep == 0 && value_size % kHeadStep == 0 && q_BSAD.size(1) >= kSmallestSequence;
}

/// cuDNN wants heads before the sequence: a view, whatever the strides.
Tensor by_heads(const Tensor& x_BSAD) {
  return x_BSAD.transpose(1, 2);
}

void forward(const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV, const AttentionOptions& options,
             Tensor& context_BSAV, Tensor& lse_BAS) {
  if (context_BSAV.numel() == 0) return;
  if (!fits_cudnn(q_BSAD, v_BSGV, options)) {
    return attention_plain_forward(q_BSAD, k_BSGD, v_BSGV, options, context_BSAV, lse_BAS);
  }
  const auto result = at::_scaled_dot_product_cudnn_attention(by_heads(q_BSAD), by_heads(k_BSGD), by_heads(v_BSGV), {},
                                                              true, 0.0, true, false, options.scale);
  context_BSAV.copy_(std::get<0>(result).transpose(1, 2));
  lse_BAS.copy_(std::get<1>(result).view(lse_BAS.sizes()));
}

void backward(const Tensor& dcontext_BSAV, const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV,
              const Tensor& context_BSAV, const Tensor& lse_BAS, const AttentionOptions& options, Tensor& dq_BSAD,
              Tensor& dk_BSGD, Tensor& dv_BSGV) {
  if (context_BSAV.numel() == 0) return;
  if (!fits_cudnn(q_BSAD, v_BSGV, options)) {
    return attention_plain_backward(
        {dcontext_BSAV, q_BSAD, k_BSGD, v_BSGV, context_BSAV, lse_BAS, dq_BSAD, dk_BSGD, dv_BSGV}, options);
  }
  const std::int64_t sequence = q_BSAD.size(1);
  // Of dropout, which is off.
  const Tensor unused = at::empty({}, q_BSAD.options().dtype(at::kLong));
  const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      by_heads(dcontext_BSAV), by_heads(q_BSAD), by_heads(k_BSGD), by_heads(v_BSGV), by_heads(context_BSAV),
      lse_BAS.unsqueeze(-1), unused, unused, {}, {}, {}, sequence, sequence, 0.0, true, options.scale);
  dq_BSAD.copy_(dq.transpose(1, 2));
  dk_BSGD.copy_(dk.transpose(1, 2));
  dv_BSGV.copy_(dv.transpose(1, 2));
}

}  // namespace

void register_attention(CudaOps& ops) {
  ops.attention_forward = forward;
  ops.attention_backward = backward;
  ops.attention_sink_backward = attention_plain_sink_backward;
}

}  // namespace primus::ops::cuda
