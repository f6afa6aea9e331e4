#include "nn/latent_projection.hpp"

#include "nn/layer.hpp"
#include "nn/weight_gradients.hpp"
#include "ops/gemm/gemm.hpp"

namespace primus::nn {
namespace {

using Slot = model::MoeSlot;

}  // namespace

LatentProjection::LatentProjection(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : down_(parameters.get(fmt::format("decoder.layers.{}.mlp.fc1_latent_proj.weight", layer))),
      up_(parameters.get(fmt::format("decoder.layers.{}.mlp.fc2_latent_proj.weight", layer))) {
  if (spec.moe->latent->norm == model::Part::kPresent) {
    norm_.emplace(spec, fmt::format("decoder.layers.{}.mlp.latent_layernorm", layer), parameters);
  }
}

Tensor& LatentProjection::enter(const Tensor& x_TH, Saved& saved) const {
  Tensor& latent_TL = saved.allocate(Slot::kLatentInput);
  ops::linear_forward(x_TH, down_.weight, latent_TL);
  return latent_TL;
}

Tensor LatentProjection::normed(Saved& saved) const {
  const Tensor& output_TL = saved.at(Slot::kLatentOutput);
  if (!norm_) return output_TL;
  Tensor normed_TL = workspace({output_TL.size(0), output_TL.size(1)}, output_TL);
  norm_->forward(output_TL, Slot::kLatentRstd, saved, normed_TL);
  return normed_TL;
}

void LatentProjection::leave(Saved& saved, Tensor& residual_TH) const {
  ops::linear_forward(normed(saved), up_.weight, residual_TH, ops::Write::kAccumulate);
}

Tensor LatentProjection::leave_backward(const Tensor& dy_TH, Saved& saved, std::vector<Tensor>& left) {
  const Tensor normed_TL = normed(saved);
  Tensor dnormed_TL = workspace({normed_TL.size(0), normed_TL.size(1)}, normed_TL);
  ops::linear_dgrad(dy_TH, up_.weight, dnormed_TL);
  left.insert(left.end(), {dy_TH, normed_TL});
  if (!norm_) return dnormed_TL;
  Tensor doutput_TL = workspace({normed_TL.size(0), normed_TL.size(1)}, normed_TL);
  norm_->backward(dnormed_TL, saved.at(Slot::kLatentOutput), saved.at(Slot::kLatentRstd), doutput_TL,
                  ops::Write::kOverwrite);
  return doutput_TL;
}

void LatentProjection::enter_backward(const Tensor& dlatent_TL, const Tensor& x_TH, Tensor& dx_TH,
                                      std::vector<Tensor>& left) const {
  ops::linear_dgrad(dlatent_TL, down_.weight, dx_TH);
  left.insert(left.end(), {dlatent_TL, x_TH});
}

void LatentProjection::add_weight_gradients(std::span<const Tensor> left) {
  PRIMUS_CHECK(left.size() == kNumDeferred, "{} tensors were left for the latent projections", left.size());
  add_linear_gradient(left[0], left[1], up_);
  add_linear_gradient(left[2], left[3], down_);
}

}  // namespace primus::nn
