#pragma once
// The whole model on one rank: embedding, layers, output. Legend: T tokens of the micro-batch, H hidden.
#include "nn/output_layer.hpp"
#include "nn/transformer_layer.hpp"

namespace primus::nn {

/// One micro-batch: ids and labels int64 [T], row by row of its sequences.
struct MicroBatchInput {
  Tensor ids_T;
  LossInput loss;
  Tensor positions_T = {};   // int64, in each token's document; undefined: in its sequence
  Tensor first_key_BS = {};  // int32, first token that each one sees; undefined: the sequence's
};

class Model {
 public:
  Model(const model::ModelSpec& spec, const model::NumericPolicy& policy, model::LossFusion fusion,
        ParameterStore& parameters);

  /// Masked sum of the tokens' losses, one element in fp64. In training `saved` holds what backward needs; in
  /// evaluation nothing is left in it.
  Tensor forward(const MicroBatchInput& input, Saved& saved, const StepContext& step);

  /// Adds every gradient to the main gradients (with kDeferred: those of weights later, by weight_grad).
  void backward(const MicroBatchInput& input, Saved& saved, const StepContext& step);
  void weight_grad(Saved& saved);

  std::vector<TransformerLayer>& layers() { return layers_; }

 private:
  void add_positions(const MicroBatchInput& input, const StepContext& step, Tensor& x_TH) const;

  Parameter& embedding_;
  Parameter* positions_ = nullptr;  // learnt ones
  std::vector<TransformerLayer> layers_;
  OutputLayer output_;
};

}  // namespace primus::nn
