#pragma once
// LFM2's gated short convolution: one projection gives b, c and x, and c ⊙ conv(b ⊙ x) is projected back. What is kept
// is the first projection's output.
#include "nn/layer.hpp"
#include "ops/short_conv/short_conv.hpp"

namespace primus::nn {

class ShortConvolution final : public Sublayer {
 public:
  ShortConvolution(const model::ModelSpec& spec, int layer, ParameterStore& parameters);

  void forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) override;
  void restore(const Tensor& x_TH, Saved& saved, const StepContext& step) override;
  void backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) override;
  void weight_grad(Saved& saved) override;

 private:
  /// A linear layer or the convolution, with its bias where the model has them.
  struct Weights {
    Parameter* weight = nullptr;
    Parameter* bias = nullptr;
  };
  void project(const Tensor& x_TH, Saved& saved) const;
  ops::ShortConv convolution(const StepContext& step) const;
  void add_weight_gradients(const std::vector<Tensor>& deferred) const;

  Weights in_, conv_, out_;
};

}  // namespace primus::nn
