#pragma once
// One depth of multi-token prediction: from the hidden states of the part before it and the tokens that follow, a
// prediction one token further. Legend: T tokens, H hidden.
#include "nn/model_input.hpp"
#include "nn/output_layer.hpp"
#include "nn/token_embedding.hpp"
#include "nn/transformer_layer.hpp"

namespace primus::nn {

class MtpDepth {
 public:
  /// `layer`: the depth's own, or the one that all depths repeat.
  MtpDepth(const model::ModelSpec& spec, const model::NumericPolicy& policy, model::LossFusion fusion, int depth,
           std::shared_ptr<TransformerLayer> layer, ParameterStore& parameters);

  /// Loss of each token, unmasked. hidden_TH: the normed hidden states of the part before, which backward gets again.
  Tensor forward(const DepthInput& input, const Tensor& hidden_TH, Saved& saved, const StepContext& step);

  /// Gradient of hidden_TH; `dnormed_TH`, where defined, is the next depth's. Adds the embedding's gradient too.
  Tensor backward(const DepthInput& input, const Tensor& hidden_TH, const Tensor& dnormed_TH, Saved& saved,
                  const StepContext& step);
  void weight_grad(Saved& saved);

  /// What the next depth reads.
  Tensor normed(Saved& saved) const;
  TransformerLayer& layer() { return *layer_; }

 private:
  /// [enorm(embedding), hnorm(hidden)] and the looked-up embedding; statistics are made or taken from `saved`.
  struct Joined {
    Tensor embedding_TH, both_T2H;
  };
  Joined join(const Tensor& ids_T, const Tensor& hidden_TH, Saved& saved, const StepContext& step) const;

  TokenEmbedding embedding_;
  Norm embedding_norm_;
  Norm hidden_norm_;
  Parameter& joining_;
  /// The context of a pass through the layer.
  StepContext repeated(StepContext step) const;

  int repetition_;
  enum class Gradients { kToDecoder, kWithin } gradients_;
  std::shared_ptr<TransformerLayer> layer_;
  OutputLayer output_;
};

}  // namespace primus::nn
