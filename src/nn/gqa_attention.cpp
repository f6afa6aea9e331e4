#include "nn/gqa_attention.hpp"

#include "nn/weight_gradients.hpp"
#include "ops/bias/bias.hpp"
#include "ops/gemm/gemm.hpp"
#include "ops/output_gate/output_gate.hpp"

// Legend: T tokens, H hidden, A query heads, G key/value heads, D head size.
namespace primus::nn {
namespace {

using Slot = model::GqaSlot;

std::string name_of(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.self_attention.{}", layer, part);
}

}  // namespace

GqaAttention::GqaAttention(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : gqa_(std::get<model::GqaSpec>(spec.attention)),
      layout_(spec.rope.pairs == model::RopePairs::kHalves ? ops::RopeLayout::kHalves : ops::RopeLayout::kInterleaved),
      rotation_(spec.is_rotated(layer) ? Rotation::kByPosition : Rotation::kNone),
      core_(spec, layer, gqa_.head_dim, parameters),
      qkv_(parameters.get(name_of(layer, "linear_qkv.weight"))) {
  if (gqa_.qkv_bias == model::Part::kPresent) qkv_bias_ = &parameters.get(name_of(layer, "linear_qkv.bias"));
  query_norm_ = head_norm(spec, name_of(layer, "q_layernorm"), parameters);
  key_norm_ = head_norm(spec, name_of(layer, "k_layernorm"), parameters);
}

std::optional<Norm> GqaAttention::head_norm(const model::ModelSpec& spec, const std::string& name,
                                            ParameterStore& parameters) const {
  if (gqa_.qk_norms == model::Part::kPresent) return Norm(spec, name, parameters);
  if (!gqa_.has_norms()) return std::nullopt;
  return Norm::without_weight(spec.norm_epsilon, gqa_.head_dim, qkv_.weight);
}

GqaAttention::Parts GqaAttention::parts(const Tensor& fused_TAD) const {
  const std::int64_t groups = gqa_.num_query_groups;
  const std::int64_t query_rows = gqa_.num_query_rows();
  Parts result{.query = fused_TAD.narrow(1, 0, query_rows),
               .gate = {},
               .key = fused_TAD.narrow(1, query_rows, groups),
               .value = fused_TAD.narrow(1, query_rows + groups, groups)};
  if (gqa_.output_gate == model::Part::kPresent) {
    const Tensor pairs = result.query.unflatten(1, {gqa_.num_heads, 2});
    result.query = pairs.select(2, 0);
    result.gate = pairs.select(2, 1);
  }
  return result;
}

void GqaAttention::rotate(Parts& heads, const StepContext& step, ops::RopeDirection direction) const {
  if (rotation_ == Rotation::kNone) return;
  ops::rope_apply(step.rope.cos_SP, step.rope.sin_SP, layout_, direction, heads.query);
  ops::rope_apply(step.rope.cos_SP, step.rope.sin_SP, layout_, direction, heads.key);
}

GqaAttention::Parts GqaAttention::ready(const Parts& raw, Saved& saved, const StepContext& step) const {
  if (!has_norms()) return raw;
  Parts result = raw;
  result.query = at::empty(raw.query.sizes(), raw.query.options());
  result.key = at::empty(raw.key.sizes(), raw.key.options());
  query_norm_->forward(raw.query, Slot::kQueryRstd, saved, result.query);
  key_norm_->forward(raw.key, Slot::kKeyRstd, saved, result.key);
  rotate(result, step, ops::RopeDirection::kForward);
  return result;
}

void GqaAttention::project(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  Tensor& fused = saved.allocate(Slot::kQkv);
  Tensor fused_flat = flat(fused);
  ops::linear_forward(x_TH, qkv_.weight, fused_flat);
  if (qkv_bias_ != nullptr) ops::bias_add(qkv_bias_->weight, {}, {}, fused_flat);
  if (has_norms()) return;
  Parts heads = parts(fused);
  rotate(heads, step, ops::RopeDirection::kForward);
}

void GqaAttention::attend(Saved& saved, const StepContext& step) {
  const Parts in = ready(parts(saved.at(Slot::kQkv)), saved, step);
  Tensor context = by_sequence(saved.allocate(Slot::kContext), step.batch);
  core_.forward({by_sequence(in.query, step.batch), by_sequence(in.key, step.batch), by_sequence(in.value, step.batch)},
                step, context, saved.allocate(Slot::kLogSumExp));
}

void GqaAttention::forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  project(x_TH, saved, step);
  attend(saved, step);
  const Tensor& context = saved.at(Slot::kContext);
  const Tensor gate = parts(saved.at(Slot::kQkv)).gate;
  if (!gate.defined()) return core_.project(flat(context), residual_TH);
  Tensor gated = at::empty_like(context);
  ops::output_gate_forward(context, gate, gated);
  core_.project(flat(gated), residual_TH);
}

void GqaAttention::core_backward(const Tensor& dcontext_TAD, Saved& saved, const StepContext& step, Parts& gradient) {
  const Parts raw = parts(saved.at(Slot::kQkv));
  const Parts in = ready(raw, saved, step);
  // With norms, the gradients of what they gave come first.
  Parts dready = gradient;
  if (has_norms()) {
    dready.query = at::empty(raw.query.sizes(), raw.query.options());
    dready.key = at::empty(raw.key.sizes(), raw.key.options());
  }
  AttentionInput dinput{by_sequence(dready.query, step.batch), by_sequence(dready.key, step.batch),
                        by_sequence(dready.value, step.batch)};
  core_.backward(
      by_sequence(dcontext_TAD, step.batch),
      {by_sequence(in.query, step.batch), by_sequence(in.key, step.batch), by_sequence(in.value, step.batch)},
      by_sequence(saved.at(Slot::kContext), step.batch), saved.at(Slot::kLogSumExp), step, dinput);
  rotate(dready, step, ops::RopeDirection::kBackward);
  if (has_norms()) norm_backward(dready, raw, saved, gradient);
}

void GqaAttention::norm_backward(const Parts& dnormed, const Parts& raw, Saved& saved, Parts& gradient) {
  query_norm_->backward(dnormed.query, raw.query, saved.at(Slot::kQueryRstd), gradient.query, ops::Write::kOverwrite);
  key_norm_->backward(dnormed.key, raw.key, saved.at(Slot::kKeyRstd), gradient.key, ops::Write::kOverwrite);
}

void GqaAttention::restore(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  if (saved.is_missing(Slot::kQkv)) project(x_TH, saved, step);
  if (saved.is_missing(Slot::kContext)) attend(saved, step);
}

void GqaAttention::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                            Tensor& dx_TH) {
  const std::int64_t tokens = x_TH.size(0);
  const Tensor context = saved.at(Slot::kContext);
  Tensor dcontext = workspace({tokens, gqa_.num_heads, gqa_.head_dim}, x_TH);
  Tensor dcontext_flat = flat(dcontext);
  core_.project_backward(dy_TH, dcontext_flat);
  const Tensor dfused = workspace({tokens, gqa_.num_fused_heads(), gqa_.head_dim}, x_TH);
  Parts gradient = parts(dfused);
  Tensor projected = context;
  if (gradient.gate.defined()) {
    const Tensor gate = parts(saved.at(Slot::kQkv)).gate;
    projected = at::empty_like(context);
    ops::output_gate_forward(context, gate, projected);
    ops::output_gate_backward(dcontext, context, gate, dcontext, gradient.gate);
  }
  core_backward(dcontext, saved, step, gradient);
  saved.release_all();
  dcontext_flat.reset();
  dcontext.reset();
  if (qkv_bias_ != nullptr) ops::bias_gradient(flat(dfused), {}, {}, qkv_bias_->sum_target());
  ops::linear_dgrad(flat(dfused), qkv_.weight, dx_TH);
  std::vector<Tensor> deferred = {dy_TH, flat(projected), flat(dfused), x_TH};
  if (step.weight_grad == WeightGradTiming::kDeferred) {
    saved.deferred() = std::move(deferred);
  } else {
    add_weight_gradients(deferred);
  }
}

void GqaAttention::weight_grad(Saved& saved) {
  add_weight_gradients(saved.deferred());
  saved.deferred().clear();
}

void GqaAttention::clip_logits(const model::QkClip& clip, const RowScaler& scale) {
  // The heads of a group share a key: they shrink together.
  const std::int64_t heads = gqa_.num_heads / gqa_.num_query_groups;
  const std::int64_t rows_per_head = gqa_.num_query_rows() / gqa_.num_heads * gqa_.head_dim;
  const std::vector<double> factors = core_.shrinkage(clip, heads);
  for (std::size_t group = 0; group < factors.size(); ++group) {
    const double factor = factors[group];
    if (factor == 1.0) continue;
    const auto g = static_cast<std::int64_t>(group);
    for (Parameter* parameter : {&qkv_, qkv_bias_}) {
      if (parameter == nullptr) continue;
      for (std::int64_t head = g * heads; head < (g + 1) * heads; ++head) {
        scale(*parameter, head * rows_per_head, gqa_.head_dim, std::pow(factor, clip.alpha));
      }
      scale(*parameter, (gqa_.num_query_rows() + g) * gqa_.head_dim, gqa_.head_dim, std::pow(factor, 1.0 - clip.alpha));
    }
  }
}

void GqaAttention::add_weight_gradients(const std::vector<Tensor>& deferred) {
  PRIMUS_CHECK(deferred.size() == 4, "{} tensors were left for attention's weight gradients", deferred.size());
  add_linear_gradient(deferred[0], deferred[1], core_.projection());
  add_linear_gradient(deferred[2], deferred[3], qkv_);
}

}  // namespace primus::nn
