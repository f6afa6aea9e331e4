#include "nn/norm.hpp"

namespace primus::nn {

Norm::Norm(const model::ModelSpec& spec, const std::string& name, ParameterStore& parameters)
    : options_{.kind = spec.norm == model::NormKind::kLayer ? ops::NormKind::kLayer : ops::NormKind::kRms,
               .weight = spec.norm_around_one == model::Part::kPresent ? ops::NormWeight::kAroundOne
                                                                       : ops::NormWeight::kPlain,
               .epsilon = spec.norm_epsilon},
      weight_(&parameters.get(name + ".weight")) {
  if (spec.norm == model::NormKind::kLayer) bias_ = &parameters.get(name + ".bias");
}

Norm Norm::without_weight(double epsilon, std::int64_t width, const Tensor& like) {
  Norm norm;
  norm.options_.epsilon = epsilon;
  norm.ones_H_ = at::ones({width}, like.options());
  norm.unread_H_ = at::zeros({width}, like.options().dtype(ops::accumulator_type(like.scalar_type())));
  return norm;
}

ops::NormParameters Norm::values(const Tensor& x) const {
  const Tensor& weight_H = weight_ != nullptr ? weight_->weight : ones_H_;
  return {weight_H.to(x.scalar_type()), bias_ != nullptr ? bias_->weight.to(x.scalar_type()) : Tensor()};
}

void Norm::forward(const Tensor& x, int statistics_slot, Saved& saved, Tensor& y) const {
  if (!saved.is_missing(statistics_slot)) return apply(x, saved.at(statistics_slot), y);
  Tensor& statistics = saved.allocate(statistics_slot);
  if (x.scalar_type() == y.scalar_type()) return ops::norm_forward(x, values(x), options_, y, statistics);
  Tensor wide = at::empty(x.sizes(), x.options());
  ops::norm_forward(x, values(x), options_, wide, statistics);
  y.copy_(wide);
}

Tensor Norm::forward(const Tensor& x, Tensor& y) const {
  const std::int64_t rows = x.numel() / x.size(-1);
  Tensor statistics =
      at::empty({options_.num_statistics() * rows}, x.options().dtype(ops::accumulator_type(x.scalar_type())));
  ops::norm_forward(x, values(x), options_, y, statistics);
  return statistics;
}

void Norm::apply(const Tensor& x, const Tensor& statistics, Tensor& y) const {
  if (x.scalar_type() == y.scalar_type()) return ops::norm_apply(x, values(x), options_, statistics, y);
  Tensor wide = at::empty(x.sizes(), x.options());
  ops::norm_apply(x, values(x), options_, statistics, wide);
  y.copy_(wide);
}

void Norm::backward(const Tensor& dy, const Tensor& x, const Tensor& statistics, Tensor& dx, ops::Write write) {
  ops::NormParameters main_grad{weight_ != nullptr ? weight_->sum_target() : unread_H_,
                                bias_ != nullptr ? bias_->sum_target() : Tensor()};
  ops::norm_backward(dy.to(x.scalar_type()), x, values(x), options_, statistics, dx, write, main_grad);
}

}  // namespace primus::nn
