#pragma once
// One depth of multi-token prediction: from the hidden states of the part before it and the tokens that follow, a
// prediction one token further. Legend: T tokens, H hidden.
#include "nn/output_layer.hpp"
#include "nn/transformer_layer.hpp"

namespace primus::nn {

/// What a depth reads of a micro-batch: the ids shifted so that place t holds the token depth + 1 places on, and the
/// loss's labels and mask shifted alike.
struct DepthInput {
  Tensor ids_T;
  LossInput loss;
};

class MtpDepth {
 public:
  MtpDepth(const model::ModelSpec& spec, const model::NumericPolicy& policy, model::LossFusion fusion, int depth,
           ParameterStore& parameters);

  /// Loss of each token, unmasked. hidden_TH: the normed hidden states of the part before, which backward gets again.
  Tensor forward(const DepthInput& input, const Tensor& hidden_TH, Saved& saved, const StepContext& step);

  /// Gradient of hidden_TH; `dnormed_TH`, where defined, is the next depth's. Adds the embedding's gradient too.
  Tensor backward(const DepthInput& input, const Tensor& hidden_TH, const Tensor& dnormed_TH, Saved& saved,
                  const StepContext& step);
  void weight_grad(Saved& saved);

  /// What the next depth reads.
  Tensor normed(Saved& saved) const;
  TransformerLayer& layer() { return layer_; }

 private:
  /// [enorm(embedding), hnorm(hidden)] and the looked-up embedding; statistics are made or taken from `saved`.
  struct Joined {
    Tensor embedding_TH, both_T2H;
  };
  Joined join(const Tensor& ids_T, const Tensor& hidden_TH, Saved& saved) const;

  double norm_epsilon_;
  Parameter& embedding_;
  Parameter& embedding_norm_;
  Parameter& hidden_norm_;
  Parameter& joining_;
  TransformerLayer layer_;
  OutputLayer output_;
};

}  // namespace primus::nn
