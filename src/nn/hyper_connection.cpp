#include "nn/hyper_connection.hpp"

namespace primus::nn {

HyperConnection::HyperConnection(const model::ModelSpec& spec, const std::string& name, ParameterStore& parameters)
    : num_streams_(spec.num_streams()),
      norm_epsilon_(spec.hyper->norm_epsilon),
      epsilon_(spec.hyper->epsilon),
      norm_epsilon_at_(spec.hyper->form == model::HyperSpec::Form::kMegatron ? ops::RootEpsilon::kOutside
                                                                             : ops::RootEpsilon::kInside),
      sinkhorn_iterations_(static_cast<int>(spec.hyper->sinkhorn_iterations)),
      weight_(parameters.get(name + ".weight")),
      bias_(parameters.get(name + ".bias")),
      scale_(parameters.get(name + ".scale")) {}

ops::HyperConnection HyperConnection::values(const Tensor& x_TC) const {
  const at::ScalarType sums = ops::accumulator_type(x_TC.scalar_type());
  return {.num_streams = num_streams_,
          .weight_MC = weight_.weight.to(sums),
          .bias_M = bias_.weight.to(sums),
          .scale_G = scale_.weight.to(sums),
          .norm_epsilon = norm_epsilon_,
          .norm_epsilon_at = norm_epsilon_at_,
          .epsilon = epsilon_,
          .sinkhorn_iterations = sinkhorn_iterations_};
}

const Tensor& HyperConnection::mix(const Tensor& x_TC, int mix_slot, Saved& saved) const {
  if (saved.is_missing(mix_slot)) ops::hyper_mix(x_TC, values(x_TC), saved.allocate(mix_slot));
  return saved.at(mix_slot);
}

Tensor HyperConnection::read(const Tensor& x_TC, const Tensor& mix_TM) const {
  Tensor z_TH = at::empty({x_TC.size(0), x_TC.size(1) / num_streams_}, x_TC.options());
  ops::hyper_read_forward(x_TC, mix_TM, values(x_TC), z_TH);
  return z_TH;
}

void HyperConnection::write(const Tensor& x_TC, const Tensor& y_TH, const Tensor& mix_TM, Tensor& out_TC) const {
  ops::hyper_write_forward(x_TC, y_TH, mix_TM, values(x_TC), out_TC);
}

Tensor HyperConnection::write_backward(const Tensor& x_TC, const Tensor& y_TH, const Tensor& mix_TM,
                                       Tensor& dstreams_TC, Tensor& dy_TH) const {
  Tensor dweight_TM = at::empty_like(mix_TM);
  ops::hyper_write_backward(x_TC, y_TH, mix_TM, values(x_TC), dstreams_TC, dy_TH, dweight_TM);
  return dweight_TM;
}

void HyperConnection::read_backward(const Tensor& dz_TH, const Tensor& x_TC, const Tensor& mix_TM, Tensor dweight_TM,
                                    Tensor& dstreams_TC) {
  ops::HyperConnectionGradient gradient{weight_.sum_target(), bias_.sum_target(), scale_.sum_target()};
  ops::hyper_read_backward(dz_TH, x_TC, mix_TM, values(x_TC), dweight_TM, dstreams_TC, gradient);
}

void copy_to_streams(const Tensor& x_TH, Tensor& x_TC) {
  x_TC.unflatten(1, {x_TC.size(1) / x_TH.size(1), x_TH.size(1)}).copy_(x_TH.unsqueeze(1));
}

Tensor mean_of_streams(const Tensor& x_TC, std::int64_t num_streams) {
  // libtorch's own mean of narrow types holds a wide copy.
  return sum_of_streams(x_TC, num_streams).mul_(1.0 / static_cast<double>(num_streams));
}

Tensor sum_of_streams(const Tensor& dx_TC, std::int64_t num_streams) {
  return num_streams == 1 ? dx_TC : dx_TC.unflatten(1, {num_streams, dx_TC.size(1) / num_streams}).sum(1);
}

}  // namespace primus::nn
