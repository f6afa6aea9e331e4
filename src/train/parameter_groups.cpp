#include "train/parameter_groups.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/files.hpp"
#include "model/optimizer_groups.hpp"

namespace primus::train {
namespace {

/// What parameters of one group have in common.
struct Group {
  model::OptimizerKind rule;
  model::Decay decay;
  EndRate rate;
  double rate_factor;
  double epsilon_factor;

  bool operator==(const Group&) const = default;
};

Group group_of(const model::ParameterDescriptor& parameter, const model::OptimizerSpec& spec, EndRate end_rate) {
  const bool has_own_rate = end_rate == EndRate::kOwn && model::is_at_the_ends(parameter);
  return {.rule = spec.rule(parameter),
          .decay = spec.decay(parameter),
          .rate = has_own_rate ? EndRate::kOwn : EndRate::kCommon,
          // A rate that the user wrote is not scaled.
          .rate_factor = has_own_rate ? 1.0 : spec.rate_factor(parameter),
          .epsilon_factor = spec.epsilon_factor(parameter)};
}

/// Factors under Megatron's names of its groups.
nlohmann::ordered_json json_of(const Group& group) {
  return {{"optimizer", model::optimizer_name(group.rule)},
          {"lr", group.rate == EndRate::kOwn ? "decoupled_lr" : "lr"},
          {"lr_mult", group.rate_factor},
          {"wd_mult", group.decay == model::Decay::kYes ? 1.0 : 0.0},
          {"eps_mult", group.epsilon_factor},
          {"num_elements", 0}};
}

}  // namespace

std::optional<std::string> parameter_groups_file(const config::Experiment& experiment) {
  return experiment.get_optional_string("dump_param_to_param_group_map");
}

void write_parameter_groups(std::span<const model::ParameterDescriptor> parameters, const model::OptimizerSpec& spec,
                            EndRate end_rate, const std::filesystem::path& path) {
  std::vector<Group> groups;
  nlohmann::ordered_json file = {{"groups", nlohmann::ordered_json::array()},
                                 {"parameters", nlohmann::ordered_json::object()}};
  for (const model::ParameterDescriptor& parameter : parameters) {
    if (parameter.trained != model::Trained::kYes) continue;
    const Group group = group_of(parameter, spec, end_rate);
    const auto found = std::find(groups.begin(), groups.end(), group);
    const auto number = static_cast<std::size_t>(found - groups.begin());
    if (found == groups.end()) {
      groups.push_back(group);
      file["groups"].push_back(json_of(group));
    }
    nlohmann::ordered_json& num_elements = file["groups"][number]["num_elements"];
    num_elements = num_elements.get<std::int64_t>() + parameter.num_elements();
    file["parameters"][parameter.name] = number;
  }
  if (path.has_parent_path()) make_folder(path.parent_path());
  write_file(path, file.dump(1) + "\n");
}

}  // namespace primus::train
