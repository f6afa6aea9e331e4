#pragma once
// MLP, gated or plain: the dense layers' and the shared experts'.
#include "nn/layer.hpp"
#include "ops/swiglu/activation.hpp"

namespace primus::nn {

/// The model's activation as the op knows it.
ops::ActivationOptions activation_options(const model::ModelSpec& spec);

/// [R, 2F] whose gate and up alternate in blocks of `block` columns, as gate behind up; and back. 0: x itself.
Tensor gate_before_up(const Tensor& x, std::int64_t block);
Tensor gate_beside_up(const Tensor& x, std::int64_t block);

class Mlp final : public Sublayer {
 public:
  /// `prefix`: for instance "decoder.layers.0.mlp"; `slot`: where the pre-activation is saved; `glu_interleave`: the
  /// block of alternating gate and up, 0: none.
  Mlp(const model::ModelSpec& spec, const std::string& prefix, int slot, ParameterStore& parameters,
      std::int64_t glu_interleave = 0);

  void forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) override;
  void restore(const Tensor& x_TH, Saved& saved, const StepContext& step) override;
  void backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) override;
  void weight_grad(Saved& saved) override;

  /// As forward, with each token's output times scale_T (undefined: 1).
  void scaled_forward(const Tensor& x_TH, const Tensor& scale_T, Saved& saved, Tensor& residual_TH);
  /// As backward, but dx_TH is added to or overwritten, and the tensors of the weight gradients are handed out. With a
  /// scale, dscale_T is its gradient.
  std::vector<Tensor> input_gradient(const Tensor& dy_TH, const Tensor& x_TH, const Tensor& scale_T, Saved& saved,
                                     Tensor& dx_TH, ops::Write write, Tensor& dscale_T);
  /// From what input_gradient handed out.
  void add_weight_gradients(std::span<const Tensor> deferred);

  static constexpr std::size_t kNumDeferred = 5;
  static constexpr std::size_t kInput = 3;  // place of x_TH among them

 private:
  Tensor& pre_activation(const Tensor& x_TH, Saved& saved);

  ops::ActivationOptions activation_;
  int slot_;
  std::int64_t glu_interleave_;
  Parameter& fc1_;
  Parameter& fc2_;
  Parameter* fc1_bias_ = nullptr;  // both or none
  Parameter* fc2_bias_ = nullptr;
};

}  // namespace primus::nn
