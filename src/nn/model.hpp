#pragma once
// The whole model on one rank: embedding, layers, output, prediction depths. Legend: T tokens of the micro-batch, H
// hidden, C all residual streams side by side.
#include "nn/hidden_mixing.hpp"
#include "nn/model_input.hpp"
#include "nn/mtp_depth.hpp"

namespace primus::nn {

class Model {
 public:
  Model(const model::ModelSpec& spec, const model::NumericPolicy& policy, model::LossFusion fusion,
        ParameterStore& parameters);

  /// Masked sums of the tokens' losses in fp64: the main model's, then each prediction depth's (training only). In
  /// training `saved` holds what backward needs; in evaluation nothing is left in it.
  Tensor forward(const MicroBatchInput& input, Saved& saved, const StepContext& step);

  /// The normed hidden states that the output's projection reads, made again from what a training pass left in `saved`.
  Tensor normed_output(Saved& saved) const { return output_.normed(output_saved(saved)); }

  /// Adds every gradient to the main gradients (with kDeferred: those of weights later, by weight_grad).
  void backward(const MicroBatchInput& input, Saved& saved, const StepContext& step);
  void weight_grad(Saved& saved);

  std::vector<TransformerLayer>& layers() { return layers_; }

  /// Before a training step's first micro-batch.
  void begin_step();
  /// After a step that moved the weights.
  void clip_logits(const model::QkClip& clip, const RowScaler& scale);
  /// The largest attention logit of the step; nothing if the model does not count (ModelSpec::qk_clip).
  std::optional<double> largest_logit();
  /// Sum over the step's micro-batches of the indexers' mean loss; nothing if none is taught.
  std::optional<double> indexer_loss();

  /// Routed blocks with the numbers of their layers, the prediction depths' behind the decoder's, and how often each is
  /// applied in a pass.
  struct RoutedLayer {
    int layer;
    Moe* moe;
    std::int64_t num_passes = 1;
  };
  std::vector<RoutedLayer> routed_layers();

 private:
  /// The first layer's input: the embedded tokens, as many times as there are residual streams.
  void embed(const MicroBatchInput& input, const StepContext& step, Tensor& x_TC) const;
  /// What the positions' own embedding adds to the tokens'; undefined: nothing.
  Tensor learnt_positions(const MicroBatchInput& input, const StepContext& step) const;
  /// The layer behind `layer` reads the keys that this one has.
  void lend_choice(Saved& saved, int layer) const;
  /// Every layer once, the prediction depths' behind the decoder's.
  std::vector<TransformerLayer*> all_layers();
  int num_layers() const { return static_cast<int>(layers_.size()); }
  Saved& output_saved(Saved& saved) const { return saved.child(num_layers()); }
  Saved& depth_saved(Saved& saved, int depth) const { return saved.child(num_layers() + 1 + depth); }
  /// The normed hidden states of part `part`: the decoder, or prediction depth part − 1.
  Tensor part_output(Saved& saved, int part) const;
  /// What depth `depth` reads of them.
  Tensor depth_input(const MicroBatchInput& input, Saved& saved, int depth, const StepContext& step) const;
  bool is_repeated() const { return variant_.repeated == model::Part::kPresent; }
  bool is_mixed(int depth) const { return depth > 0 && variant_.mixed_hidden_states == model::Part::kPresent; }
  /// Runs the layers again whose inputs or halves `layer`'s backward misses.
  void restore(Saved& saved, int layer, const StepContext& step);
  /// Gradient of the main output's normed hidden states; undefined without depths.
  Tensor depths_backward(const MicroBatchInput& input, Saved& saved, const StepContext& step);

  ParameterStore& parameters_;
  TokenEmbedding embedding_;
  Parameter* positions_ = nullptr;  // learnt ones
  std::vector<TransformerLayer> layers_;
  std::vector<model::Part>
      takes_choice_;  // of each layer, and behind them the output: reads the keys of the one before
  OutputLayer output_;
  model::MtpVariant variant_;
  std::int64_t num_streams_;
  std::vector<MtpDepth> depths_;
};

}  // namespace primus::nn
