// A micro-batch through a stage, in bytes: nn/model.cpp.
#include "model/pass_peaks.hpp"

#include <map>
#include <utility>

#include "model/pass_layer.hpp"

namespace primus::model {
namespace {

constexpr int kOutsideLayers = -1;
static_assert(static_cast<int>(LayerSlot::kInput) == static_cast<int>(OutputSlot::kInput));

/// Main gradients that a pass allocates: for a moment in the type of sums, where they are held narrower (the twin of
/// nn::GradientWindow), and to stay, where they are not resident.
class MainGradients {
 public:
  MainGradients(const PassInput& input, PassLedger& ledger)
      : input_(input), ledger_(ledger), come_(input.gradients == PassGradients::kAsTheyCome) {}

  /// A layer's gradients come to stay.
  void arrive(int layer) {
    if (come_) arrive_elements(elements_of(layer));
  }

  /// The output weight's, which the fused loss makes in forward. One that is the embedding's brings that along.
  void arrive_output() {
    if (!come_) return;
    std::int64_t elements = 0;
    for (const ParameterDescriptor& parameter : parameters_of(kOutsideLayers)) {
      const bool is_output =
          parameter.component == Component::kOutput || input_.spec.output_weight == OutputWeight::kTiedToEmbedding;
      if (is_output && parameter.trained == Trained::kYes) elements += local_elements(parameter, input_.sharding);
    }
    arrive_elements(elements);
    of_output_ = elements;
  }
  /// The rest of what lies outside the layers.
  void arrive_rest() {
    if (come_) arrive_elements(elements_of(kOutsideLayers) - of_output_);
  }

  /// Those of a layer in the type of sums, if that is another one; gone with what this returns.
  PassTensor window(int layer) {
    const NumericPolicy& policy = input_.policy;
    if (size_bytes(policy.main_gradients) >= size_bytes(policy.statistics)) return {};
    return ledger_.tensor(elements_of(layer), policy.statistics);
  }

 private:
  void arrive_elements(std::int64_t elements) {
    arrived_.push_back(ledger_.tensor(elements, input_.policy.main_gradients, PassMemory::kGradients));
  }

  std::int64_t elements_of(int layer) {
    const bool is_layer = layer >= 0 && layer < input_.spec.num_layers();
    const LayerLikeness kind = is_layer ? input_.spec.likeness(layer) : LayerLikeness{.layer = layer};
    const auto found = elements_.find(kind);
    if (found != elements_.end()) return found->second;
    std::int64_t elements = 0;
    for (const ParameterDescriptor& parameter : parameters_of(layer)) {
      if (parameter.trained == Trained::kYes) elements += local_elements(parameter, input_.sharding);
    }
    return elements_.emplace(kind, elements).first->second;
  }

  std::vector<ParameterDescriptor> parameters_of(int layer) const {
    const auto layers = static_cast<int>(input_.spec.num_layers());
    if (layer >= layers) return mtp_depth_parameters(input_.spec, layer - layers);
    if (layer >= 0) return layer_parameters(input_.spec, layer);
    StageContent ends = input_.content;
    ends.num_layers = 0;
    ends.num_mtp_layers = 0;
    return stage_parameters(input_.spec, ends);
  }

  const PassInput& input_;
  PassLedger& ledger_;
  bool come_;
  std::map<LayerLikeness, std::int64_t> elements_;  // layers of a kind are alike
  std::vector<PassTensor> arrived_;
  std::int64_t of_output_ = 0;
};

class Walk {
  static constexpr std::size_t kNumMtpTensors = 2;

 public:
  Walk(const PassInput& input, const SavedDeclaration& stage, PassLedger& ledger)
      : input_(input),
        pass_{.spec = input.spec,
              .policy = input.policy,
              .batch = input.batch,
              .sharding = input.sharding,
              .ledger = ledger,
              .scratch = input.scratch},
        ledger_(ledger),
        saved_(stage, ledger),
        gradients_(input, ledger),
        output_(input.fusion, OutputPass::Training::kTrained) {
    for (std::size_t i = 0; i < stage.children.size(); ++i) {
      const SavedDeclaration& child = stage.children[i];
      PassSaved* own = &saved_.child(static_cast<int>(i));
      // An output has no children; a depth has two norms of its own, a layer its two inputs besides.
      if (child.children.empty()) {
        outputs_.push_back(own);
      } else if (child.tensors.size() > kNumMtpTensors) {
        layers_.push_back(
            {own, LayerPass(input.spec, input.content.first_layer + static_cast<int>(layers_.size()), child)});
      } else {
        depths_.push_back({own, MtpPass(input.spec, input.fusion, static_cast<int>(depths_.size()), child)});
      }
    }
    const std::int64_t inside = share(input.batch.num_tokens(), input.sharding.context);
    tokens_ = share(inside, input.sharding.sequence_parts());
    elements_ = tokens_ * input.spec.hidden_size;
  }

  void forward() {
    if (PassSaved* first = part(0)) first->allocate(LayerSlot::kInput);
    if (input_.content.embedding == Part::kPresent) embedding_forward();
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      // Behind a stage's last layer lies what it sends away.
      if (PassSaved* next = part(i + 1)) next->allocate(LayerSlot::kInput);
      layers_[i].pass.forward(pass_, *layers_[i].saved, PassMode::kTraining);
    }
    const PassTensor window = gradients_.window(kOutsideLayers);
    if (input_.fusion == LossFusion::kFused) gradients_.arrive_output();
    std::vector<PassTensor> losses;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (i > 0) outputs_[i]->allocate(OutputSlot::kInput);
      losses.push_back(masked_sum(output_.forward(pass_, *outputs_[i])));
    }
    for (int depth = 0; depth < std::ssize(depths_); ++depth) {
      PassTensor loss_T;
      {
        const std::vector<PassTensor> depth_input = this->depth_input(depth);
        loss_T = at(depth).pass.forward(pass_, *at(depth).saved);
      }
      if (loss_T.is_defined()) losses.push_back(masked_sum(loss_T));
    }
    if (losses.size() > 1) ledger_.tensor(std::ssize(losses), DType::kFloat64);
  }

  void backward() {
    PassTensor gradient_TC;
    {
      const PassTensor window = gradients_.window(kOutsideLayers);
      if (input_.fusion == LossFusion::kUnfused) gradients_.arrive_output();
      const PassTensor dnormed_TH = depths_backward();
      for (std::size_t i = outputs_.size(); i-- > 0;) gradient_TC = output_.backward(pass_, dnormed_TH, *outputs_[i]);
    }
    if (!gradient_TC.is_defined()) {
      gradient_TC = ledger_.tensor(tokens_ * input_.spec.residual_width(), input_.policy.residual_type());
    }
    for (std::size_t i = layers_.size(); i-- > 0;) {
      const int layer = input_.content.first_layer + static_cast<int>(i);
      const PassTensor window = gradients_.window(layer);
      restore(i);
      gradients_.arrive(layer);
      gradient_TC = layers_[i].pass.backward(pass_, std::move(gradient_TC), *layers_[i].saved);
    }
    gradients_.arrive_rest();
    if (input_.content.embedding == Part::kAbsent) return;
    const PassTensor window = gradients_.window(kOutsideLayers);
    const PassTensor gradient_TH = sum_of_streams(pass_, std::move(gradient_TC));
    scale_embedding(pass_, input_.policy.residual_type());
    if (input_.spec.num_learned_positions > 0) positions();
  }

 private:
  struct Layer {
    PassSaved* saved;
    LayerPass pass;
  };
  struct Depth {
    PassSaved* saved;
    MtpPass pass;
  };

  Depth& at(int depth) { return depths_.at(static_cast<std::size_t>(depth)); }

  /// The layer behind layer i − 1, or the output.
  PassSaved* part(std::size_t i) const {
    if (i < layers_.size()) return layers_[i].saved;
    return outputs_.empty() ? nullptr : outputs_.front();
  }

  PassTensor positions() {
    PassTensor of_batch = ledger_.tensor(tokens_, DType::kInt64);
    ledger_.tensor(input_.batch.seq_length, DType::kInt64);
    return of_batch;
  }

  void embedding_forward() {
    const bool is_copied = input_.spec.num_streams() > 1;
    const PassTensor embedded_TH = is_copied ? ledger_.tensor(elements_, input_.policy.residual_type()) : PassTensor();
    PassTensor learnt_TH;
    if (input_.spec.num_learned_positions > 0) {
      learnt_TH = ledger_.tensor(elements_, input_.policy.parameters);
      positions();
    }
    const bool is_wide = input_.policy.residual_type() != input_.policy.parameters;
    const PassTensor rows_TH = is_wide ? ledger_.tensor(elements_, input_.policy.parameters) : PassTensor();
    scale_embedding(pass_, input_.policy.parameters);
  }

  /// Σ loss · mask in fp64.
  PassTensor masked_sum(const PassTensor& loss_T) {
    const PassTensor wide_T = ledger_.converted(loss_T, DType::kFloat64);
    PassTensor product_T;
    {
      const PassTensor mask_T = wide_T.dtype() == loss_T.dtype() ? PassTensor() : ledger_.like(wide_T);
      product_T = ledger_.like(wide_T);
    }
    return ledger_.tensor(1, DType::kFloat64);
  }

  bool is_mixed(int depth) const { return depth > 0 && input_.spec.mtp_variant.mixed_hidden_states == Part::kPresent; }

  /// Which rows each part gives: two numbers a token.
  PassTensor mixing() { return ledger_.tensor(2 * tokens_, DType::kInt64); }

  PassTensor part_output(int part) {
    if (part > 0) return at(part - 1).pass.normed(pass_, *at(part - 1).saved);
    // The decoder's last hidden states may be another stage's.
    return outputs_.empty() ? ledger_.tensor(elements_, input_.policy.parameters)
                            : output_.normed(pass_, *outputs_.front());
  }

  std::vector<PassTensor> depth_input(int depth) {
    if (!is_mixed(depth)) return {part_output(depth)};
    std::vector<PassTensor> held = {mixing(), part_output(depth)};
    for (int part = 0; part < depth; ++part) {
      const PassTensor other = part_output(part);
      ledger_.like(other);
    }
    held.erase(held.begin());
    return held;
  }

  PassTensor depths_backward() {
    std::vector<PassTensor> dparts(depths_.size() + 1);
    for (int depth = static_cast<int>(depths_.size()) - 1; depth >= 0; --depth) {
      const auto d = static_cast<std::size_t>(depth);
      const int layer = static_cast<int>(input_.spec.num_layers()) + input_.spec.parameter_depth(depth);
      const PassTensor window = gradients_.window(layer);
      const bool is_reached_first =
          input_.spec.mtp_variant.repeated == Part::kAbsent || depth + 1 == static_cast<int>(depths_.size());
      if (is_reached_first) gradients_.arrive(layer);
      PassTensor dinput_TH;
      {
        const std::vector<PassTensor> depth_input = this->depth_input(depth);
        const PassTensor dnormed_TH = std::exchange(dparts[d + 1], PassTensor());
        dinput_TH = at(depth).pass.backward(pass_, dnormed_TH, *at(depth).saved);
      }
      if (is_mixed(depth)) {
        const PassTensor rows = mixing();
        for (std::size_t part = 0; part <= d; ++part) {
          if (!dparts[part].is_defined()) dparts[part] = ledger_.like(dinput_TH);
          ledger_.like(dinput_TH);
        }
      } else if (!dparts[d].is_defined()) {
        dparts[d] = dinput_TH;
      }
    }
    return input_.spec.mtp_variant.detached == Part::kPresent ? PassTensor() : dparts[0];
  }

  void restore(std::size_t layer) {
    std::size_t first = layer;
    while (layers_[first].saved->is_missing(LayerSlot::kInput)) --first;
    for (; first < layer; ++first) {
      layers_[first + 1].saved->allocate(LayerSlot::kInput);
      layers_[first].pass.forward(pass_, *layers_[first].saved, PassMode::kRecompute);
    }
    layers_[layer].pass.restore(pass_, *layers_[layer].saved);
  }

  const PassInput& input_;
  PassContext pass_;
  PassLedger& ledger_;
  PassSaved saved_;
  MainGradients gradients_;
  OutputPass output_;
  std::vector<Layer> layers_;
  std::vector<PassSaved*> outputs_;
  std::vector<Depth> depths_;
  std::int64_t tokens_ = 0;
  std::int64_t elements_ = 0;
};

}  // namespace

MicroBatchPeaks pass_peaks(const PassInput& input, const SavedDeclaration& stage) {
  PassLedger ledger(input.left_out);
  MicroBatchPeaks peaks;
  {
    Walk walk(input, stage, ledger);
    walk.forward();
    peaks.forward = ledger.peaks();
    ledger.begin_pass();
    walk.backward();
    peaks.backward = ledger.peaks();
  }
  peaks.num_tensors = ledger.num_tensors();
  peaks.left = ledger.held_bytes();
  return peaks;
}

}  // namespace primus::model
