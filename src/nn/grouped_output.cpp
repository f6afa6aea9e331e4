#include "nn/grouped_output.hpp"

#include "nn/weight_gradients.hpp"
#include "ops/gemm/gemm.hpp"

namespace primus::nn {
namespace {

std::string name_of(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.self_attention.{}.weight", layer, part);
}

/// One group's columns, or rows.
Tensor part(const Tensor& x, std::int64_t axis, std::int64_t group, std::int64_t num_groups) {
  const std::int64_t width = x.size(axis) / num_groups;
  return x.narrow(axis, group * width, width);
}

}  // namespace

GroupedOutput::GroupedOutput(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : num_groups_(spec.compressed.output_groups),
      down_(parameters.get(name_of(layer, "linear_o_down_proj"))),
      projection_(parameters.get(name_of(layer, "linear_proj"))) {}

void GroupedOutput::down(const Tensor& context_TV, Tensor& down_TL) const {
  for (std::int64_t group = 0; group < num_groups_; ++group) {
    Tensor target = part(down_TL, 1, group, num_groups_);
    ops::linear_forward(part(context_TV, 1, group, num_groups_), part(down_.weight, 0, group, num_groups_), target);
  }
}

void GroupedOutput::project(const Tensor& down_TL, Tensor& residual_TH) const {
  ops::linear_forward(down_TL, projection_.weight, residual_TH, ops::Write::kAccumulate);
}

void GroupedOutput::backward(const Tensor& dy_TH, Tensor& ddown_TL, Tensor& dcontext_TV) const {
  ops::linear_dgrad(dy_TH, projection_.weight, ddown_TL);
  for (std::int64_t group = 0; group < num_groups_; ++group) {
    Tensor target = part(dcontext_TV, 1, group, num_groups_);
    ops::linear_dgrad(part(ddown_TL, 1, group, num_groups_), part(down_.weight, 0, group, num_groups_), target);
  }
}

void GroupedOutput::add_weight_gradients(const Tensor& dy_TH, const Tensor& down_TL, const Tensor& ddown_TL,
                                         const Tensor& context_TV) {
  add_linear_gradient(dy_TH, down_TL, projection_);
  const auto [sum, write] = down_.product_target();
  for (std::int64_t group = 0; group < num_groups_; ++group) {
    Tensor rows = part(sum, 0, group, num_groups_);
    ops::linear_wgrad(part(ddown_TL, 1, group, num_groups_), part(context_TV, 1, group, num_groups_), rows, write);
  }
}

}  // namespace primus::nn
