#include "nn/model.hpp"

#include <ATen/ops/arange.h>

#include "ops/embedding/embedding.hpp"

namespace primus::nn {
namespace {

static_assert(static_cast<int>(model::LayerSlot::kInput) == static_cast<int>(model::OutputSlot::kInput),
              "each part of the model leaves its output in the next part's input slot");
constexpr int kInput = model::LayerSlot::kInput;

Tensor positions_of(const MicroBatchInput& input, const StepContext& step) {
  if (input.positions_T.defined()) return input.positions_T;
  return at::arange(step.batch.seq_length, input.ids_T.options()).repeat({step.batch.num_sequences});
}

}  // namespace

Model::Model(const model::ModelSpec& spec, const model::NumericPolicy& policy, model::LossFusion fusion,
             ParameterStore& parameters)
    : embedding_(parameters.get("embedding.word_embeddings.weight")), output_(spec, fusion, parameters) {
  if (spec.num_learned_positions > 0) positions_ = &parameters.get("embedding.position_embeddings.weight");
  layers_.reserve(spec.layers.size());
  for (int layer = 0; layer < spec.num_layers(); ++layer) layers_.emplace_back(spec, policy, layer, parameters);
}

Tensor Model::forward(const MicroBatchInput& input, Saved& saved, const StepContext& step) {
  const int num_layers = static_cast<int>(layers_.size());
  Tensor& embedded_TH = saved.child(0).allocate(kInput);
  ops::embedding_forward(input.ids_T, embedding_.weight, embedded_TH);
  add_positions(input, step, embedded_TH);
  for (int layer = 0; layer < num_layers; ++layer) {
    layers_[static_cast<std::size_t>(layer)].forward(saved.child(layer), step, saved.child(layer + 1).allocate(kInput));
    if (step.mode == Mode::kEvaluation) saved.child(layer).release_all();
  }
  const Tensor loss_T = output_.forward(saved.child(num_layers), step, input.loss);
  if (step.mode == Mode::kEvaluation) saved.release_all();
  return loss_T.to(at::kDouble).mul(input.loss.mask_T).sum();
}

void Model::add_positions(const MicroBatchInput& input, const StepContext& step, Tensor& x_TH) const {
  if (positions_ == nullptr) return;
  Tensor learnt_TH = workspace({x_TH.size(0), x_TH.size(1)}, x_TH);
  ops::embedding_forward(positions_of(input, step), positions_->weight, learnt_TH);
  x_TH.add_(learnt_TH);
}

void Model::backward(const MicroBatchInput& input, Saved& saved, const StepContext& step) {
  const int num_layers = static_cast<int>(layers_.size());
  Tensor gradient_TH = output_.backward(saved.child(num_layers), step);
  for (int layer = num_layers - 1; layer >= 0; --layer) {
    gradient_TH = layers_[static_cast<std::size_t>(layer)].backward(std::move(gradient_TH), saved.child(layer), step);
  }
  ops::embedding_backward(input.ids_T, gradient_TH, embedding_.main_grad);
  if (positions_ != nullptr) {
    ops::embedding_backward(positions_of(input, step), gradient_TH, positions_->main_grad);
  }
}

void Model::weight_grad(Saved& saved) {
  const int num_layers = static_cast<int>(layers_.size());
  output_.weight_grad(saved.child(num_layers));
  for (int layer = num_layers - 1; layer >= 0; --layer) {
    layers_[static_cast<std::size_t>(layer)].weight_grad(saved.child(layer));
  }
}

}  // namespace primus::nn
