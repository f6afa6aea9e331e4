#include "model/descriptors.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace primus::model {

Naming layer_naming(int layer) {
  return {fmt::format("decoder.layers.{}.", layer), fmt::format("model.layers.{}.", layer), layer};
}

Init input_init(const ModelSpec& spec) {
  return {InitKind::kNormal, spec.init_std};
}

Init output_init(const ModelSpec& spec) {
  return {InitKind::kNormal, spec.init_std / std::sqrt(2.0 * static_cast<double>(spec.num_layers()))};
}

ParameterDescriptor matrix(const Naming& naming, const std::string& name, std::vector<std::int64_t> shape,
                           Component component, Init init) {
  ParameterDescriptor parameter;
  parameter.name = naming.ours + name;
  parameter.shape = std::move(shape);
  parameter.component = component;
  parameter.layer = naming.layer;
  parameter.init = init;
  return parameter;
}

ParameterDescriptor norm_weight(const Naming& naming, const std::string& name, std::int64_t width, Component component,
                                const std::string& hugging_face) {
  ParameterDescriptor parameter = matrix(naming, name, {width}, component, {InitKind::kOnes, 0.0});
  parameter.decay = Decay::kNo;
  parameter.tensor_gradient = TensorGradient::kPartial;
  if (!hugging_face.empty()) parameter.hugging_face = {{naming.hugging_face + hugging_face, 0, width}};
  return parameter;
}

ParameterDescriptor bias_vector(const Naming& naming, const std::string& name, std::vector<std::int64_t> shape,
                                Component component) {
  ParameterDescriptor parameter = matrix(naming, name, std::move(shape), component, {InitKind::kZeros, 0.0});
  parameter.decay = Decay::kNo;
  parameter.tensor_gradient = TensorGradient::kPartial;
  return parameter;
}

HuggingFaceSlice whole_rows(const std::string& name, const ParameterDescriptor& parameter, int axis) {
  return {name, 0, parameter.shape[static_cast<std::size_t>(axis)]};
}

Descriptors layer_norm(const ModelSpec& spec, const Naming& naming, const std::string& name,
                       const std::string& hugging_face) {
  Descriptors parameters = {
      norm_weight(naming, name + ".weight", spec.hidden_size, Component::kNorm, hugging_face + ".weight")};
  if (spec.norm == NormKind::kLayer) {
    ParameterDescriptor bias = bias_vector(naming, name + ".bias", {spec.hidden_size}, Component::kNorm);
    bias.hugging_face = {whole_rows(naming.hugging_face + hugging_face + ".bias", bias)};
    parameters.push_back(std::move(bias));
  }
  return parameters;
}

}  // namespace primus::model
