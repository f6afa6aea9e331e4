#include "nn/model.hpp"

#include "ops/embedding/embedding.hpp"

namespace primus::nn {
namespace {

static_assert(static_cast<int>(model::LayerSlot::kInput) == static_cast<int>(model::OutputSlot::kInput),
              "each part of the model leaves its output in the next part's input slot");
constexpr int kInput = model::LayerSlot::kInput;

}  // namespace

Model::Model(const model::ModelSpec& spec, const model::NumericPolicy& policy, model::LossFusion fusion,
             ParameterStore& parameters)
    : embedding_(parameters.get("embedding.word_embeddings.weight")), output_(spec, fusion, parameters) {
  layers_.reserve(spec.layers.size());
  for (int layer = 0; layer < spec.num_layers(); ++layer) layers_.emplace_back(spec, policy, layer, parameters);
}

Tensor Model::forward(const MicroBatchInput& input, Saved& saved, const StepContext& step) {
  const int num_layers = static_cast<int>(layers_.size());
  ops::embedding_forward(input.ids_T, embedding_.weight, saved.child(0).allocate(kInput));
  for (int layer = 0; layer < num_layers; ++layer) {
    layers_[static_cast<std::size_t>(layer)].forward(saved.child(layer), step, saved.child(layer + 1).allocate(kInput));
    if (step.mode == Mode::kEvaluation) saved.child(layer).release_all();
  }
  const Tensor loss_T = output_.forward(saved.child(num_layers), step, input.loss);
  if (step.mode == Mode::kEvaluation) saved.release_all();
  return loss_T.to(at::kDouble).mul(input.loss.mask_T).sum();
}

void Model::backward(const MicroBatchInput& input, Saved& saved, const StepContext& step) {
  const int num_layers = static_cast<int>(layers_.size());
  Tensor gradient_TH = output_.backward(saved.child(num_layers), step);
  for (int layer = num_layers - 1; layer >= 0; --layer) {
    gradient_TH = layers_[static_cast<std::size_t>(layer)].backward(std::move(gradient_TH), saved.child(layer), step);
  }
  ops::embedding_backward(input.ids_T, gradient_TH, embedding_.main_grad);
}

void Model::weight_grad(Saved& saved) {
  const int num_layers = static_cast<int>(layers_.size());
  output_.weight_grad(saved.child(num_layers));
  for (int layer = num_layers - 1; layer >= 0; --layer) {
    layers_[static_cast<std::size_t>(layer)].weight_grad(saved.child(layer));
  }
}

}  // namespace primus::nn
