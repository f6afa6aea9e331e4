#pragma once
// One layer: x1 = x + attention(norm(x)); x2 = x1 + mlp(norm(x1)). The residual stream's tensors are what is kept; the
// normed inputs are made again in backward.
#include "nn/layer.hpp"
#include "nn/moe.hpp"

namespace primus::nn {

class TransformerLayer {
 public:
  TransformerLayer(const model::ModelSpec& spec, const model::NumericPolicy& policy, int layer,
                   ParameterStore& parameters);

  /// output_TH (overwritten) from saved's kInput, which the caller has filled. In training, what is to be made again is
  /// dropped.
  void forward(Saved& saved, const StepContext& step, Tensor& output_TH);

  /// Before backward, where the whole layer is made again: the half before the MLP, from saved's kInput.
  void restore(Saved& saved, const StepContext& step);

  /// Gradient of the layer's input from that of its output. With kWithBackward it may be dy_TH's own storage.
  Tensor backward(Tensor dy_TH, Saved& saved, const StepContext& step);

  void weight_grad(Saved& saved);

  /// nullptr in a dense layer.
  Moe* moe() { return moe_; }

 private:
  struct Norm {
    Parameter& weight;
    double epsilon;
  };
  /// saved's kMiddle from its kInput; `normed_TH` is scratch.
  void attention_half(Saved& saved, const StepContext& step, Tensor& normed_TH);
  /// One half of the layer, backwards: a sublayer and the norm before it.
  Tensor half_backward(Tensor dy_TH, Sublayer& sublayer, const Norm& norm, int input_slot, int rstd_slot, int child,
                       Saved& saved, const StepContext& step);

  Norm input_norm_;
  Norm middle_norm_;
  std::unique_ptr<Sublayer> attention_;
  std::unique_ptr<Sublayer> mlp_;
  Moe* moe_ = nullptr;  // mlp_ in an MoE layer
};

}  // namespace primus::nn
