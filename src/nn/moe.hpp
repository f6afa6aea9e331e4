#pragma once
// Mixture of experts: router, permutation, grouped experts with the probability applied before the down projection,
// shared experts, and the sum back into the residual stream.
#include "nn/layer.hpp"
#include "nn/mlp.hpp"
#include "ops/router/router.hpp"

namespace primus::nn {

/// What the router saw since the last reset; training micro-batches only (D7). On the device.
struct RouterMetrics {
  Tensor tokens_per_expert_E;  // int64
  Tensor aux_loss_1;           // sum over micro-batches, coefficient included
};

class Moe final : public Sublayer {
 public:
  Moe(const model::ModelSpec& spec, const model::NumericPolicy& policy, int layer, ParameterStore& parameters);

  void forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) override;
  void restore(const Tensor& x_TH, Saved& saved, const StepContext& step) override;
  void backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) override;
  void weight_grad(Saved& saved) override;

  const RouterMetrics& metrics() const { return metrics_; }
  void reset_metrics();

 private:
  void route(const Tensor& x_TH, Saved& saved, const StepContext& step);
  Tensor& expert_pre_activation(const Tensor& x_TH, Saved& saved);
  void experts_forward(const Tensor& x_TH, Saved& saved, Tensor& residual_TH);
  /// Overwrites dx_TH with the experts' share; returns the probabilities' gradient.
  Tensor experts_backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, Tensor& dx_TH,
                          std::vector<Tensor>& deferred);
  void router_backward(const Tensor& dprob_TK, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH,
                       std::vector<Tensor>& deferred);
  ops::RouterOptions router_options(const StepContext& step) const;
  Tensor gather(const Tensor& x_TH, const Tensor& row_of) const;
  void add_weight_gradients(std::span<const Tensor> deferred);

  model::MoeSpec moe_;
  Parameter& router_;
  Parameter& fc1_;
  Parameter& fc2_;
  std::optional<Mlp> shared_;
  RouterMetrics metrics_;
};

}  // namespace primus::nn
