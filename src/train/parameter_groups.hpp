#pragma once
// The optimizer's groups as a file (dump_param_to_param_group_map): what decays, and which learning rate moves it.
#include <filesystem>
#include <optional>
#include <span>

#include "model/optimizer_spec.hpp"

namespace primus::train {

/// Do embedding and output layer have a learning rate of their own (decoupled_lr)?
enum class EndRate { kCommon, kOwn };

/// Where the experiment wants them, if it does.
std::optional<std::string> parameter_groups_file(const config::Experiment& experiment);

/// Every trained parameter and the number of its group, as JSON. Throws UserError if the file cannot be written.
void write_parameter_groups(std::span<const model::ParameterDescriptor> parameters, const model::OptimizerSpec& spec,
                            EndRate end_rate, const std::filesystem::path& path);

}  // namespace primus::train
