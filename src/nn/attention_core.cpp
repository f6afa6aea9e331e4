#include "nn/attention_core.hpp"

#include <ATen/ops/amax.h>
#include <ATen/ops/max.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "base/philox.hpp"
#include "nn/rope_tables.hpp"
#include "ops/attention/max_logit.hpp"
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
    : softmax_scale_(softmax_scale(spec, query_dim)),
      window_(spec.window(layer)),
      softcap_(spec.attention_softcap),
      dropout_(spec.dropout.attention),
      dropout_stream_(stream_id(name_of(layer, "core_attention.dropout"))),
      num_zero_sinks_(spec.zero_sink == model::Part::kPresent ? spec.num_heads() : 0),
      projection_(parameters.get(name_of(layer, "linear_proj.weight"))) {
  if (spec.qk_clip) {
    max_logit_A_ = at::empty(
        {spec.num_heads()},
        at::TensorOptions(ops::accumulator_type(projection_.weight.scalar_type())).device(projection_.weight.device()));
    begin_step();
  }
  if (spec.sinks == model::Part::kPresent) sinks_ = &parameters.get(name_of(layer, "core_attention.sinks"));
  if (spec.linear_bias == model::Part::kPresent) bias_ = &parameters.get(name_of(layer, "linear_proj.bias"));
}

ops::AttentionOptions AttentionCore::options(const AttentionInput& in, const StepContext& step) const {
  ops::AttentionOptions options{.scale = softmax_scale_,
                                .window = window_,
                                .softcap = softcap_,
                                .first_key_BS = step.first_key_BS,
                                .sink_A = {},
                                .selected_BSW = in.selected_BSW};
  const at::ScalarType statistics = ops::accumulator_type(in.query.scalar_type());
  if (dropout_ > 0.0 && step.mode != Mode::kEvaluation) {
    options.dropout = {.probability = dropout_,
                       .seed = step.seed,
                       .stream = repeated_stream(dropout_stream_, step),
                       .first_sequence = step.first_token / step.batch.seq_length};
  }
  if (sinks_ != nullptr) options.sink_A = sinks_->weight.to(statistics);
  if (num_zero_sinks_ > 0) options.sink_A = at::zeros({num_zero_sinks_}, in.query.options().dtype(statistics));
  return options;
}

void AttentionCore::forward(const AttentionInput& in, const StepContext& step, Tensor& context_BSAV, Tensor& lse_BAS) {
  const ops::AttentionOptions attention = options(in, step);
  ops::attention_forward(in.query, in.key, in.value, attention, context_BSAV, lse_BAS);
  const bool is_counted = max_logit_A_.defined() && step.mode == Mode::kTraining;
  if (is_counted) ops::attention_max_logit(in.query, in.key, attention, max_logit_A_);
}

void AttentionCore::begin_step() {
  if (max_logit_A_.defined()) max_logit_A_.fill_(-std::numeric_limits<double>::infinity());
}

std::vector<double> AttentionCore::shrinkage(const model::QkClip& clip, std::int64_t heads) const {
  const Tensor largest = max_logit_A_.to(at::kDouble).view({-1, heads}).amax(1);
  const auto* values = largest.const_data_ptr<double>();
  std::vector<double> factors;
  for (std::int64_t i = 0; i < largest.numel(); ++i) {
    factors.push_back(values[i] > clip.threshold ? clip.threshold / values[i] : 1.0);
  }
  return factors;
}

std::optional<double> AttentionCore::largest_logit() const {
  if (!max_logit_A_.defined()) return std::nullopt;
  return max_logit_A_.max().item<double>();
}

void AttentionCore::backward(const Tensor& dcontext_BSAV, const AttentionInput& in, const Tensor& context_BSAV,
                             const Tensor& lse_BAS, const StepContext& step, AttentionInput& gradient) const {
  const ops::AttentionOptions attention = options(in, step);
  if (sinks_ != nullptr) {
    ops::attention_sink_backward(dcontext_BSAV, context_BSAV, lse_BAS, attention.sink_A, sinks_->sum_target());
  }
  ops::attention_backward(dcontext_BSAV, in.query, in.key, in.value, context_BSAV, lse_BAS, attention, gradient.query,
                          gradient.key, gradient.value);
}

void AttentionCore::project(const Tensor& context_TV, Tensor& residual_TH) const {
  ops::linear_forward(context_TV, projection_.weight, residual_TH, ops::Write::kAccumulate);
  if (bias_ != nullptr) ops::bias_add(bias_->weight, {}, {}, residual_TH);
}

void AttentionCore::project_backward(const Tensor& dy_TH, Tensor& dcontext_TV) const {
  if (bias_ != nullptr) ops::bias_gradient(dy_TH, {}, {}, bias_->sum_target());
  ops::linear_dgrad(dy_TH, projection_.weight, dcontext_TV);
}

}  // namespace primus::nn
