#pragma once
// Configuration files with what they build on: `${VAR:default}` filled in, `extends` (and `bases`) resolved.
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "config/node.hpp"

namespace primus::config {

/// Read a file and everything it extends; entries keep the file and line that wrote them. Faults go to `problems`, the
/// names of all files that were opened to `opened` if it is there.
Node load_file(const std::filesystem::path& path, std::vector<Problem>& problems,
               std::vector<std::string>* opened = nullptr);

/// Fill in `${VAR}` and `${VAR:default}` in every scalar. A default counts only where the variable is unset.
/// Scalars with a substitution are typed like plain ones, also when they were quoted.
void substitute_environment(Node& node, std::vector<Problem>& problems);

/// Folder of the presets: PRIMUS_CONFIG_DIR, else `configs` beside or above the running program.
/// Throws UserError naming both when neither holds presets.
std::filesystem::path preset_folder();

/// Load `folder`/`framework`/`name` with or without ".yaml"; `where` is the key that asked for it, for messages.
struct PresetRequest {
  std::string kind;  // "models" or "modules"
  std::string framework;
  std::string name;
  Problem where;  // place of the key that names the preset
};
Node load_preset(const PresetRequest& request, std::vector<Problem>& problems,
                 std::vector<std::string>* opened = nullptr);

}  // namespace primus::config
