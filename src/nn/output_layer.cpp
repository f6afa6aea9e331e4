#include "nn/output_layer.hpp"

#include "nn/weight_gradients.hpp"
#include "ops/gemm/gemm.hpp"

// Legend: T tokens, H hidden, V padded vocabulary.
namespace primus::nn {
namespace {

using Slot = model::OutputSlot;

constexpr std::int64_t kChosenChunk = 0;

}  // namespace

OutputLayer::OutputLayer(const model::ModelSpec& spec, const model::NumericPolicy& policy, model::LossFusion fusion,
                         const std::string& norm, ParameterStore& parameters, OutputTraining training)
    : fusion_(fusion),
      training_(training),
      logits_{.scale = spec.logits.scale, .softcap = spec.logits.softcap, .type = ops::to_aten(policy.logit_type())},
      norm_(spec, norm, parameters),
      weight_(parameters.get(spec.output_weight == model::OutputWeight::kOwn ? "output_layer.weight"
                                                                             : "embedding.word_embeddings.weight")) {}

Tensor OutputLayer::normed(Saved& saved) const {
  const Tensor& input = saved.at(Slot::kInput);
  Tensor normed_TH = workspace({input.size(0), input.size(1)}, weight_.weight);
  norm_.apply(input, saved.at(Slot::kRstd), normed_TH);
  return normed_TH;
}

Tensor OutputLayer::forward(Saved& saved, const StepContext& step, const LossInput& input) {
  const Tensor& hidden = saved.at(Slot::kInput);
  const std::int64_t tokens = hidden.size(0);
  Tensor normed_TH = workspace({tokens, hidden.size(1)}, weight_.weight);
  norm_.forward(hidden, Slot::kRstd, saved, normed_TH);
  Tensor loss_T = at::empty({tokens}, input.mask_T.options());
  if (step.mode == Mode::kEvaluation) {
    ops::linear_cross_entropy_loss(normed_TH, weight_.weight, input.label_T, kChosenChunk, loss_T, logits_);
    return loss_T;
  }
  const Tensor grad_T = loss_gradient(input, step.loss_scale);
  if (fusion_ == model::LossFusion::kFused) {
    Tensor untrained;
    const auto [main_grad, write] = training_ == OutputTraining::kTrained
                                        ? weight_.product_target()
                                        : GradientTarget{untrained, ops::Write::kOverwrite};
    ops::linear_cross_entropy(normed_TH, weight_.weight, input.label_T, grad_T, kChosenChunk, loss_T,
                              saved.allocate(Slot::kHiddenGradient), main_grad, logits_, write);
  } else {
    Tensor& logits_TV = saved.allocate(Slot::kLogits);
    ops::linear_forward(normed_TH, weight_.weight, logits_TV);
    ops::bounded_cross_entropy(logits_TV, input.label_T, grad_T, logits_, loss_T);
  }
  return loss_T;
}

Tensor OutputLayer::backward(Saved& saved, const StepContext& step, const Tensor& dnormed_TH) {
  const Tensor hidden = saved.at(Slot::kInput);
  const Tensor rstd = saved.at(Slot::kRstd);
  Tensor gradient_TH;
  if (fusion_ == model::LossFusion::kFused) {
    gradient_TH = saved.at(Slot::kHiddenGradient);
  } else {
    const Tensor& dlogits_TV = saved.at(Slot::kLogits);
    gradient_TH = workspace({hidden.size(0), hidden.size(1)}, weight_.weight);
    ops::linear_dgrad(dlogits_TV, weight_.weight, gradient_TH);
    if (training_ == OutputTraining::kTrained) {
      const Tensor normed_TH = normed(saved);
      if (step.weight_grad == WeightGradTiming::kDeferred) {
        saved.deferred() = {dlogits_TV, normed_TH};
      } else {
        add_linear_gradient(dlogits_TV, normed_TH, weight_);
      }
    }
  }
  Tensor dhidden_TH = workspace({hidden.size(0), hidden.size(1)}, hidden);
  if (dnormed_TH.defined()) gradient_TH.add_(dnormed_TH);
  norm_.backward(gradient_TH, hidden, rstd, dhidden_TH, ops::Write::kOverwrite);
  for (const int slot : {Slot::kInput, Slot::kRstd, Slot::kHiddenGradient, Slot::kLogits}) saved.release(slot);
  return dhidden_TH;
}

void OutputLayer::weight_grad(Saved& saved) {
  if (saved.deferred().empty()) return;
  add_linear_gradient(saved.deferred()[0], saved.deferred()[1], weight_);
  saved.deferred().clear();
}

}  // namespace primus::nn
