#pragma once
// One layer: x1 = x + attention(norm(x)); x2 = x1 + mlp(norm(x1)). The residual stream's tensors are what is kept; the
// normed inputs are made again in backward. With residuals after the norm x1 = norm(x) + attention(norm(x)), and x2
// alike.
#include "nn/layer.hpp"
#include "nn/moe.hpp"
#include "nn/norm.hpp"
#include "nn/residual_dropout.hpp"

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

  Sublayer& attention() { return *attention_.sublayer; }
  /// nullptr in a dense layer.
  Moe* moe() { return moe_; }

 private:
  /// A sublayer with the norm before it and what happens to its output on the way into the residual stream.
  struct Half {
    std::string name;
    Norm norm;
    ResidualDropout dropout;
    std::unique_ptr<Sublayer> sublayer;
  };
  std::string observed_name(const Half& half, const StepContext& step, const char* end) const;
  /// residual_TH (overwritten): what the sublayer's output is added to, and that output.
  void half_forward(const Half& half, const Tensor& input, const Tensor& normed_TH, Saved& saved,
                    const StepContext& step, Tensor& residual_TH);
  /// saved's kMiddle from its kInput; `normed_TH` is scratch.
  void attention_half(Saved& saved, const StepContext& step, Tensor& normed_TH);
  /// One half of the layer, backwards: a sublayer and the norm before it.
  Tensor half_backward(Tensor dy_TH, Half& half, int input_slot, int rstd_slot, int child, Saved& saved,
                       const StepContext& step);
  /// An uninitialised tensor of this shape in the type that sublayers compute in.
  Tensor activation_like(const Tensor& x_TH) const {
    return at::empty(x_TH.sizes(), x_TH.options().dtype(activations_));
  }

  at::ScalarType activations_;  // the residual stream may be wider
  enum class Residual { kInput, kNormedInput } residual_;
  Half attention_;
  Half mlp_;
  Moe* moe_ = nullptr;  // mlp_'s sublayer in an MoE layer
};

}  // namespace primus::nn
