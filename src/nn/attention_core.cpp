#include "nn/attention_core.hpp"

#include <ATen/ops/zeros.h>

#include "nn/rope_tables.hpp"
#include "ops/bias/bias.hpp"
#include "ops/gemm/gemm.hpp"

namespace primus::nn {
namespace {

std::string name_of(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.self_attention.{}", layer, part);
}

}  // namespace

AttentionCore::AttentionCore(const model::ModelSpec& spec, int layer, std::int64_t query_dim,
                             ParameterStore& parameters)
    : softmax_scale_(softmax_scale(spec.rope, query_dim)),
      window_(spec.window(layer)),
      softcap_(spec.attention_softcap),
      num_zero_sinks_(spec.zero_sink == model::Part::kPresent ? spec.num_heads() : 0),
      projection_(parameters.get(name_of(layer, "linear_proj.weight"))) {
  if (spec.sinks == model::Part::kPresent) sinks_ = &parameters.get(name_of(layer, "core_attention.sinks"));
  if (spec.linear_bias == model::Part::kPresent) bias_ = &parameters.get(name_of(layer, "linear_proj.bias"));
}

ops::AttentionOptions AttentionCore::options(const StepContext& step, const Tensor& lse_BAS) const {
  ops::AttentionOptions options{
      .scale = softmax_scale_, .window = window_, .softcap = softcap_, .first_key_BS = step.first_key_BS, .sink_A = {}};
  if (sinks_ != nullptr) options.sink_A = sinks_->weight.to(lse_BAS.scalar_type());
  if (num_zero_sinks_ > 0) options.sink_A = at::zeros({num_zero_sinks_}, lse_BAS.options());
  return options;
}

void AttentionCore::forward(const AttentionInput& in, const StepContext& step, Tensor& context_BSAV,
                            Tensor& lse_BAS) const {
  ops::attention_forward(in.query, in.key, in.value, options(step, lse_BAS), context_BSAV, lse_BAS);
}

void AttentionCore::backward(const Tensor& dcontext_BSAV, const AttentionInput& in, const Tensor& context_BSAV,
                             const Tensor& lse_BAS, const StepContext& step, AttentionInput& gradient) const {
  const ops::AttentionOptions attention = options(step, lse_BAS);
  if (sinks_ != nullptr) {
    ops::attention_sink_backward(dcontext_BSAV, context_BSAV, lse_BAS, attention.sink_A, sinks_->main_grad);
  }
  ops::attention_backward(dcontext_BSAV, in.query, in.key, in.value, context_BSAV, lse_BAS, attention, gradient.query,
                          gradient.key, gradient.value);
}

void AttentionCore::project(const Tensor& context_TV, Tensor& residual_TH) const {
  ops::linear_forward(context_TV, projection_.weight, residual_TH, ops::Write::kAccumulate);
  if (bias_ != nullptr) ops::bias_add(bias_->weight, {}, {}, residual_TH);
}

void AttentionCore::project_backward(const Tensor& dy_TH, Tensor& dcontext_TV) const {
  if (bias_ != nullptr) ops::bias_gradient(dy_TH, {}, {}, bias_->main_grad);
  ops::linear_dgrad(dy_TH, projection_.weight, dcontext_TV);
}

}  // namespace primus::nn
