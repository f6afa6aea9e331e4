#include "nn/transformer_layer.hpp"

#include "nn/mixer.hpp"

// Legend: T tokens, H hidden.
namespace primus::nn {
namespace {

using Slot = model::LayerSlot;

std::string part_name(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.{}", layer, part);
}

}  // namespace

TransformerLayer::TransformerLayer(const model::ModelSpec& spec, const model::NumericPolicy& policy, int layer,
                                   ParameterStore& parameters)
    : activations_(ops::to_aten(policy.activations)),
      residual_(spec.residual_after_norm == model::Part::kPresent ? Residual::kNormedInput : Residual::kInput),
      attention_{.name = part_name(layer, "self_attention"),
                 .norm = Norm(spec, part_name(layer, "input_layernorm"), parameters),
                 .dropout = {spec.dropout.hidden, part_name(layer, "self_attention.dropout")},
                 .sublayer = make_mixer(spec, layer, parameters)},
      mlp_{.name = part_name(layer, "mlp"),
           .norm = Norm(spec, part_name(layer, "pre_mlp_layernorm"), parameters),
           .dropout = {spec.dropout.hidden, part_name(layer, "mlp.dropout")},
           .sublayer = nullptr} {
  if (spec.kind(layer) == model::LayerKind::kMoe) {
    auto moe = std::make_unique<Moe>(spec, policy, layer, parameters);
    moe_ = moe.get();
    mlp_.sublayer = std::move(moe);
  } else {
    mlp_.sublayer = std::make_unique<Mlp>(spec, part_name(layer, "mlp"), model::MlpSlot::kPreActivation, parameters);
  }
}

std::string TransformerLayer::observed_name(const Half& half, const StepContext& step, const char* end) const {
  return step.repetition == 0 ? fmt::format("{}.{}", half.name, end)
                              : fmt::format("{}.{}.{}", half.name, end, step.repetition);
}

void TransformerLayer::half_forward(const Half& half, const Tensor& input, const Tensor& normed_TH, Saved& saved,
                                    const StepContext& step, Tensor& residual_TH) {
  residual_TH.copy_(residual_ == Residual::kInput ? input : normed_TH);
  if (residual_TH.scalar_type() == activations_ && !half.dropout.is_on(step)) {
    half.sublayer->forward(normed_TH, saved, step, residual_TH);
  } else {
    Tensor output_TH = activation_like(input).zero_();
    half.sublayer->forward(normed_TH, saved, step, output_TH);
    half.dropout.apply(output_TH, step, residual_TH, ops::Write::kAccumulate);
  }
  if (step.observer == nullptr) return;
  step.observer->activation(observed_name(half, step, "input"), input);
  step.observer->activation(observed_name(half, step, "normed"), normed_TH);
  step.observer->activation(observed_name(half, step, "output"), residual_TH);
}

void TransformerLayer::attention_half(Saved& saved, const StepContext& step, Tensor& normed_TH) {
  const Tensor& input = saved.at(Slot::kInput);
  attention_.norm.forward(input, Slot::kInputRstd, saved, normed_TH);
  half_forward(attention_, input, normed_TH, saved.child(Slot::kMixer), step, saved.allocate(Slot::kMiddle));
  if (step.mode == Mode::kTraining) saved.child(Slot::kMixer).drop_remade();
}

void TransformerLayer::forward(Saved& saved, const StepContext& step, Tensor& output_TH) {
  Tensor normed_TH = activation_like(saved.at(Slot::kInput));
  attention_half(saved, step, normed_TH);
  const Tensor& middle = saved.at(Slot::kMiddle);
  mlp_.norm.forward(middle, Slot::kMiddleRstd, saved, normed_TH);
  half_forward(mlp_, middle, normed_TH, saved.child(Slot::kMlp), step, output_TH);
  if (step.mode == Mode::kTraining) saved.drop_remade();
}

void TransformerLayer::restore(Saved& saved, const StepContext& step) {
  if (!saved.is_missing(Slot::kMiddle)) return;
  Tensor normed_TH = activation_like(saved.at(Slot::kInput));
  attention_half(saved, recomputing(step), normed_TH);
}

Tensor TransformerLayer::half_backward(Tensor dy_TH, Half& half, int input_slot, int rstd_slot, int child, Saved& saved,
                                       const StepContext& step) {
  if (step.observer != nullptr) step.observer->gradient(observed_name(half, step, "output"), dy_TH);
  const Tensor input = saved.at(input_slot);
  Tensor normed_TH = activation_like(input);
  half.norm.forward(input, rstd_slot, saved, normed_TH);
  const Tensor rstd = saved.at(rstd_slot);
  half.sublayer->restore(normed_TH, saved.child(child), recomputing(step));
  Tensor doutput_TH = dy_TH.to(activations_);
  if (half.dropout.is_on(step)) {
    doutput_TH = activation_like(dy_TH);
    half.dropout.apply(dy_TH.to(activations_), step, doutput_TH, ops::Write::kOverwrite);
  }
  Tensor dnormed_TH = activation_like(input);
  half.sublayer->backward(doutput_TH, normed_TH, saved.child(child), step, dnormed_TH);
  if (step.observer != nullptr) step.observer->gradient(observed_name(half, step, "normed"), dnormed_TH);
  // A deferred weight gradient still reads its gradient: the sum then goes into a copy.
  const bool is_read_later = step.weight_grad == WeightGradTiming::kDeferred && doutput_TH.is_same(dy_TH);
  doutput_TH.reset();
  Tensor dx_TH = is_read_later ? dy_TH.clone() : std::move(dy_TH);
  if (residual_ == Residual::kInput) {
    half.norm.backward(dnormed_TH, input, rstd, dx_TH, ops::Write::kAccumulate);
  } else {
    half.norm.backward(dx_TH.add_(dnormed_TH), input, rstd, dx_TH, ops::Write::kOverwrite);
  }
  saved.release(input_slot);
  saved.release(rstd_slot);
  if (step.observer != nullptr) step.observer->gradient(observed_name(half, step, "input"), dx_TH);
  return dx_TH;
}

Tensor TransformerLayer::backward(Tensor dy_TH, Saved& saved, const StepContext& step) {
  Tensor dmiddle_TH = half_backward(std::move(dy_TH), mlp_, Slot::kMiddle, Slot::kMiddleRstd, Slot::kMlp, saved, step);
  return half_backward(std::move(dmiddle_TH), attention_, Slot::kInput, Slot::kInputRstd, Slot::kMixer, saved, step);
}

void TransformerLayer::weight_grad(Saved& saved) {
  mlp_.sublayer->weight_grad(saved.child(Slot::kMlp));
  attention_.sublayer->weight_grad(saved.child(Slot::kMixer));
}

}  // namespace primus::nn
