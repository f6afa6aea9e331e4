#include "engine/gradients.hpp"

#include "ops/adamw/adamw.hpp"

namespace primus::engine {
namespace {

std::optional<std::string> first_nonfinite(const nn::ParameterStore& parameters, at::Tensor nn::Parameter::*tensor) {
  for (const auto& parameter : parameters.all()) {
    const at::Tensor& values = (*parameter).*tensor;
    if (values.defined() && ops::has_nonfinite(values)) return parameter->descriptor.name;
  }
  return std::nullopt;
}

}  // namespace

void reduce_gradients(nn::ParameterStore& parameters, const comm::Groups& groups) {
  for (const auto& parameter : parameters.all()) {
    if (!parameter->main_grad.defined()) continue;
    const bool is_expert = parameter->descriptor.reduction == model::GradReduction::kExpertDataParallel;
    (is_expert ? groups.expert_data : groups.data).all_reduce_sum(parameter->main_grad);
    if (parameter->descriptor.shards.empty() &&
        parameter->descriptor.tensor_gradient == model::TensorGradient::kPartial) {
      groups.tensor.all_reduce_sum(parameter->main_grad);
    }
  }
}

double global_gradient_norm(const nn::ParameterStore& parameters, const comm::Groups& groups) {
  // Split models (later) add the squares of their shards over tensor, expert and pipeline groups here.
  PRIMUS_CHECK(groups.tensor.size() == 1 && groups.pipeline.size() == 1, "the norm of a split model");
  double sum = 0.0;
  for (const auto& parameter : parameters.all()) {
    if (parameter->main_grad.defined()) sum += ops::sum_of_squares(parameter->main_grad);
  }
  return std::sqrt(sum);
}

std::optional<std::string> first_nonfinite_gradient(const nn::ParameterStore& parameters) {
  return first_nonfinite(parameters, &nn::Parameter::main_grad);
}

std::optional<std::string> first_nonfinite_weight(const nn::ParameterStore& parameters) {
  return first_nonfinite(parameters, &nn::Parameter::weight);
}

double clip_coefficient(double norm, double clip_grad) {
  if (clip_grad <= 0.0) return 1.0;
  return std::min(1.0, clip_grad / (norm + 1e-6));
}

}  // namespace primus::engine
