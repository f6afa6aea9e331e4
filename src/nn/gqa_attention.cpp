#include "nn/gqa_attention.hpp"

#include "nn/rope_tables.hpp"
#include "ops/attention/attention.hpp"
#include "ops/gemm/gemm.hpp"

// Legend: T tokens, H hidden, A query heads, G key/value heads, D head size.
namespace primus::nn {
namespace {

using Slot = model::GqaSlot;

}  // namespace

GqaAttention::GqaAttention(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : gqa_(std::get<model::GqaSpec>(spec.attention)),
      softmax_scale_(softmax_scale(spec.rope, gqa_.head_dim)),
      qkv_(parameters.get(fmt::format("decoder.layers.{}.self_attention.linear_qkv.weight", layer))),
      output_(parameters.get(fmt::format("decoder.layers.{}.self_attention.linear_proj.weight", layer))) {}

GqaAttention::Views GqaAttention::views(const Tensor& qkv_TAD, model::BatchShape batch) const {
  const Tensor all = qkv_TAD.view({batch.num_sequences, batch.seq_length, qkv_TAD.size(1), qkv_TAD.size(2)});
  return {all.narrow(2, 0, gqa_.num_heads), all.narrow(2, gqa_.num_heads, gqa_.num_query_groups),
          all.narrow(2, gqa_.num_heads + gqa_.num_query_groups, gqa_.num_query_groups)};
}

void GqaAttention::rotate(Tensor& qkv_TAD, const StepContext& step, ops::RopeDirection direction) const {
  Tensor rotated = qkv_TAD.narrow(1, 0, gqa_.num_heads + gqa_.num_query_groups);
  ops::rope_apply(step.rope.cos_SP, step.rope.sin_SP, ops::RopeLayout::kHalves, direction, rotated);
}

void GqaAttention::project(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  Tensor& qkv = saved.allocate(Slot::kQkv);
  Tensor qkv_flat = flat(qkv);
  ops::linear_forward(x_TH, qkv_.weight, qkv_flat);
  rotate(qkv, step, ops::RopeDirection::kForward);
}

void GqaAttention::attend(Saved& saved, const StepContext& step) {
  const Views in = views(saved.at(Slot::kQkv), step.batch);
  Tensor& context = saved.allocate(Slot::kContext);
  Tensor context_BSAD = context.view(in.query.sizes());
  ops::attention_forward(in.query, in.key, in.value, softmax_scale_, context_BSAD, saved.allocate(Slot::kLogSumExp));
}

void GqaAttention::forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  project(x_TH, saved, step);
  attend(saved, step);
  ops::linear_forward(flat(saved.at(Slot::kContext)), output_.weight, residual_TH, ops::Write::kAccumulate);
}

void GqaAttention::restore(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  if (saved.is_missing(Slot::kQkv)) project(x_TH, saved, step);
  if (saved.is_missing(Slot::kContext)) attend(saved, step);
}

void GqaAttention::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                            Tensor& dx_TH) {
  const std::int64_t tokens = x_TH.size(0);
  Tensor context_TV = flat(saved.at(Slot::kContext));
  Tensor dcontext = workspace({tokens, gqa_.num_heads * gqa_.head_dim}, x_TH);
  ops::linear_dgrad(dy_TH, output_.weight, dcontext);
  Tensor dqkv = workspace({tokens, gqa_.num_heads + 2 * gqa_.num_query_groups, gqa_.head_dim}, x_TH);
  const Views in = views(saved.at(Slot::kQkv), step.batch);
  Views gradient = views(dqkv, step.batch);
  ops::attention_backward(dcontext.view(in.query.sizes()), in.query, in.key, in.value,
                          context_TV.view(in.query.sizes()), saved.at(Slot::kLogSumExp), softmax_scale_, gradient.query,
                          gradient.key, gradient.value);
  saved.release_all();
  dcontext.reset();
  rotate(dqkv, step, ops::RopeDirection::kBackward);
  ops::linear_dgrad(flat(dqkv), qkv_.weight, dx_TH);
  std::vector<Tensor> deferred = {dy_TH, context_TV, flat(dqkv), x_TH};
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

void GqaAttention::add_weight_gradients(const std::vector<Tensor>& deferred) {
  PRIMUS_CHECK(deferred.size() == 4, "{} tensors were left for attention's weight gradients", deferred.size());
  ops::linear_wgrad(deferred[0], deferred[1], output_.main_grad);
  ops::linear_wgrad(deferred[2], deferred[3], qkv_.main_grad);
}

}  // namespace primus::nn
