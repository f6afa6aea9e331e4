#pragma once
// Mixture of experts: router, permutation, grouped experts with the probability applied before the down projection,
// shared experts, and the sum back into the residual stream.
#include "nn/latent_projection.hpp"
#include "nn/mlp.hpp"
#include "nn/router.hpp"

namespace primus::nn {

class Moe final : public Sublayer {
 public:
  Moe(const model::ModelSpec& spec, const model::NumericPolicy& policy, int layer, ParameterStore& parameters);

  void forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) override;
  void restore(const Tensor& x_TH, Saved& saved, const StepContext& step) override;
  void backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) override;
  void weight_grad(Saved& saved) override;

  const RouterMetrics& metrics() const { return router_.metrics(); }
  Router& router() { return router_; }

 private:
  void plan(Saved& saved);
  /// The choice of experts and the plan of their rows.
  void route(const Tensor& x_TH, Saved& saved, const StepContext& step);
  Tensor& expert_pre_activation(const Tensor& x_TH, Saved& saved);
  Tensor& shared_gate(const Tensor& x_TH, Saved& saved);
  void experts_forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH);
  /// The experts in their latent space: from the input to saved's latent output.
  void latent_forward(const Tensor& x_TH, Saved& saved, const StepContext& step);
  /// Both ways of the routed experts, from dy_TH to dx_TH (overwritten); returns the probabilities' gradient. What the
  /// latent projections leave goes to `latent`.
  Tensor routed_backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH,
                         std::vector<Tensor>& deferred, std::vector<Tensor>& latent);
  /// Overwrites dx_TH with the experts' share; returns the probabilities' gradient.
  Tensor experts_backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH,
                          std::vector<Tensor>& deferred);
  void shared_backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, Tensor& dx_TH,
                       std::vector<Tensor>& deferred);
  /// x by expert; rows without a choice are zero, so that products with them are.
  Tensor gather(const Tensor& x_TH, const Tensor& row_of, std::int64_t num_rows) const;
  /// The rows that the experts' first product reads. `input_scale_R` undefined: 1.
  Tensor expert_input(const Tensor& x_TH, const Tensor& row_of, std::int64_t num_rows,
                      const Tensor& input_scale_R) const;
  /// From dx_RH, the gradient of the scaled rows: theirs unscaled, in place, and the probabilities'.
  Tensor input_scale_gradient(const Tensor& x_TH, const Tensor& row_of, const Tensor& prob_R, Tensor& dx_RH) const;
  bool scales_input() const { return moe_.probabilities_on == model::MoeSpec::ProbabilitiesOn::kInput; }
  Tensor row_probabilities(Saved& saved) const;
  Tensor num_rows(const Tensor& offsets, const StepContext& step) const;
  void add_weight_gradients(std::span<const Tensor> deferred);

  model::MoeSpec moe_;
  ops::ActivationOptions activation_;
  at::ScalarType statistics_;  // type of the probabilities that scale activations
  Router router_;
  Parameter& fc1_;
  Parameter& fc2_;
  Parameter* fc1_bias_ = nullptr;  // both or none
  Parameter* fc2_bias_ = nullptr;
  std::optional<LatentProjection> latent_;
  std::optional<Mlp> shared_;
  Parameter* shared_gate_ = nullptr;
};

}  // namespace primus::nn
