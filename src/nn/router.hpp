#pragma once
// The router of an MoE layer: logits from the layer's input, the choice of experts, the losses that balance them, and
// what a step counts for that.
#include <map>

#include "nn/layer.hpp"
#include "ops/router/noise.hpp"
#include "ops/router/quantile_rule.hpp"
#include "ops/router/router.hpp"

namespace primus::nn {

/// What the router saw since the last reset; training micro-batches only (D7). On the device.
struct RouterMetrics {
  Tensor tokens_per_expert_E;  // int64, choices: before any is dropped
  Tensor loss_4;               // sums over micro-batches, coefficients included; places: ops::RouterLoss
  /// Choices beyond their expert's capacity, where there is one: on the host, as capacities are.
  std::optional<std::int64_t> num_dropped;
};

class Router {
 public:
  Router(const model::ModelSpec& spec, const model::NumericPolicy& policy, int layer, ParameterStore& parameters);

  /// Fills saved's logits, index, prob and slope.
  void forward(const Tensor& x_TH, Saved& saved, const StepContext& step);

  /// Adds to dx_TH; gives what add_weight_gradients needs.
  std::vector<Tensor> backward(const Tensor& dprob_TK, const Tensor& x_TH, Saved& saved, const StepContext& step,
                               Tensor& dx_TH);
  void add_weight_gradients(std::span<const Tensor> deferred);
  static constexpr std::size_t kNumDeferred = 2;

  const RouterMetrics& metrics() const { return metrics_; }
  void reset_metrics();

  /// Moves the expert bias by what the step's micro-batches counted (over all ranks that saw other tokens). Once after
  /// a step; proceed_1 (int32, on the weights' device) is 0 where the step updated nothing.
  void update_bias(comm::Group& data, const Tensor& proceed_1);

 private:
  /// Counts of the step's micro-batches before one of them, for the global loss; kept for its recomputation.
  struct Earlier {
    std::vector<std::int64_t> num_E;
    std::int64_t num_batches = 0;
  };

  ops::RouterOptions options(const StepContext& step) const;
  ops::TokenNoise noise(const char* purpose, const StepContext& step) const;
  bool has_jitter(const StepContext& step) const;
  /// The input that the logits are made of, in the type that the logits' product needs.
  Tensor input(const Tensor& x_TH, const StepContext& step) const;
  void fill_with_random_logits(const StepContext& step, Tensor& logits_TE) const;
  bool chooses_by_token() const;
  ops::RouterInput router_input(const Tensor& logits_TE, const StepContext& step);
  void count(const ops::RouterOutput& output, const StepContext& step);
  std::int64_t num_beyond_capacity(const ops::RouterOutput& output) const;
  ops::MarginOptions margin_options() const;
  void update_by_sign(comm::Group& data, const Tensor& proceed_1);
  void update_to_quantile(comm::Group& data);
  /// The expert bias from the margins of the steps since it last moved.
  void update_by_margins(comm::Group& data);

  model::RouterSpec router_;
  int layer_;
  Parameter& weight_;
  Parameter* bias_ = nullptr;           // of the logits
  Parameter* choice_bias_ = nullptr;    // of the choice alone: the expert bias, or the quantile
  Parameter* token_experts_ = nullptr;  // the choice of every token of the vocabulary
  RouterMetrics metrics_;
  Tensor quantile_sum_E_;  // of the step's micro-batches
  std::int64_t num_quantiles_ = 0;
  Tensor margins_EB_;          // of the step's micro-batches, with a quantile rule
  Tensor earlier_margins_EB_;  // of the steps since the bias last moved
  std::int64_t num_margin_steps_ = 0;
  Earlier counted_;                                          // by the step so far
  std::map<std::pair<std::int64_t, int>, Earlier> earlier_;  // by the micro-batch's first token and the repetition
};

}  // namespace primus::nn
