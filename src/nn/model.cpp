#include "nn/model.hpp"

#include <ATen/ops/arange.h>

#include "ops/embedding/embedding.hpp"

namespace primus::nn {
namespace {

static_assert(static_cast<int>(model::LayerSlot::kInput) == static_cast<int>(model::OutputSlot::kInput),
              "each part of the model leaves its output in the next part's input slot");
constexpr int kInput = model::LayerSlot::kInput;
constexpr int kOutsideLayers = -1;  // number of the parameters that no layer owns

Tensor masked_sum(const Tensor& loss_T, const LossInput& input) {
  return loss_T.to(at::kDouble).mul(input.mask_T).sum().view({1});
}

Tensor positions_of(const MicroBatchInput& input, const StepContext& step) {
  if (input.positions_T.defined()) return input.positions_T;
  Tensor positions_BS = at::empty({step.batch.num_sequences, step.batch.seq_length}, input.ids_T.options());
  positions_BS.copy_(at::arange(step.batch.seq_length, input.ids_T.options()));
  return positions_BS.view({-1});
}

}  // namespace

Model::Model(const model::ModelSpec& spec, const model::NumericPolicy& policy, model::LossFusion fusion,
             ParameterStore& parameters)
    : parameters_(parameters),
      embedding_(spec, "decoder", parameters),
      output_(spec, policy, fusion, "decoder", parameters),
      variant_(spec.mtp_variant),
      num_streams_(spec.num_streams()) {
  if (spec.num_learned_positions > 0) positions_ = &parameters.get("embedding.position_embeddings.weight");
  layers_.reserve(spec.layers.size());
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    layers_.emplace_back(spec, policy, layer, parameters);
    takes_choice_.push_back(spec.indexer() != nullptr && !spec.picks_keys(layer) ? model::Part::kPresent
                                                                                 : model::Part::kAbsent);
  }
  takes_choice_.push_back(model::Part::kAbsent);  // the output
  depths_.reserve(static_cast<std::size_t>(spec.num_mtp_layers));
  std::shared_ptr<TransformerLayer> layer;
  for (int depth = 0; depth < spec.num_mtp_layers; ++depth) {
    if (spec.parameter_depth(depth) == depth) {
      layer = std::make_shared<TransformerLayer>(spec, policy, num_layers() + depth, parameters);
    }
    depths_.emplace_back(spec, policy, fusion, depth, layer, parameters);
  }
}

void Model::lend_choice(Saved& saved, int layer) const {
  const auto mixer = [&](int number) -> Saved& { return saved.child(number).child(model::LayerSlot::kMixer); };
  mixer(layer + 1).borrow(model::MlaSlot::kSelected, mixer(layer).at(model::MlaSlot::kSelected));
}

std::vector<Model::RoutedLayer> Model::routed_layers() {
  std::vector<RoutedLayer> routed;
  const auto add = [&](TransformerLayer& layer, int number) {
    if (layer.moe() == nullptr) return;
    const bool is_repeated = !routed.empty() && routed.back().moe == layer.moe();
    if (is_repeated) {
      ++routed.back().num_passes;
    } else {
      routed.push_back({number, layer.moe()});
    }
  };
  for (int layer = 0; layer < num_layers(); ++layer) add(layers_[static_cast<std::size_t>(layer)], layer);
  for (std::size_t depth = 0; depth < depths_.size(); ++depth) {
    add(depths_[depth].layer(), num_layers() + static_cast<int>(depth));
  }
  return routed;
}

std::vector<TransformerLayer*> Model::all_layers() {
  std::vector<TransformerLayer*> all;
  for (TransformerLayer& layer : layers_) all.push_back(&layer);
  for (MtpDepth& depth : depths_) {
    if (all.back() != &depth.layer()) all.push_back(&depth.layer());
  }
  return all;
}

void Model::begin_step() {
  for (TransformerLayer* layer : all_layers()) layer->attention().begin_step();
  for (const RoutedLayer& routed : routed_layers()) routed.moe->router().reset_metrics();
}

void Model::clip_logits(const model::QkClip& clip, const RowScaler& scale) {
  for (TransformerLayer* layer : all_layers()) layer->attention().clip_logits(clip, scale);
}

std::optional<double> Model::largest_logit() {
  std::optional<double> largest;
  for (TransformerLayer* layer : all_layers()) {
    const auto logit = layer->attention().largest_logit();
    if (logit && (!largest || *logit > *largest)) largest = logit;
  }
  return largest;
}

std::optional<double> Model::indexer_loss() {
  double sum = 0.0;
  int num_indexers = 0;
  for (TransformerLayer* layer : all_layers()) {
    const auto loss = layer->attention().indexer_loss();
    if (!loss) continue;
    sum += *loss;
    ++num_indexers;
  }
  return num_indexers == 0 ? std::nullopt : std::optional(sum / num_indexers);
}

Tensor Model::part_output(Saved& saved, int part) const {
  if (part == 0) return normed_output(saved);
  return depths_[static_cast<std::size_t>(part - 1)].normed(depth_saved(saved, part - 1));
}

Tensor Model::depth_input(const MicroBatchInput& input, Saved& saved, int depth, const StepContext& step) const {
  if (!is_mixed(depth)) return part_output(saved, depth);
  return HiddenMixing(depth, input, step).mixed([&](int part) { return part_output(saved, part); });
}

void Model::embed(const MicroBatchInput& input, const StepContext& step, Tensor& x_TC) const {
  if (num_streams_ == 1) return embedding_.forward(input.ids_T, step, x_TC, learnt_positions(input, step));
  Tensor embedded_TH = workspace({x_TC.size(0), x_TC.size(1) / num_streams_}, x_TC);
  embedding_.forward(input.ids_T, step, embedded_TH, learnt_positions(input, step));
  copy_to_streams(embedded_TH, x_TC);
}

Tensor Model::forward(const MicroBatchInput& input, Saved& saved, const StepContext& step) {
  embed(input, step, saved.child(0).allocate(kInput));
  for (int layer = 0; layer < num_layers(); ++layer) {
    layers_[static_cast<std::size_t>(layer)].forward(saved.child(layer), step, saved.child(layer + 1).allocate(kInput));
    if (takes_choice_[static_cast<std::size_t>(layer + 1)] == model::Part::kPresent) lend_choice(saved, layer);
    if (step.mode == Mode::kEvaluation) saved.child(layer).release_all();
  }
  const GradientWindow window(parameters_, kOutsideLayers);  // a fused loss adds the output weight's gradient
  const Tensor loss_1 = masked_sum(output_.forward(output_saved(saved), step, input.loss), input.loss);
  if (step.mode == Mode::kEvaluation) {
    saved.release_all();
    return loss_1;
  }
  PRIMUS_CHECK(input.depths.size() == depths_.size(), "{} prediction depths have input of {}", depths_.size(),
               input.depths.size());
  std::vector<Tensor> losses = {loss_1};
  for (int depth = 0; depth < std::ssize(depths_); ++depth) {
    const DepthInput& depth_tokens = input.depths[static_cast<std::size_t>(depth)];
    const Tensor loss_T = depths_[static_cast<std::size_t>(depth)].forward(
        depth_tokens, depth_input(input, saved, depth, step), depth_saved(saved, depth), step);
    losses.push_back(masked_sum(loss_T, depth_tokens.loss));
  }
  return losses.size() == 1 ? loss_1 : at::cat(losses);
}

Tensor Model::depths_backward(const MicroBatchInput& input, Saved& saved, const StepContext& step) {
  std::vector<Tensor> dparts(depths_.size() + 1);  // of each part's normed hidden states
  for (int depth = static_cast<int>(depths_.size()) - 1; depth >= 0; --depth) {
    const auto d = static_cast<std::size_t>(depth);
    // A layer that is repeated has one set of gradients.
    const GradientWindow window(parameters_, num_layers() + (is_repeated() ? 0 : depth));
    const Tensor dinput_TH =
        depths_[d].backward(input.depths[d], depth_input(input, saved, depth, step),
                            std::exchange(dparts[d + 1], Tensor()), depth_saved(saved, depth), step);
    if (is_mixed(depth)) {
      HiddenMixing(depth, input, step).distribute(dinput_TH, dparts);
    } else if (dparts[d].defined()) {
      dparts[d].add_(dinput_TH);
    } else {
      dparts[d] = dinput_TH;
    }
  }
  return variant_.detached == model::Part::kPresent ? Tensor() : dparts[0];
}

void Model::restore(Saved& saved, int layer, const StepContext& step) {
  int first = layer;
  while (saved.child(first).is_missing(kInput)) --first;
  for (; first < layer; ++first) {
    layers_[static_cast<std::size_t>(first)].forward(saved.child(first), recomputing(step),
                                                     saved.child(first + 1).allocate(kInput));
  }
  layers_[static_cast<std::size_t>(layer)].restore(saved.child(layer), step);
}

Tensor Model::learnt_positions(const MicroBatchInput& input, const StepContext& step) const {
  if (positions_ == nullptr) return {};
  Tensor learnt_TH = workspace({input.ids_T.size(0), positions_->weight.size(1)}, positions_->weight);
  ops::embedding_forward(positions_of(input, step), positions_->weight, learnt_TH);
  return learnt_TH;
}

void Model::backward(const MicroBatchInput& input, Saved& saved, const StepContext& step) {
  Tensor gradient_TC;
  {
    const GradientWindow window(parameters_, kOutsideLayers);
    const Tensor dnormed_TH = depths_backward(input, saved, step);
    gradient_TC = output_.backward(output_saved(saved), step, dnormed_TH);
  }
  for (int layer = num_layers() - 1; layer >= 0; --layer) {
    const GradientWindow window(parameters_, layer);
    restore(saved, layer, step);
    gradient_TC = layers_[static_cast<std::size_t>(layer)].backward(std::move(gradient_TC), saved.child(layer), step);
  }
  const GradientWindow window(parameters_, kOutsideLayers);
  Tensor gradient_TH = sum_of_streams(gradient_TC, num_streams_);
  gradient_TC.reset();
  gradient_TH = embedding_.backward(input.ids_T, std::move(gradient_TH), step);
  if (positions_ != nullptr) {
    ops::embedding_backward(positions_of(input, step), gradient_TH, positions_->sum_target());
  }
}

void Model::weight_grad(Saved& saved) {
  {
    const GradientWindow window(parameters_, kOutsideLayers);
    for (int depth = static_cast<int>(depths_.size()) - 1; depth >= 0; --depth) {
      const GradientWindow depth_window(parameters_, num_layers() + (is_repeated() ? 0 : depth));
      depths_[static_cast<std::size_t>(depth)].weight_grad(depth_saved(saved, depth));
    }
    output_.weight_grad(output_saved(saved));
  }
  for (int layer = num_layers() - 1; layer >= 0; --layer) {
    const GradientWindow window(parameters_, layer);
    layers_[static_cast<std::size_t>(layer)].weight_grad(saved.child(layer));
  }
}

}  // namespace primus::nn
