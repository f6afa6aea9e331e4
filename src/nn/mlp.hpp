#pragma once
// Gated MLP (SwiGLU): the dense layers' and the shared experts'.
#include "nn/layer.hpp"

namespace primus::nn {

class Mlp final : public Sublayer {
 public:
  /// `prefix`: for instance "decoder.layers.0.mlp"; `slot`: where the pre-activation is saved.
  Mlp(const std::string& prefix, int slot, ParameterStore& parameters);

  void forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) override;
  void restore(const Tensor& x_TH, Saved& saved, const StepContext& step) override;
  void backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) override;
  void weight_grad(Saved& saved) override;

  /// As backward, but dx_TH is added to or overwritten, and the tensors of the weight gradients are handed out.
  std::vector<Tensor> input_gradient(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, Tensor& dx_TH,
                                     ops::Write write);
  /// From what input_gradient handed out.
  void add_weight_gradients(std::span<const Tensor> deferred);

  static constexpr std::size_t kNumDeferred = 4;

 private:
  Tensor& pre_activation(const Tensor& x_TH, Saved& saved);

  int slot_;
  Parameter& fc1_;
  Parameter& fc2_;
};

}  // namespace primus::nn
