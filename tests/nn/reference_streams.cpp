// Hyper-connections in plain formulas.
#include <ATen/TensorOperators.h>
#include <ATen/ops/einsum.h>

#include "nn/reference.hpp"

// Legend: B sequences, S length, N streams, H hidden, C = N·H.
namespace primus::test {
namespace {

Tensor normed_product(const Tensor& x_BSC, const model::HyperSpec& hyper, const Tensor& weight) {
  const Tensor mean = x_BSC.pow(2).mean(-1, /*keepdim=*/true);
  const bool is_inside = hyper.form == model::HyperSpec::Form::kDeepSeek;
  const Tensor root = is_inside ? (mean + hyper.norm_epsilon).sqrt() : mean.sqrt() + hyper.norm_epsilon;
  return (x_BSC / root).matmul(weight.t());
}

Tensor separate(const Tensor& x_BSC, const model::ModelSpec& spec) {
  return x_BSC.unflatten(-1, {spec.num_streams(), spec.hidden_size});
}

}  // namespace

Tensor reference_connection(const Tensor& x_BSC, const model::ModelSpec& spec, const std::string& part,
                            const ReferenceParameters& p, const std::function<Tensor(const Tensor&)>& half) {
  const std::int64_t n = spec.hyper->num_streams;
  const double epsilon = spec.hyper->epsilon;
  const std::string name = part + "_hyper_connection";
  const Tensor mix = normed_product(x_BSC, *spec.hyper, p.at(name + ".weight"));
  const auto logits = [&](std::int64_t first, std::int64_t count, std::int64_t group) {
    return mix.narrow(-1, first, count) * p.at(name + ".scale").select(0, group) +
           p.at(name + ".bias").narrow(0, first, count);
  };
  Tensor exchange = logits(2 * n, n * n, 2).unflatten(-1, {n, n}).softmax(-1) + epsilon;
  for (std::int64_t i = 0; i < spec.hyper->sinkhorn_iterations; ++i) {
    if (i > 0) exchange = exchange / (exchange.sum(-1, true) + epsilon);
    exchange = exchange / (exchange.sum(-2, true) + epsilon);
  }
  const Tensor x_BSNH = separate(x_BSC, spec);
  const Tensor read = logits(0, n, 0).sigmoid() + epsilon;
  const Tensor written = logits(n, n, 1).sigmoid() * 2.0;
  const Tensor y_BSH = half(at::einsum("bsn,bsnh->bsh", {read, x_BSNH}));
  return (at::einsum("bsn,bsh->bsnh", {written, y_BSH}) + at::einsum("bsjk,bsjh->bskh", {exchange, x_BSNH})).flatten(2);
}

Tensor reference_streams(const Tensor& x_BSH, const model::ModelSpec& spec) {
  return x_BSH.unsqueeze(2).expand({-1, -1, spec.num_streams(), -1}).flatten(2);
}

Tensor reference_contraction(const Tensor& x_BSC, const model::ModelSpec& spec, const ReferenceParameters& p,
                             const std::string& part) {
  if (!spec.hyper) return x_BSC;
  if (!spec.hyper->has_head()) return separate(x_BSC, spec).mean(2);
  const std::string name = part + ".hyper_head";
  const Tensor mix = normed_product(x_BSC, *spec.hyper, p.at(name + ".weight"));
  const Tensor read = (mix * p.at(name + ".scale") + p.at(name + ".bias")).sigmoid() + spec.hyper->epsilon;
  return at::einsum("bsn,bsnh->bsh", {read, separate(x_BSC, spec)});
}

}  // namespace primus::test
