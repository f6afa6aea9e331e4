#pragma once
// Final norm, output projection and token-mean cross-entropy. Legend: T tokens, H hidden, V padded vocabulary.
#include "nn/layer.hpp"

namespace primus::nn {

/// What the loss needs of a micro-batch.
struct LossInput {
  Tensor label_T;  // int64
  Tensor mask_T;   // fp32 or fp64: 1 for a token that counts, 0 for one that does not
  /// 1 / number of counting tokens of the whole step: the step's loss is one global mean, however it is cut up (D4).
  double inverse_num_tokens = 1.0;
};

class OutputLayer {
 public:
  /// `norm`: the name of the norm before the projection, which all outputs of a model share.
  OutputLayer(const model::ModelSpec& spec, model::LossFusion fusion, const std::string& norm,
              ParameterStore& parameters);

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
  double norm_epsilon_;
  model::LossFusion fusion_;
  Parameter& norm_;
  Parameter& weight_;  // the embedding's when tied
};

}  // namespace primus::nn
