#include "engine/gradients.hpp"

#include "ops/adamw/adamw.hpp"

namespace primus::engine {
namespace {

template <typename TensorOf>
std::optional<std::string> first_nonfinite(const nn::ParameterStore& parameters, const TensorOf& tensor_of) {
  for (const auto& parameter : parameters.all()) {
    const at::Tensor& values = tensor_of(*parameter);
    if (values.defined() && ops::has_nonfinite(values)) return parameter->descriptor.name;
  }
  return std::nullopt;
}

}  // namespace

void reduce_gradients(nn::ParameterStore& parameters, const comm::Groups& groups) {
  for (const auto& parameter : parameters.all()) {
    if (!parameter->is_trained()) continue;
    at::Tensor& gradient = parameter->gradient();
    const bool is_expert = parameter->descriptor.reduction == model::GradReduction::kExpertDataParallel;
    (is_expert ? groups.expert_data : groups.data).all_reduce_sum(gradient);
    if (parameter->descriptor.shards.empty() &&
        parameter->descriptor.tensor_gradient == model::TensorGradient::kPartial) {
      groups.tensor.all_reduce_sum(gradient);
    }
  }
}

void global_gradient_square_sum(const nn::ParameterStore& parameters, const comm::Groups& groups,
                                at::Tensor& square_sum_1) {
  // Split models (later) add the squares of their shards over tensor, expert and pipeline groups here.
  PRIMUS_CHECK(groups.tensor.size() == 1 && groups.pipeline.size() == 1, "the norm of a split model");
  for (const auto& parameter : parameters.all()) {
    if (!parameter->is_trained() || parameter->state == nn::GradientSum::kSquared) continue;
    ops::add_sum_of_squares(parameter->gradient(), square_sum_1);
  }
}

std::optional<std::string> first_nonfinite_gradient(const nn::ParameterStore& parameters) {
  return first_nonfinite(parameters,
                         [](const nn::Parameter& parameter) -> const at::Tensor& { return parameter.gradient(); });
}

std::optional<std::string> first_nonfinite_weight(const nn::ParameterStore& parameters) {
  return first_nonfinite(parameters,
                         [](const nn::Parameter& parameter) -> const at::Tensor& { return parameter.weight; });
}

}  // namespace primus::engine
