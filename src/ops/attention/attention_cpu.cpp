#include "ops/attention/attention.hpp"

#include "ops/attention/attention_backward.hpp"
#include "ops/attention/attention_forward.hpp"
#include "ops/cuda_ops.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

bool is_empty(const attention::Sizes& sizes) {
  return sizes.batch == 0 || sizes.sequence == 0 || sizes.heads == 0;
}

}  // namespace

void attention_forward(const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV, double scale,
                       Tensor& context_BSAV, Tensor& lse_BAS) {
  const ZoneScope zone(Zone::kAttentionForward);
  const attention::Sizes sizes = attention::sizes_of(q_BSAD, k_BSGD, v_BSGV, lse_BAS);
  if (q_BSAD.is_cuda()) {
    return cuda_ops().attention_forward(q_BSAD, k_BSGD, v_BSGV, scale, context_BSAV, lse_BAS);
  }
  dispatch_floating(q_BSAD.scalar_type(), "attention_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    attention::Forward<T> forward(sizes, q_BSAD, k_BSGD, v_BSGV, scale, context_BSAV, lse_BAS);
    if (!is_empty(sizes)) forward.run();
  });
}

void attention_backward(const Tensor& dcontext_BSAV, const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV,
                        const Tensor& context_BSAV, const Tensor& lse_BAS, double scale, Tensor& dq_BSAD,
                        Tensor& dk_BSGD, Tensor& dv_BSGV) {
  const ZoneScope zone(Zone::kAttentionBackward);
  const attention::Sizes sizes = attention::sizes_of(q_BSAD, k_BSGD, v_BSGV, lse_BAS);
  if (q_BSAD.is_cuda()) {
    return cuda_ops().attention_backward(dcontext_BSAV, q_BSAD, k_BSGD, v_BSGV, context_BSAV, lse_BAS, scale, dq_BSAD,
                                         dk_BSGD, dv_BSGV);
  }
  dispatch_floating(q_BSAD.scalar_type(), "attention_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const attention::BackwardTensors tensors{dcontext_BSAV, q_BSAD,  k_BSGD,  v_BSGV, context_BSAV,
                                             lse_BAS,       dq_BSAD, dk_BSGD, dv_BSGV};
    attention::Backward<T> backward(sizes, tensors, scale);
    if (!is_empty(sizes)) backward.run();
  });
}

}  // namespace primus::ops
