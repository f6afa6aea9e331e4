#pragma once
// Final norm, output projection and token-mean cross-entropy; before them, what makes one hidden state of several
// residual streams. Legend: T tokens, H hidden, C all residual streams side by side, V padded vocabulary.
#include "nn/hyper_connection.hpp"
#include "nn/model_input.hpp"
#include "nn/norm.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"

namespace primus::nn {

/// Does the projection's weight get a gradient from this output?
enum class OutputTraining { kTrained, kFrozen };

class OutputLayer {
 public:
  /// `part`: whose output it is, "decoder" or "mtp.layers.0": the norm is its own. All outputs of a model share the
  /// projection.
  OutputLayer(const model::ModelSpec& spec, const model::NumericPolicy& policy, model::LossFusion fusion,
              const std::string& part, ParameterStore& parameters, OutputTraining training = OutputTraining::kTrained);

  /// Loss of each token, unmasked, from saved's kInput. In training, what backward needs stays in `saved`; fused, the
  /// projection's weight gradient is already added (its one pass over the logits yields all three).
  Tensor forward(Saved& saved, const StepContext& step, const LossInput& input);

  /// Gradient of the layer's input. `dnormed_TH`, where defined, is what else reads the normed hidden states sends
  /// back.
  Tensor backward(Saved& saved, const StepContext& step, const Tensor& dnormed_TH);
  void weight_grad(Saved& saved);

  /// The normed hidden states, made again from what forward saved: what a prediction depth reads.
  Tensor normed(Saved& saved) const;

 private:
  /// What the norm sees: the input, or one hidden state of its streams.
  Tensor read(Saved& saved) const;

  std::int64_t hidden_, num_streams_;
  model::LossFusion fusion_;
  OutputTraining training_;
  ops::LogitOptions logits_;
  std::optional<HyperConnection> head_;  // of several residual streams; without one it is their mean
  Norm norm_;
  Parameter& weight_;  // the embedding's when tied
};

}  // namespace primus::nn
