#include "nn/transformer_layer.hpp"

#include "nn/mixer.hpp"

// Legend: T tokens, H hidden, C all residual streams side by side, M numbers that their weights are made of.
namespace primus::nn {
namespace {

using Slot = model::LayerSlot;

std::string part_name(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.{}", layer, part);
}

}  // namespace

TransformerLayer::Half TransformerLayer::make_half(const model::ModelSpec& spec, int layer, const char* part,
                                                   const char* norm, ParameterStore& parameters) const {
  const std::string name = part_name(layer, part);
  return {.name = name,
          .norm = Norm(spec, part_name(layer, norm), parameters),
          .dropout = {spec.dropout.hidden, name + ".dropout"},
          .input_slot = Slot::kInput,
          .rstd_slot = Slot::kInputRstd,
          .mix_slot = Slot::kInputMix,
          .output_slot = Slot::kMixerOutput,
          .child = Slot::kMixer,
          .streams = spec.hyper ? std::optional<HyperConnection>(
                                      std::in_place, spec, part_name(layer, part) + "_hyper_connection", parameters)
                                : std::nullopt,
          .sublayer = nullptr};
}

TransformerLayer::TransformerLayer(const model::ModelSpec& spec, const model::NumericPolicy& policy, int layer,
                                   ParameterStore& parameters)
    : hidden_(spec.hidden_size),
      activations_(ops::to_aten(policy.activations)),
      residual_(spec.residual_after_norm == model::Part::kPresent ? Residual::kNormedInput : Residual::kInput),
      attention_(make_half(spec, layer, "self_attention", "input_layernorm", parameters)),
      mlp_(make_half(spec, layer, "mlp", "pre_mlp_layernorm", parameters)) {
  attention_.sublayer = make_mixer(spec, layer, parameters);
  mlp_.input_slot = Slot::kMiddle;
  mlp_.rstd_slot = Slot::kMiddleRstd;
  mlp_.mix_slot = Slot::kMiddleMix;
  mlp_.output_slot = Slot::kMlpOutput;
  mlp_.child = Slot::kMlp;
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

Tensor TransformerLayer::read(const Half& half, Saved& saved) const {
  const Tensor& input_TC = saved.at(half.input_slot);
  return half.streams ? half.streams->read(input_TC, half.streams->mix(input_TC, half.mix_slot, saved)) : input_TC;
}

void TransformerLayer::add_to_residual(const Half& half, const Tensor& input, const Tensor& normed_TH, Saved& saved,
                                       const StepContext& step, Tensor& residual_TH) {
  residual_TH.copy_(residual_ == Residual::kInput ? input : normed_TH);
  if (residual_TH.scalar_type() == activations_ && !half.dropout.is_on(step)) {
    half.sublayer->forward(normed_TH, saved, step, residual_TH);
  } else {
    Tensor output_TH = hidden_like(input).zero_();
    half.sublayer->forward(normed_TH, saved, step, output_TH);
    half.dropout.apply(output_TH, step, residual_TH, ops::Write::kAccumulate);
  }
}

void TransformerLayer::sublayer_output(const Half& half, const Tensor& normed_TH, Saved& saved, const StepContext& step,
                                       Tensor& y_TH) {
  half.sublayer->forward(normed_TH, saved, step, y_TH.zero_());
  if (half.dropout.is_on(step)) half.dropout.apply(y_TH, step, y_TH, ops::Write::kOverwrite);
}

void TransformerLayer::half_forward(const Half& half, Saved& saved, const StepContext& step, Tensor& normed_TH,
                                    Tensor& output_TC) {
  const Tensor& input = saved.at(half.input_slot);
  half.norm.forward(read(half, saved), half.rstd_slot, saved, normed_TH);
  if (half.streams) {
    Tensor& y_TH = saved.allocate(half.output_slot);
    sublayer_output(half, normed_TH, saved.child(half.child), step, y_TH);
    half.streams->write(input, y_TH, saved.at(half.mix_slot), output_TC);
  } else {
    add_to_residual(half, input, normed_TH, saved.child(half.child), step, output_TC);
  }
  if (step.observer == nullptr) return;
  step.observer->activation(observed_name(half, step, "input"), input);
  step.observer->activation(observed_name(half, step, "normed"), normed_TH);
  step.observer->activation(observed_name(half, step, "output"), output_TC);
}

void TransformerLayer::attention_half(Saved& saved, const StepContext& step, Tensor& normed_TH) {
  half_forward(attention_, saved, step, normed_TH, saved.allocate(Slot::kMiddle));
  if (step.mode == Mode::kTraining) saved.child(Slot::kMixer).drop_remade();
}

void TransformerLayer::forward(Saved& saved, const StepContext& step, Tensor& output_TC) {
  Tensor normed_TH = hidden_like(saved.at(Slot::kInput));
  attention_half(saved, step, normed_TH);
  half_forward(mlp_, saved, step, normed_TH, output_TC);
  if (step.mode == Mode::kTraining) saved.drop_remade();
}

void TransformerLayer::restore(Saved& saved, const StepContext& step) {
  if (!saved.is_missing(Slot::kMiddle)) return;
  Tensor normed_TH = hidden_like(saved.at(Slot::kInput));
  attention_half(saved, recomputing(step), normed_TH);
}

Tensor TransformerLayer::restored_input(const Half& half, const Tensor& read_TH, Saved& saved,
                                        const StepContext& step) {
  Tensor normed_TH = hidden_like(read_TH);
  half.norm.forward(read_TH, half.rstd_slot, saved, normed_TH);
  if (half.streams && saved.is_missing(half.output_slot)) {
    sublayer_output(half, normed_TH, saved.child(half.child), recomputing(step), saved.allocate(half.output_slot));
  } else {
    half.sublayer->restore(normed_TH, saved.child(half.child), recomputing(step));
  }
  return normed_TH;
}

Tensor TransformerLayer::sublayer_backward(Half& half, const Tensor& doutput_TH, const Tensor& normed_TH, Saved& saved,
                                           const StepContext& step) {
  Tensor dnormed_TH = hidden_like(normed_TH);
  half.sublayer->backward(doutput_TH, normed_TH, saved.child(half.child), step, dnormed_TH);
  if (step.observer != nullptr) step.observer->gradient(observed_name(half, step, "normed"), dnormed_TH);
  return dnormed_TH;
}

Tensor TransformerLayer::half_backward(Tensor dy_TC, Half& half, Saved& saved, const StepContext& step) {
  if (step.observer != nullptr) step.observer->gradient(observed_name(half, step, "output"), dy_TC);
  if (half.streams) return streams_backward(std::move(dy_TC), half, saved, step);
  const Tensor input = saved.at(half.input_slot);
  const Tensor normed_TH = restored_input(half, input, saved, step);
  const Tensor rstd = saved.at(half.rstd_slot);
  Tensor doutput_TH = dy_TC.to(activations_);
  if (half.dropout.is_on(step)) {
    doutput_TH = hidden_like(dy_TC);
    half.dropout.apply(dy_TC.to(activations_), step, doutput_TH, ops::Write::kOverwrite);
  }
  Tensor dnormed_TH = sublayer_backward(half, doutput_TH, normed_TH, saved, step);
  // A deferred weight gradient still reads its gradient: the sum then goes into a copy.
  const bool is_read_later = step.weight_grad == WeightGradTiming::kDeferred && doutput_TH.is_same(dy_TC);
  doutput_TH.reset();
  Tensor dx_TH = is_read_later ? dy_TC.clone() : std::move(dy_TC);
  if (residual_ == Residual::kInput) {
    half.norm.backward(dnormed_TH, input, rstd, dx_TH, ops::Write::kAccumulate);
  } else {
    half.norm.backward(dx_TH.add_(dnormed_TH), input, rstd, dx_TH, ops::Write::kOverwrite);
  }
  saved.release(half.input_slot);
  saved.release(half.rstd_slot);
  if (step.observer != nullptr) step.observer->gradient(observed_name(half, step, "input"), dx_TH);
  return dx_TH;
}

Tensor TransformerLayer::streams_backward(Tensor dy_TC, Half& half, Saved& saved, const StepContext& step) {
  HyperConnection& streams = *half.streams;
  const Tensor read_TH = read(half, saved);
  const Tensor input = saved.at(half.input_slot);
  const Tensor mix_TM = saved.at(half.mix_slot);
  const Tensor normed_TH = restored_input(half, read_TH, saved, step);
  Tensor doutput_TH = hidden_like(input);
  Tensor dweight_TM = streams.write_backward(input, saved.at(half.output_slot), mix_TM, dy_TC, doutput_TH);
  saved.release(half.output_slot);
  if (half.dropout.is_on(step)) half.dropout.apply(doutput_TH, step, doutput_TH, ops::Write::kOverwrite);
  const Tensor dnormed_TH = sublayer_backward(half, doutput_TH, normed_TH, saved, step);
  doutput_TH.reset();
  Tensor dread_TH = hidden_like(input);
  half.norm.backward(dnormed_TH, read_TH, saved.at(half.rstd_slot), dread_TH, ops::Write::kOverwrite);
  streams.read_backward(dread_TH, input, mix_TM, std::move(dweight_TM), dy_TC);
  for (const int slot : {half.input_slot, half.rstd_slot, half.mix_slot}) saved.release(slot);
  if (step.observer != nullptr) step.observer->gradient(observed_name(half, step, "input"), dy_TC);
  return dy_TC;
}

Tensor TransformerLayer::backward(Tensor dy_TC, Saved& saved, const StepContext& step) {
  Tensor dmiddle_TC = half_backward(std::move(dy_TC), mlp_, saved, step);
  return half_backward(std::move(dmiddle_TC), attention_, saved, step);
}

void TransformerLayer::weight_grad(Saved& saved) {
  mlp_.sublayer->weight_grad(saved.child(Slot::kMlp));
  attention_.sublayer->weight_grad(saved.child(Slot::kMixer));
}

}  // namespace primus::nn
