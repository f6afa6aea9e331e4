#include "nn/mtp_depth.hpp"

#include "nn/weight_gradients.hpp"
#include "ops/gemm/gemm.hpp"

// Legend: T tokens, H hidden.
namespace primus::nn {
namespace {

using Slot = model::MtpSlot;

}  // namespace

MtpDepth::MtpDepth(const model::ModelSpec& spec, const model::NumericPolicy& policy, model::LossFusion fusion,
                   int depth, std::shared_ptr<TransformerLayer> layer, ParameterStore& parameters)
    : embedding_(spec, fmt::format("mtp.layers.{}", depth), parameters),
      embedding_norm_(spec, fmt::format("mtp.layers.{}.enorm", spec.parameter_depth(depth)), parameters),
      hidden_norm_(spec, fmt::format("mtp.layers.{}.hnorm", spec.parameter_depth(depth)), parameters),
      joining_(parameters.get(fmt::format("mtp.layers.{}.eh_proj.weight", spec.parameter_depth(depth)))),
      repetition_(depth - spec.parameter_depth(depth)),
      gradients_(spec.mtp_variant.detached == model::Part::kPresent ? Gradients::kWithin : Gradients::kToDecoder),
      layer_(std::move(layer)),
      output_(spec, policy, fusion, fmt::format("mtp.layers.{}", spec.parameter_depth(depth)), parameters,
              gradients_ == Gradients::kWithin ? OutputTraining::kFrozen : OutputTraining::kTrained) {}

StepContext MtpDepth::repeated(StepContext step) const {
  step.repetition = repetition_;
  return step;
}

MtpDepth::Joined MtpDepth::join(const Tensor& ids_T, const Tensor& hidden_TH, Saved& saved,
                                const StepContext& step) const {
  const std::int64_t tokens = hidden_TH.size(0);
  const std::int64_t hidden = hidden_TH.size(1);
  Joined joined{workspace({tokens, hidden}, hidden_TH), workspace({tokens, 2 * hidden}, hidden_TH)};
  embedding_.forward(ids_T, step, joined.embedding_TH);
  const auto normalise = [&](const Tensor& x_TH, const Norm& norm, int rstd_slot, Tensor half_TH) {
    norm.forward(x_TH, rstd_slot, saved, half_TH);
  };
  normalise(joined.embedding_TH, embedding_norm_, Slot::kEmbeddingRstd, joined.both_T2H.narrow(1, 0, hidden));
  normalise(hidden_TH, hidden_norm_, Slot::kHiddenRstd, joined.both_T2H.narrow(1, hidden, hidden));
  return joined;
}

Tensor MtpDepth::forward(const DepthInput& input, const Tensor& hidden_TH, Saved& saved, const StepContext& step) {
  Saved& layer_saved = saved.child(Slot::kLayer);
  Saved& output_saved = saved.child(Slot::kOutput);
  Tensor joined_TH = workspace({hidden_TH.size(0), hidden_TH.size(1)}, hidden_TH);
  ops::linear_forward(join(input.ids_T, hidden_TH, saved, step).both_T2H, joining_.weight, joined_TH);
  copy_to_streams(joined_TH, layer_saved.allocate(model::LayerSlot::kInput));
  layer_->forward(layer_saved, repeated(step), output_saved.allocate(model::OutputSlot::kInput));
  return output_.forward(output_saved, step, input.loss);
}

Tensor MtpDepth::normed(Saved& saved) const {
  return output_.normed(saved.child(Slot::kOutput));
}

Tensor MtpDepth::backward(const DepthInput& input, const Tensor& hidden_TH, const Tensor& dnormed_TH, Saved& saved,
                          const StepContext& step) {
  Saved& layer_saved = saved.child(Slot::kLayer);
  const std::int64_t hidden = hidden_TH.size(1);
  Tensor gradient_TC = output_.backward(saved.child(Slot::kOutput), step, dnormed_TH);
  layer_->restore(layer_saved, repeated(step));
  gradient_TC = layer_->backward(std::move(gradient_TC), layer_saved, repeated(step));
  const std::int64_t num_streams = gradient_TC.size(1) / hidden;
  const Tensor gradient_TH =
      sum_of_streams(std::exchange(gradient_TC, Tensor()), num_streams).to(hidden_TH.scalar_type());

  const Joined joined = join(input.ids_T, hidden_TH, saved, step);
  Tensor dboth_T2H = workspace({hidden_TH.size(0), 2 * hidden}, hidden_TH);
  ops::linear_dgrad(gradient_TH, joining_.weight, dboth_T2H);
  if (step.weight_grad == WeightGradTiming::kDeferred) {
    saved.deferred() = {gradient_TH, joined.both_T2H};
  } else {
    add_linear_gradient(gradient_TH, joined.both_T2H, joining_);
  }
  Tensor dembedding_TH = workspace({hidden_TH.size(0), hidden}, hidden_TH);
  embedding_norm_.backward(dboth_T2H.narrow(1, 0, hidden), joined.embedding_TH, saved.at(Slot::kEmbeddingRstd),
                           dembedding_TH, ops::Write::kOverwrite);
  if (gradients_ == Gradients::kToDecoder) embedding_.backward(input.ids_T, std::move(dembedding_TH), step);
  Tensor dhidden_TH = workspace({hidden_TH.size(0), hidden}, hidden_TH);
  hidden_norm_.backward(dboth_T2H.narrow(1, hidden, hidden), hidden_TH, saved.at(Slot::kHiddenRstd), dhidden_TH,
                        ops::Write::kOverwrite);
  saved.release(Slot::kEmbeddingRstd);
  saved.release(Slot::kHiddenRstd);
  return dhidden_TH;
}

void MtpDepth::weight_grad(Saved& saved) {
  output_.weight_grad(saved.child(Slot::kOutput));
  layer_->weight_grad(saved.child(Slot::kLayer));
  add_linear_gradient(saved.deferred()[0], saved.deferred()[1], joining_);
  saved.deferred().clear();
}

}  // namespace primus::nn
