#include "model/descriptors.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace primus::model {

Naming layer_naming(int layer) {
  return {fmt::format("decoder.layers.{}.", layer), fmt::format("model.layers.{}.", layer), layer};
}

namespace {

/// Of matrices within the layers: as wide as the model, they shrink with its width.
Init hidden_init(const ModelSpec& spec, double std) {
  if (spec.init_shape == ModelSpec::InitShape::kXavierUniform) return {InitKind::kUniform};
  return {InitKind::kNormal, spec.width_scaling ? std / std::sqrt(spec.width_scaling->width) : std};
}

/// Xavier's bound, of one matrix of a stack: sqrt(6 / (inputs + outputs)).
double xavier_bound(const std::vector<std::int64_t>& shape) {
  const std::int64_t fans = shape[shape.size() - 1] + shape[shape.size() - 2];
  return std::sqrt(6.0 / static_cast<double>(fans));
}

}  // namespace

Init input_init(const ModelSpec& spec) {
  return hidden_init(spec, spec.init_std);
}

Init output_init(const ModelSpec& spec) {
  return hidden_init(spec, spec.init_std / std::sqrt(2.0 * static_cast<double>(spec.num_layers())));
}

Init embedding_init(const ModelSpec& spec) {
  const bool is_uniform = spec.init_shape == ModelSpec::InitShape::kXavierUniform && !spec.embedding_init_std;
  if (is_uniform) return {InitKind::kUniform};
  return {InitKind::kNormal, spec.embedding_init_std.value_or(spec.init_std)};
}

ParameterDescriptor matrix(const Naming& naming, const std::string& name, std::vector<std::int64_t> shape,
                           Component component, Init init) {
  ParameterDescriptor parameter;
  parameter.name = naming.ours + name;
  parameter.shape = std::move(shape);
  parameter.component = component;
  parameter.layer = naming.layer;
  parameter.init = init;
  if (init.kind == InitKind::kUniform) parameter.init.bound = xavier_bound(parameter.shape);
  return parameter;
}

ParameterDescriptor norm_weight(const Naming& naming, const std::string& name, std::int64_t width, Component component,
                                const std::string& hugging_face) {
  ParameterDescriptor parameter = matrix(naming, name, {width}, component, {InitKind::kOnes});
  parameter.decay = Decay::kNo;
  parameter.tensor_gradient = TensorGradient::kPartial;
  if (!hugging_face.empty()) parameter.hugging_face = {{naming.hugging_face + hugging_face, 0, width}};
  return parameter;
}

ParameterDescriptor bias_vector(const Naming& naming, const std::string& name, std::vector<std::int64_t> shape,
                                Component component) {
  ParameterDescriptor parameter = matrix(naming, name, std::move(shape), component, {InitKind::kZeros});
  parameter.decay = Decay::kNo;
  parameter.tensor_gradient = TensorGradient::kPartial;
  return parameter;
}

HuggingFaceSlice whole_rows(const std::string& name, const ParameterDescriptor& parameter, int axis) {
  return {name, 0, parameter.shape[static_cast<std::size_t>(axis)]};
}

Descriptors norm_parameters(const ModelSpec& spec, const Naming& naming, const std::string& name, std::int64_t width,
                            Component component, const std::string& hugging_face) {
  const std::string theirs = hugging_face.empty() ? "" : hugging_face + ".weight";
  Descriptors parameters = {norm_weight(naming, name + ".weight", width, component, theirs)};
  if (spec.norm_around_one == Part::kPresent) {
    parameters[0].init = {InitKind::kZeros};
  }
  if (spec.norm == NormKind::kLayer) {
    ParameterDescriptor bias = bias_vector(naming, name + ".bias", {width}, component);
    if (!theirs.empty()) bias.hugging_face = {whole_rows(naming.hugging_face + hugging_face + ".bias", bias)};
    parameters.push_back(std::move(bias));
  }
  return parameters;
}

Descriptors layer_norm(const ModelSpec& spec, const Naming& naming, const std::string& name,
                       const std::string& hugging_face) {
  return norm_parameters(spec, naming, name, spec.hidden_size, Component::kNorm, hugging_face);
}

namespace {

Descriptors hyper_parameters(const ModelSpec& spec, const Naming& naming, const std::string& name, std::int64_t logits,
                             std::int64_t groups, const std::string& hugging_face) {
  const std::int64_t width = spec.residual_width();
  // Products of a normed vector then have variance one; Megatron's matrix is Xavier's.
  const Init init = spec.hyper->form == HyperSpec::Form::kMegatron
                        ? Init{InitKind::kUniform}
                        : Init{InitKind::kNormal, 1.0 / std::sqrt(static_cast<double>(width))};
  const Init scale_init{.kind = InitKind::kConstant, .value = spec.hyper->first_scale};
  Descriptors parameters = {
      matrix(naming, name + ".weight", {logits, width}, Component::kHyperConnections, init),
      bias_vector(naming, name + ".bias", {logits}, Component::kHyperConnections),
      matrix(naming, name + ".scale", {groups}, Component::kHyperConnections, scale_init),
  };
  parameters[2].decay = Decay::kNo;
  constexpr const char* kTheirs[] = {"fn", "base", "scale"};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].tensor_gradient = TensorGradient::kPartial;
    parameters[i].hugging_face = {whole_rows(naming.hugging_face + hugging_face + kTheirs[i], parameters[i])};
  }
  return parameters;
}

}  // namespace

Descriptors hyper_connection(const ModelSpec& spec, const Naming& naming, const std::string& name,
                             const std::string& hugging_face) {
  if (!spec.hyper) return {};
  constexpr std::int64_t kGroups = 3;
  return hyper_parameters(spec, naming, name, spec.hyper->num_logits(), kGroups, hugging_face + ".");
}

Descriptors hyper_head(const ModelSpec& spec, const Naming& naming) {
  if (!spec.hyper || !spec.hyper->has_head()) return {};
  return hyper_parameters(spec, naming, "hyper_head", spec.num_streams(), 1, "hc_head.hc_");
}

}  // namespace primus::model
