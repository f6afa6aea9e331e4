#pragma once
// The way of routed experts into a space narrower than the residual stream, and back: x · downᵀ before them, (norm of
// their sum) · upᵀ behind. Legend: T tokens, H hidden, L latent width.
#include "nn/norm.hpp"

namespace primus::nn {

class LatentProjection {
 public:
  LatentProjection(const model::ModelSpec& spec, int layer, ParameterStore& parameters);

  std::int64_t width() const { return down_.weight.size(0); }

  /// Fills saved's latent input from x_TH.
  Tensor& enter(const Tensor& x_TH, Saved& saved) const;
  /// residual_TH += what saved's latent output becomes; leaves the norm's statistics.
  void leave(Saved& saved, Tensor& residual_TH) const;

  /// Gradient of the latent output from that of the residual; what the weight gradients need is appended to `left`.
  Tensor leave_backward(const Tensor& dy_TH, Saved& saved, std::vector<Tensor>& left);
  /// dx_TH (overwritten) from the latent input's gradient.
  void enter_backward(const Tensor& dlatent_TL, const Tensor& x_TH, Tensor& dx_TH, std::vector<Tensor>& left) const;
  /// From what the two left.
  void add_weight_gradients(std::span<const Tensor> left);
  static constexpr std::size_t kNumDeferred = 4;

 private:
  Tensor normed(Saved& saved) const;

  Parameter& down_;
  Parameter& up_;
  std::optional<Norm> norm_;
};

}  // namespace primus::nn
