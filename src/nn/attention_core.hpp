#pragma once
// What both kinds of attention share: the keys that a layer's queries see, what its softmax has besides, and the bias
// of the output projection. Legend: B sequences, S length, A heads, G key/value heads, D query size, V value size.
#include "nn/layer.hpp"
#include "ops/attention/attention.hpp"

namespace primus::nn {

/// q, k and v of a micro-batch, [B, S, heads, size].
struct AttentionInput {
  Tensor query, key, value;
  Tensor selected_BSW = {};  // of sparse attention (ops::AttentionOptions); undefined: every key in sight
};

class AttentionCore {
 public:
  AttentionCore(const model::ModelSpec& spec, int layer, std::int64_t query_dim, ParameterStore& parameters);

  void forward(const AttentionInput& in, const StepContext& step, Tensor& context_BSAV, Tensor& lse_BAS);
  /// Gradients of the input (overwritten); the sinks' are added to their main gradient.
  void backward(const Tensor& dcontext_BSAV, const AttentionInput& in, const Tensor& context_BSAV,
                const Tensor& lse_BAS, const StepContext& step, AttentionInput& gradient) const;

  /// residual_TH += context · projectionᵀ + bias.
  void project(const Tensor& context_TV, Tensor& residual_TH) const;
  /// Gradient of the context; the bias's is added to its main gradient.
  void project_backward(const Tensor& dy_TH, Tensor& dcontext_TV) const;
  Parameter& projection() const { return projection_; }

  /// What attention over `in` sees and how.
  ops::AttentionOptions options(const AttentionInput& in, const StepContext& step) const;

  void begin_step();
  /// threshold / largest logit since begin_step, at most 1, of each group of `heads` neighbouring heads.
  std::vector<double> shrinkage(const model::QkClip& clip, std::int64_t heads) const;
  /// Of all heads since begin_step; nothing if the model does not count.
  std::optional<double> largest_logit() const;

 private:
  double softmax_scale_;
  std::int64_t window_;
  double softcap_;
  Tensor max_logit_A_;  // of the step so far; undefined: nobody asks
  double dropout_;
  std::uint64_t dropout_stream_;
  std::int64_t num_zero_sinks_;  // as many as heads, or none
  Parameter* sinks_ = nullptr;
  Parameter& projection_;
  Parameter* bias_ = nullptr;
};

}  // namespace primus::nn
