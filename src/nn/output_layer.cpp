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
                         const std::string& part, ParameterStore& parameters, OutputTraining training)
    : hidden_(spec.hidden_size),
      num_streams_(spec.num_streams()),
      fusion_(fusion),
      training_(training),
      logits_{.scale = spec.logits.scale, .softcap = spec.logits.softcap, .type = ops::to_aten(policy.logit_type())},
      head_(spec.hyper && spec.hyper->has_head()
                ? std::optional<HyperConnection>(std::in_place, spec, part + ".hyper_head", parameters)
                : std::nullopt),
      norm_(spec, part + ".final_layernorm", parameters),
      weight_(parameters.get(spec.output_weight == model::OutputWeight::kOwn ? "output_layer.weight"
                                                                             : "embedding.word_embeddings.weight")) {}

Tensor OutputLayer::read(Saved& saved) const {
  const Tensor& input_TC = saved.at(Slot::kInput);
  if (head_) return head_->read(input_TC, head_->mix(input_TC, Slot::kMix, saved));
  return num_streams_ == 1 ? input_TC : mean_of_streams(input_TC, num_streams_);
}

Tensor OutputLayer::normed(Saved& saved) const {
  const Tensor read_TH = read(saved);
  Tensor normed_TH = workspace({read_TH.size(0), hidden_}, weight_.weight);
  norm_.apply(read_TH, saved.at(Slot::kRstd), normed_TH);
  return normed_TH;
}

Tensor OutputLayer::forward(Saved& saved, const StepContext& step, const LossInput& input) {
  const std::int64_t tokens = saved.at(Slot::kInput).size(0);
  Tensor normed_TH = workspace({tokens, hidden_}, weight_.weight);
  norm_.forward(read(saved), Slot::kRstd, saved, normed_TH);
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
  const Tensor input_TC = saved.at(Slot::kInput);
  const Tensor rstd = saved.at(Slot::kRstd);
  Tensor gradient_TH;
  if (fusion_ == model::LossFusion::kFused) {
    gradient_TH = saved.at(Slot::kHiddenGradient);
  } else {
    const Tensor& dlogits_TV = saved.at(Slot::kLogits);
    gradient_TH = workspace({input_TC.size(0), hidden_}, weight_.weight);
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
  const Tensor read_TH = read(saved);
  Tensor dread_TH = workspace({input_TC.size(0), hidden_}, input_TC);
  if (dnormed_TH.defined()) gradient_TH.add_(dnormed_TH);
  norm_.backward(gradient_TH, read_TH, rstd, dread_TH, ops::Write::kOverwrite);
  Tensor dinput_TC = dread_TH;
  if (head_) {
    const Tensor mix_TN = saved.at(Slot::kMix);
    dinput_TC = at::zeros_like(input_TC);
    head_->read_backward(dread_TH, input_TC, mix_TN, at::empty_like(mix_TN), dinput_TC);
  } else if (num_streams_ > 1) {
    dinput_TC = at::empty_like(input_TC);
    copy_to_streams(dread_TH.mul_(1.0 / static_cast<double>(num_streams_)), dinput_TC);
  }
  for (const int slot : {Slot::kInput, Slot::kRstd, Slot::kHiddenGradient, Slot::kLogits, Slot::kMix}) {
    saved.release(slot);
  }
  return dinput_TC;
}

void OutputLayer::weight_grad(Saved& saved) {
  if (saved.deferred().empty()) return;
  add_linear_gradient(saved.deferred()[0], saved.deferred()[1], weight_);
  saved.deferred().clear();
}

}  // namespace primus::nn
