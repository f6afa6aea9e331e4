#pragma once
// The whole model on one rank: embedding, layers, output, prediction depths. Legend: T tokens of the micro-batch, H
// hidden.
#include "nn/mtp_depth.hpp"

namespace primus::nn {

/// One micro-batch: ids and labels int64 [T], row by row of its sequences.
struct MicroBatchInput {
  Tensor ids_T;
  LossInput loss;
  Tensor positions_T = {};              // int64, in each token's document; undefined: in its sequence
  Tensor first_key_BS = {};             // int32, first token that each one sees; undefined: the sequence's
  Tensor document_T = {};               // int64 number of each token's document; undefined: each sequence is one
  std::vector<DepthInput> depths = {};  // by add_depths (mtp_input.hpp)
};

class Model {
 public:
  Model(const model::ModelSpec& spec, const model::NumericPolicy& policy, model::LossFusion fusion,
        ParameterStore& parameters);

  /// Masked sums of the tokens' losses in fp64: the main model's, then each prediction depth's (training only). In
  /// training `saved` holds what backward needs; in evaluation nothing is left in it.
  Tensor forward(const MicroBatchInput& input, Saved& saved, const StepContext& step);

  /// Adds every gradient to the main gradients (with kDeferred: those of weights later, by weight_grad).
  void backward(const MicroBatchInput& input, Saved& saved, const StepContext& step);
  void weight_grad(Saved& saved);

  std::vector<TransformerLayer>& layers() { return layers_; }

  /// Routed blocks with the numbers of their layers, the prediction depths' behind the decoder's.
  struct RoutedLayer {
    int layer;
    Moe* moe;
  };
  std::vector<RoutedLayer> routed_layers();

 private:
  void add_positions(const MicroBatchInput& input, const StepContext& step, Tensor& x_TH) const;
  int num_layers() const { return static_cast<int>(layers_.size()); }
  Saved& output_saved(Saved& saved) const { return saved.child(num_layers()); }
  Saved& depth_saved(Saved& saved, int depth) const { return saved.child(num_layers() + 1 + depth); }
  /// The normed hidden states that depth `depth` reads.
  Tensor depth_input(Saved& saved, int depth) const;
  /// Runs the layers again whose inputs or halves `layer`'s backward misses.
  void restore(Saved& saved, int layer, const StepContext& step);
  /// Gradient of the main output's normed hidden states; undefined without depths.
  Tensor depths_backward(const MicroBatchInput& input, Saved& saved, const StepContext& step);

  ParameterStore& parameters_;
  Parameter& embedding_;
  Parameter* positions_ = nullptr;  // learnt ones
  std::vector<TransformerLayer> layers_;
  OutputLayer output_;
  std::vector<MtpDepth> depths_;
};

}  // namespace primus::nn
