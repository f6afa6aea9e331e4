#pragma once
// Grouped-query and multi-head attention with one fused projection, rows ordered queries, keys, values.
#include "nn/layer.hpp"
#include "ops/rope/rope.hpp"

namespace primus::nn {

class GqaAttention final : public Sublayer {
 public:
  GqaAttention(const model::ModelSpec& spec, int layer, ParameterStore& parameters);

  void forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) override;
  void restore(const Tensor& x_TH, Saved& saved, const StepContext& step) override;
  void backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) override;
  void weight_grad(Saved& saved) override;

 private:
  /// Queries, keys and values as views of the fused tensor, [B, S, heads, head_dim].
  struct Views {
    Tensor query, key, value;
  };
  Views views(const Tensor& qkv_TAD, model::BatchShape batch) const;
  void rotate(Tensor& qkv_TAD, const StepContext& step, ops::RopeDirection direction) const;
  /// kQkv from the normed input; kContext and kLogSumExp from kQkv.
  void project(const Tensor& x_TH, Saved& saved, const StepContext& step);
  void attend(Saved& saved, const StepContext& step);
  void add_weight_gradients(const std::vector<Tensor>& deferred);

  model::GqaSpec gqa_;
  double softmax_scale_;
  Parameter& qkv_;
  Parameter& output_;
};

}  // namespace primus::nn
