#include "ops/attention/attention.hpp"

#include "ops/attention/attention_backward.hpp"
#include "ops/attention/attention_forward.hpp"
#include "ops/cuda_ops.hpp"
#include "ops/not_on_gpu.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

bool is_empty(const attention::Sizes& sizes) {
  return sizes.batch == 0 || sizes.sequence == 0 || sizes.heads == 0;
}

/// Σ_s exp(sink − lse) · (dcontext · context) of one head of one sequence, in the order of the sequence.
template <typename T>
acc_t<T> sink_share(const attention::Heads<T>& dcontext, const attention::Heads<T>& context, std::int64_t batch,
                    std::int64_t head, const attention::Sizes& sizes, const acc_t<T>* lse, acc_t<T> sink) {
  using Acc = acc_t<T>;
  Acc sum = 0;
  for (std::int64_t s = 0; s < sizes.sequence; ++s) {
    const T* left = dcontext.at(batch, head) + s * dcontext.stride;
    const T* right = context.at(batch, head) + s * context.stride;
    Acc dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t v = 0; v < sizes.value_size; ++v) dot += static_cast<Acc>(left[v]) * static_cast<Acc>(right[v]);
    sum += std::exp(sink - lse[s]) * dot;
  }
  return sum;
}

template <typename T>
void sink_backward(const attention::Sizes& sizes, const Tensor& dcontext_BSAV, const Tensor& context_BSAV,
                   const Tensor& lse_BAS, const Tensor& sink_A, Tensor& main_grad_A) {
  using Acc = acc_t<T>;
  const auto dcontext = attention::as_heads<T>(dcontext_BSAV, sizes, sizes.heads, sizes.value_size, "dcontext");
  const auto context = attention::as_heads<T>(context_BSAV, sizes, sizes.heads, sizes.value_size, "context");
  const Acc* sinks = attention::sink_data<Acc>(sizes, sink_A);
  const Acc* lse = lse_BAS.data_ptr<Acc>();
  const Tensor shares_BA = attention::scratch<Acc>(sizes.batch, sizes.heads);
  Acc* shares = shares_BA.data_ptr<Acc>();
  for_each_unit(sizes.batch * sizes.heads, [&](std::int64_t, std::int64_t unit) {
    const std::int64_t head = unit % sizes.heads;
    shares[unit] =
        sink_share<T>(dcontext, context, unit / sizes.heads, head, sizes, lse + unit * sizes.sequence, sinks[head]);
  });
  Acc* gradient = main_grad_A.data_ptr<Acc>();
  for (std::int64_t unit = 0; unit < sizes.batch * sizes.heads; ++unit) gradient[unit % sizes.heads] -= shares[unit];
}

}  // namespace

void attention_forward(const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV,
                       const AttentionOptions& options, Tensor& context_BSAV, Tensor& lse_BAS) {
  const ZoneScope zone(Zone::kAttentionForward);
  const attention::Sizes sizes = attention::sizes_of(q_BSAD, k_BSGD, v_BSGV, lse_BAS);
  if (q_BSAD.is_cuda()) {
    if (options.dropout.probability > 0.0) throw_not_on_gpu("attention_dropout");
    if (options.selected_BSW.defined()) throw_not_on_gpu("experimental_attention_variant");
    return cuda_ops().attention_forward(q_BSAD, k_BSGD, v_BSGV, options, context_BSAV, lse_BAS);
  }
  dispatch_floating(q_BSAD.scalar_type(), "attention_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    attention::Forward<T> forward(sizes, q_BSAD, k_BSGD, v_BSGV, options, context_BSAV, lse_BAS);
    if (!is_empty(sizes)) forward.run();
  });
}

void attention_backward(const Tensor& dcontext_BSAV, const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV,
                        const Tensor& context_BSAV, const Tensor& lse_BAS, const AttentionOptions& options,
                        Tensor& dq_BSAD, Tensor& dk_BSGD, Tensor& dv_BSGV) {
  const ZoneScope zone(Zone::kAttentionBackward);
  const attention::Sizes sizes = attention::sizes_of(q_BSAD, k_BSGD, v_BSGV, lse_BAS);
  if (q_BSAD.is_cuda()) {
    return cuda_ops().attention_backward(dcontext_BSAV, q_BSAD, k_BSGD, v_BSGV, context_BSAV, lse_BAS, options, dq_BSAD,
                                         dk_BSGD, dv_BSGV);
  }
  dispatch_floating(q_BSAD.scalar_type(), "attention_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const attention::BackwardTensors tensors{dcontext_BSAV, q_BSAD,  k_BSGD,  v_BSGV, context_BSAV,
                                             lse_BAS,       dq_BSAD, dk_BSGD, dv_BSGV};
    attention::Backward<T> backward(sizes, tensors, options);
    if (!is_empty(sizes)) backward.run();
  });
}

void attention_sink_backward(const Tensor& dcontext_BSAV, const Tensor& context_BSAV, const Tensor& lse_BAS,
                             const Tensor& sink_A, Tensor& main_grad_A) {
  const ZoneScope zone(Zone::kAttentionBackward);
  const attention::Sizes sizes = attention::sizes_of(context_BSAV, context_BSAV, context_BSAV, lse_BAS);
  PRIMUS_CHECK(main_grad_A.sizes() == sink_A.sizes() && main_grad_A.scalar_type() == sink_A.scalar_type(),
               "attention: main gradient of the sinks");
  if (context_BSAV.is_cuda()) {
    return cuda_ops().attention_sink_backward(dcontext_BSAV, context_BSAV, lse_BAS, sink_A, main_grad_A);
  }
  dispatch_floating(context_BSAV.scalar_type(), "attention_sink_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    sink_backward<T>(sizes, dcontext_BSAV, context_BSAV, lse_BAS, sink_A, main_grad_A);
  });
}

}  // namespace primus::ops
