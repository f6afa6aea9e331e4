#pragma once
// Grouped-query and multi-head attention with one fused projection, its rows ordered queries, keys, values; a gate on
// the output stands behind each head's query. With norms on queries and keys, what is kept is the projection's output,
// and backward norms and rotates it again.
#include "nn/attention_core.hpp"
#include "nn/norm.hpp"
#include "ops/rope/rope.hpp"

namespace primus::nn {

class GqaAttention final : public Sublayer {
 public:
  GqaAttention(const model::ModelSpec& spec, int layer, ParameterStore& parameters);

  void forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) override;
  void restore(const Tensor& x_TH, Saved& saved, const StepContext& step) override;
  void backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) override;
  void weight_grad(Saved& saved) override;
  void begin_step() override { core_.begin_step(); }
  void clip_logits(const model::QkClip& clip, const RowScaler& scale) override;
  std::optional<double> largest_logit() const override { return core_.largest_logit(); }

 private:
  /// Parts of a fused tensor as views of it, [T, heads, head_dim]; the gate is undefined where there is none.
  struct Parts {
    Tensor query, gate, key, value;
  };
  /// Norm of queries or keys, where the model has them.
  std::optional<Norm> head_norm(const model::ModelSpec& spec, const std::string& name,
                                ParameterStore& parameters) const;
  Parts parts(const Tensor& fused_TAD) const;
  bool has_norms() const { return query_norm_.has_value(); }
  /// kQkv from the normed input; kContext and kLogSumExp from kQkv.
  void project(const Tensor& x_TH, Saved& saved, const StepContext& step);
  void attend(Saved& saved, const StepContext& step);
  /// Queries and keys as attention reads them, from what kQkv holds.
  Parts ready(const Parts& raw, Saved& saved, const StepContext& step) const;
  void rotate(Parts& heads, const StepContext& step, ops::RopeDirection direction) const;
  void core_backward(const Tensor& dcontext_TAD, Saved& saved, const StepContext& step, Parts& gradient);
  void norm_backward(const Parts& dnormed, const Parts& raw, Saved& saved, Parts& gradient);
  void add_weight_gradients(const std::vector<Tensor>& deferred);

  model::GqaSpec gqa_;
  ops::RopeLayout layout_;
  enum class Rotation { kNone, kByPosition } rotation_;
  AttentionCore core_;
  Parameter& qkv_;
  Parameter* qkv_bias_ = nullptr;
  std::optional<Norm> query_norm_, key_norm_;  // both or none
};

}  // namespace primus::nn
