#include "model/optimizer_spec.hpp"

#include "base/error.hpp"
#include "model/optimizer_groups.hpp"

namespace primus::model {
namespace {

MuonScale muon_scale(const std::string& name) {
  if (name == "spectral") return MuonScale::kSpectral;
  if (name == "unit_rms_norm") return MuonScale::kUnitRmsNorm;
  PRIMUS_CHECK(name == "shape_scaling", "muon_scale_mode '{}' passed validation", name);
  return MuonScale::kShape;
}

MuonCoefficients muon_coefficients(const std::string& name) {
  if (name == "simple") return MuonCoefficients::kSimple;
  if (name == "quintic") return MuonCoefficients::kQuintic;
  if (name == "polar_express") return MuonCoefficients::kPolarExpress;
  PRIMUS_CHECK(name == "aol", "muon_coefficient_type '{}' passed validation", name);
  return MuonCoefficients::kAol;
}

MuonSpec muon_spec(const config::Experiment& experiment) {
  return {.momentum = experiment.get_double("muon_momentum"),
          .nesterov = experiment.get_bool("muon_use_nesterov") ? MuonSpec::Nesterov::kOn : MuonSpec::Nesterov::kOff,
          .split_qkv = experiment.get_bool("muon_split_qkv") ? MuonSpec::SplitQkv::kOn : MuonSpec::SplitQkv::kOff,
          .scale = muon_scale(experiment.get_string("muon_scale_mode")),
          .extra_scale = experiment.get_double("muon_extra_scale_factor"),
          .coefficients = muon_coefficients(experiment.get_string("muon_coefficient_type")),
          .num_steps = experiment.get_int("muon_num_ns_steps")};
}

OptimizerKind optimizer_kind(const std::string& name) {
  if (name == "adam") return OptimizerKind::kAdam;
  if (name == "sgd") return OptimizerKind::kSgd;
  if (name == "lion") return OptimizerKind::kLion;
  if (name == "adaptive_muon") return OptimizerKind::kAdaptiveMuon;
  if (name == "soap") return OptimizerKind::kSoap;
  PRIMUS_CHECK(name == "muon" || name == "dist_muon", "optimizer '{}' passed validation", name);
  return OptimizerKind::kMuon;
}

double width_of(const config::Experiment& experiment) {
  if (!experiment.get_bool("use_mup")) return 1.0;
  const std::int64_t hidden = experiment.get_int("hidden_size");
  const std::int64_t base = experiment.get_optional_int("mup_base_hidden_size").value_or(hidden);
  return static_cast<double>(hidden) / static_cast<double>(base);
}

/// A matrix whose inputs grow with the model's width.
bool is_wide_matrix(const ParameterDescriptor& parameter) {
  return parameter.is_matrix() && parameter.component != Component::kEmbedding;
}

/// Two keys say the same.
bool decays_qk_norms(const config::Experiment& experiment) {
  return experiment.get_bool("apply_wd_to_qk_layernorm") || !experiment.is_null("no_weight_decay_cond_type");
}

}  // namespace

std::string_view optimizer_name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kLion:
      return "lion";
    case OptimizerKind::kMuon:
      return "muon";
    case OptimizerKind::kAdaptiveMuon:
      return "adaptive_muon";
    case OptimizerKind::kSoap:
      return "soap";
  }
  PRIMUS_CHECK(false, "optimizer {} has no name", static_cast<int>(kind));
}

bool is_at_the_ends(const ParameterDescriptor& parameter) {
  return parameter.component == Component::kEmbedding || parameter.component == Component::kOutput;
}

OptimizerKind OptimizerSpec::rule(const ParameterDescriptor& parameter) const {
  if (!moves_matrices(kind)) return kind;
  if (parameter.is_matrix() && !is_at_the_ends(parameter)) return kind;
  // SOAP is Adam where there is no matrix.
  return kind == OptimizerKind::kSoap ? OptimizerKind::kAdam : scalar_kind;
}

Decay OptimizerSpec::decay(const ParameterDescriptor& parameter) const {
  const bool is_qk_norm =
      parameter.name.ends_with(".q_layernorm.weight") || parameter.name.ends_with(".k_layernorm.weight");
  return is_qk_norm && qk_norm_decay == QkNormDecay::kYes ? Decay::kYes : parameter.decay;
}

double OptimizerSpec::rate_factor(const ParameterDescriptor& parameter) const {
  const bool is_wide = is_wide_matrix(parameter);
  switch (rule(parameter)) {
    case OptimizerKind::kMuon:
    case OptimizerKind::kAdaptiveMuon:
      return 1.0;
    case OptimizerKind::kSgd:
      return is_wide ? 1.0 : width;
    default:
      return is_wide ? 1.0 / width : 1.0;
  }
}

double OptimizerSpec::epsilon_factor(const ParameterDescriptor& parameter) const {
  return kind == OptimizerKind::kAdam && is_wide_matrix(parameter) ? 1.0 / width : 1.0;
}

OptimizerSpec optimizer_spec(const config::Experiment& experiment) {
  return {
      .kind = optimizer_kind(experiment.get_string("optimizer")),
      .scalar_kind = optimizer_kind(experiment.get_string("muon_scalar_optimizer")),
      .beta1 = experiment.get_double("adam_beta1"),
      .beta2 = experiment.get_double("adam_beta2"),
      .epsilon = experiment.get_double("adam_eps"),
      .sgd_momentum = experiment.get_double("sgd_momentum"),
      .lion_beta1 = experiment.get_double("lion_beta1"),
      .lion_beta2 = experiment.get_double("lion_beta2"),
      .muon = muon_spec(experiment),
      .qk_norm_decay = decays_qk_norms(experiment) ? OptimizerSpec::QkNormDecay::kYes : OptimizerSpec::QkNormDecay::kNo,
      .width = width_of(experiment),
      .host_fraction =
          experiment.get_bool("optimizer_cpu_offload") ? experiment.get_double("optimizer_offload_fraction") : 0.0};
}

StatePlace OptimizerSpec::place(int layer) const {
  if (host_fraction >= 1.0) return StatePlace::kHost;
  if (layer < 0) return StatePlace::kDevice;
  const bool begins_another = std::floor((layer + 1) * host_fraction) > std::floor(layer * host_fraction);
  return begins_another ? StatePlace::kHost : StatePlace::kDevice;
}

std::int64_t state_bytes(DType type, std::int64_t num_elements) {
  const bool has_scales = type == DType::kFloat8 || type == DType::kFloat16;
  const std::int64_t num_blocks = has_scales ? (num_elements + kStateBlock - 1) / kStateBlock : 0;
  return num_elements * size_bytes(type) + num_blocks * size_bytes(DType::kFloat32);
}

namespace {

/// Averages over rows and over columns, and an eigenbasis of each, for every matrix of a stack.
std::int64_t basis_bytes(const std::vector<std::int64_t>& shape, const NumericPolicy& policy) {
  const std::int64_t rows = shape[shape.size() - 2];
  const std::int64_t columns = shape.back();
  std::int64_t num_matrices = 1;
  for (std::size_t axis = 0; axis + 2 < shape.size(); ++axis) num_matrices *= shape[axis];
  return 2 * num_matrices * (rows * rows + columns * columns) * size_bytes(policy.statistics);
}

std::int64_t part_of(std::int64_t count, std::int64_t parts) {
  return (count + parts - 1) / parts;
}

/// Of a parameter of this local shape, divided among `parts` ranks.
std::int64_t rule_bytes(OptimizerKind rule, const NumericPolicy& policy, const std::vector<std::int64_t>& shape,
                        std::int64_t parts) {
  std::int64_t whole = 1;
  for (const std::int64_t size : shape) whole *= size;
  const std::int64_t count = part_of(whole, parts);
  std::int64_t bytes = state_bytes(policy.first_moment, count);
  if (has_second_moment(rule)) bytes += state_bytes(policy.second_moment, count);
  if (rule == OptimizerKind::kSoap) bytes += part_of(basis_bytes(shape, policy), parts);
  if (!policy.has_master_copy()) return bytes;
  const bool is_beside = policy.master_form == MasterForm::kBesideWeight;
  return bytes + (is_beside ? count * std::int64_t{sizeof(std::int16_t)} : state_bytes(policy.master, count));
}

}  // namespace

std::int64_t optimizer_bytes(const OptimizerSpec& optimizer, const NumericPolicy& policy,
                             const ParameterDescriptor& parameter) {
  if (parameter.trained == Trained::kNo) return 0;
  return rule_bytes(optimizer.rule(parameter), policy, parameter.shape, 1);
}

ResidentBytes& ResidentBytes::operator+=(const ResidentBytes& other) {
  parameters += other.parameters;
  main_gradients += other.main_gradients;
  optimizer += other.optimizer;
  optimizer_on_host += other.optimizer_on_host;
  return *this;
}

ResidentBytes resident_bytes(std::span<const ParameterDescriptor> parameters, const OptimizerSpec& optimizer,
                             const NumericPolicy& policy, const ResidentSharding& sharding) {
  ResidentBytes bytes;
  for (const ParameterDescriptor& parameter : parameters) {
    const std::int64_t count = local_elements(parameter, sharding.model);
    const bool is_trained = parameter.trained == Trained::kYes;
    bytes.parameters += part_of(count, is_trained ? sharding.parameters.of(parameter) : 1) *
                        size_bytes(is_trained ? policy.parameters : policy.router);
    if (!is_trained) continue;
    bytes.main_gradients += part_of(count, sharding.gradients.of(parameter)) * size_bytes(policy.main_gradients);
    const bool is_on_host = optimizer.place(parameter) == StatePlace::kHost;
    (is_on_host ? bytes.optimizer_on_host : bytes.optimizer) += rule_bytes(
        optimizer.rule(parameter), policy, local_shape(parameter, sharding.model), sharding.optimizer.of(parameter));
  }
  return bytes;
}

std::int64_t update_workspace(std::span<const ParameterDescriptor> parameters, const OptimizerSpec& optimizer,
                              const NumericPolicy& policy) {
  // Muon: gradient, momentum, direction and the iteration's products, of which the squares are smaller. SOAP: gradient,
  // moments and their projections; the averages of both sides and what their factorisation needs.
  constexpr std::int64_t kMuonMatrices = 9;
  constexpr std::int64_t kSoapMatrices = 8;
  constexpr std::int64_t kSoapSquares = 8;
  std::int64_t most = 0;
  for (const ParameterDescriptor& parameter : parameters) {
    const OptimizerKind rule = optimizer.rule(parameter);
    if (parameter.trained == Trained::kNo || !moves_matrices(rule)) continue;
    const std::int64_t whole = parameter.num_elements();
    std::int64_t elements = kMuonMatrices * whole;
    if (rule == OptimizerKind::kSoap) {
      const std::size_t dimensions = parameter.shape.size();
      const std::int64_t rows = parameter.shape[dimensions - 2];
      const std::int64_t columns = parameter.shape[dimensions - 1];
      const std::int64_t side = std::max(rows, columns);
      elements = kSoapMatrices * whole + kSoapSquares * whole / (rows * columns) * side * side;
    }
    most = std::max(most, elements * size_bytes(policy.statistics));
  }
  return most;
}

}  // namespace primus::model
