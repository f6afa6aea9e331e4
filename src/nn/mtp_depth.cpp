#include "nn/mtp_depth.hpp"

#include "nn/saved_norm.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/gemm/gemm.hpp"

// Legend: T tokens, H hidden.
namespace primus::nn {
namespace {

using Slot = model::MtpSlot;

}  // namespace

MtpDepth::MtpDepth(const model::ModelSpec& spec, const model::NumericPolicy& policy, model::LossFusion fusion,
                   int depth, ParameterStore& parameters)
    : norm_epsilon_(spec.norm_epsilon),
      embedding_(parameters.get("embedding.word_embeddings.weight")),
      embedding_norm_(parameters.get(fmt::format("mtp.layers.{}.enorm.weight", depth))),
      hidden_norm_(parameters.get(fmt::format("mtp.layers.{}.hnorm.weight", depth))),
      joining_(parameters.get(fmt::format("mtp.layers.{}.eh_proj.weight", depth))),
      layer_(spec, policy, static_cast<int>(spec.num_layers()) + depth, parameters),
      output_(spec, fusion, fmt::format("mtp.layers.{}.final_layernorm", depth), parameters) {}

MtpDepth::Joined MtpDepth::join(const Tensor& ids_T, const Tensor& hidden_TH, Saved& saved) const {
  const std::int64_t tokens = hidden_TH.size(0);
  const std::int64_t hidden = hidden_TH.size(1);
  Joined joined{workspace({tokens, hidden}, hidden_TH), workspace({tokens, 2 * hidden}, hidden_TH)};
  ops::embedding_forward(ids_T, embedding_.weight, joined.embedding_TH);
  const auto normalise = [&](const Tensor& x_TH, const Parameter& norm, int rstd_slot, Tensor half_TH) {
    norm_once(x_TH, norm.weight, norm_epsilon_, rstd_slot, saved, half_TH);
  };
  normalise(joined.embedding_TH, embedding_norm_, Slot::kEmbeddingRstd, joined.both_T2H.narrow(1, 0, hidden));
  normalise(hidden_TH, hidden_norm_, Slot::kHiddenRstd, joined.both_T2H.narrow(1, hidden, hidden));
  return joined;
}

Tensor MtpDepth::forward(const DepthInput& input, const Tensor& hidden_TH, Saved& saved, const StepContext& step) {
  Saved& layer_saved = saved.child(Slot::kLayer);
  Saved& output_saved = saved.child(Slot::kOutput);
  ops::linear_forward(join(input.ids_T, hidden_TH, saved).both_T2H, joining_.weight,
                      layer_saved.allocate(model::LayerSlot::kInput));
  layer_.forward(layer_saved, step, output_saved.allocate(model::OutputSlot::kInput));
  return output_.forward(output_saved, step, input.loss);
}

Tensor MtpDepth::normed(Saved& saved) const {
  return output_.normed(saved.child(Slot::kOutput));
}

Tensor MtpDepth::backward(const DepthInput& input, const Tensor& hidden_TH, const Tensor& dnormed_TH, Saved& saved,
                          const StepContext& step) {
  Saved& layer_saved = saved.child(Slot::kLayer);
  Tensor gradient_TH = output_.backward(saved.child(Slot::kOutput), step, dnormed_TH);
  layer_.restore(layer_saved, step);
  gradient_TH = layer_.backward(std::move(gradient_TH), layer_saved, step);

  const std::int64_t hidden = hidden_TH.size(1);
  const Joined joined = join(input.ids_T, hidden_TH, saved);
  Tensor dboth_T2H = workspace({hidden_TH.size(0), 2 * hidden}, hidden_TH);
  ops::linear_dgrad(gradient_TH, joining_.weight, dboth_T2H);
  if (step.weight_grad == WeightGradTiming::kDeferred) {
    saved.deferred() = {gradient_TH, joined.both_T2H};
  } else {
    ops::linear_wgrad(gradient_TH, joined.both_T2H, joining_.main_grad);
  }
  Tensor dembedding_TH = workspace({hidden_TH.size(0), hidden}, hidden_TH);
  ops::rms_norm_backward(dboth_T2H.narrow(1, 0, hidden), joined.embedding_TH, embedding_norm_.weight,
                         saved.at(Slot::kEmbeddingRstd), dembedding_TH, ops::Write::kOverwrite,
                         embedding_norm_.main_grad);
  ops::embedding_backward(input.ids_T, dembedding_TH, embedding_.main_grad);
  Tensor dhidden_TH = workspace({hidden_TH.size(0), hidden}, hidden_TH);
  ops::rms_norm_backward(dboth_T2H.narrow(1, hidden, hidden), hidden_TH, hidden_norm_.weight,
                         saved.at(Slot::kHiddenRstd), dhidden_TH, ops::Write::kOverwrite, hidden_norm_.main_grad);
  saved.release(Slot::kEmbeddingRstd);
  saved.release(Slot::kHiddenRstd);
  return dhidden_TH;
}

void MtpDepth::weight_grad(Saved& saved) {
  output_.weight_grad(saved.child(Slot::kOutput));
  layer_.weight_grad(saved.child(Slot::kLayer));
  ops::linear_wgrad(saved.deferred()[0], saved.deferred()[1], joining_.main_grad);
  saved.deferred().clear();
}

}  // namespace primus::nn
