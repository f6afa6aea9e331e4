#include "nn/transformer_layer.hpp"

#include "nn/gqa_attention.hpp"
#include "nn/mla_attention.hpp"
#include "nn/saved_norm.hpp"

// Legend: T tokens, H hidden.
namespace primus::nn {
namespace {

using Slot = model::LayerSlot;

std::string norm_name(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.{}.weight", layer, part);
}

std::unique_ptr<Sublayer> make_attention(const model::ModelSpec& spec, int layer, ParameterStore& parameters) {
  if (std::holds_alternative<model::MlaSpec>(spec.attention)) {
    return std::make_unique<MlaAttention>(spec, layer, parameters);
  }
  return std::make_unique<GqaAttention>(spec, layer, parameters);
}

}  // namespace

TransformerLayer::TransformerLayer(const model::ModelSpec& spec, const model::NumericPolicy& policy, int layer,
                                   ParameterStore& parameters)
    : input_norm_{parameters.get(norm_name(layer, "input_layernorm")), spec.norm_epsilon},
      middle_norm_{parameters.get(norm_name(layer, "pre_mlp_layernorm")), spec.norm_epsilon},
      attention_(make_attention(spec, layer, parameters)) {
  if (spec.kind(layer) == model::LayerKind::kMoe) {
    auto moe = std::make_unique<Moe>(spec, policy, layer, parameters);
    moe_ = moe.get();
    mlp_ = std::move(moe);
  } else {
    mlp_ = std::make_unique<Mlp>(spec, fmt::format("decoder.layers.{}.mlp", layer), model::MlpSlot::kPreActivation,
                                 parameters);
  }
}

void TransformerLayer::attention_half(Saved& saved, const StepContext& step, Tensor& normed_TH) {
  const Tensor& input = saved.at(Slot::kInput);
  ops::rms_norm_forward(input, input_norm_.weight.weight, input_norm_.epsilon, normed_TH,
                        saved.allocate(Slot::kInputRstd));
  Tensor& middle = saved.allocate(Slot::kMiddle);
  middle.copy_(input);
  attention_->forward(normed_TH, saved.child(Slot::kAttention), step, middle);
  if (step.mode == Mode::kTraining) saved.child(Slot::kAttention).drop_remade();
}

void TransformerLayer::forward(Saved& saved, const StepContext& step, Tensor& output_TH) {
  const Tensor& input = saved.at(Slot::kInput);
  Tensor normed_TH = workspace({input.size(0), input.size(1)}, input);
  attention_half(saved, step, normed_TH);
  const Tensor& middle = saved.at(Slot::kMiddle);
  ops::rms_norm_forward(middle, middle_norm_.weight.weight, middle_norm_.epsilon, normed_TH,
                        saved.allocate(Slot::kMiddleRstd));
  output_TH.copy_(middle);
  mlp_->forward(normed_TH, saved.child(Slot::kMlp), step, output_TH);
  if (step.mode == Mode::kTraining) saved.drop_remade();
}

void TransformerLayer::restore(Saved& saved, const StepContext& step) {
  if (!saved.is_missing(Slot::kMiddle)) return;
  const Tensor& input = saved.at(Slot::kInput);
  Tensor normed_TH = workspace({input.size(0), input.size(1)}, input);
  attention_half(saved, recomputing(step), normed_TH);
}

Tensor TransformerLayer::half_backward(Tensor dy_TH, Sublayer& sublayer, const Norm& norm, int input_slot,
                                       int rstd_slot, int child, Saved& saved, const StepContext& step) {
  const Tensor input = saved.at(input_slot);
  Tensor normed_TH = workspace({input.size(0), input.size(1)}, input);
  norm_once(input, norm.weight.weight, norm.epsilon, rstd_slot, saved, normed_TH);
  const Tensor rstd = saved.at(rstd_slot);
  sublayer.restore(normed_TH, saved.child(child), recomputing(step));
  Tensor dnormed_TH = workspace({input.size(0), input.size(1)}, input);
  sublayer.backward(dy_TH, normed_TH, saved.child(child), step, dnormed_TH);
  // A deferred weight gradient still reads dy_TH: the sum then goes into a copy.
  Tensor dx_TH = step.weight_grad == WeightGradTiming::kDeferred ? dy_TH.clone() : std::move(dy_TH);
  ops::rms_norm_backward(dnormed_TH, input, norm.weight.weight, rstd, dx_TH, ops::Write::kAccumulate,
                         norm.weight.main_grad);
  saved.release(input_slot);
  saved.release(rstd_slot);
  return dx_TH;
}

Tensor TransformerLayer::backward(Tensor dy_TH, Saved& saved, const StepContext& step) {
  Tensor dmiddle_TH =
      half_backward(std::move(dy_TH), *mlp_, middle_norm_, Slot::kMiddle, Slot::kMiddleRstd, Slot::kMlp, saved, step);
  return half_backward(std::move(dmiddle_TH), *attention_, input_norm_, Slot::kInput, Slot::kInputRstd,
                       Slot::kAttention, saved, step);
}

void TransformerLayer::weight_grad(Saved& saved) {
  mlp_->weight_grad(saved.child(Slot::kMlp));
  attention_->weight_grad(saved.child(Slot::kAttention));
}

}  // namespace primus::nn
