#pragma once
// Scripts that run before and after a command (the folder convention of Primus), and patches, which are named one by
// one. Both talk to the launcher through lines on standard output:
//   extra.KEY=VALUE   the command gets --KEY VALUE as well
//   env.NAME=VALUE    the environment of everything that follows gets NAME
// A line that begins so and is neither is an error; every other one is passed on.
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace primus::launch {

enum class ScriptKind { kHook, kAfterHook, kPatch };

struct Script {
  ScriptKind kind = ScriptKind::kHook;
  std::filesystem::path path;
};

/// The hooks of a command, in their order: helpers/hooks/*.{sh,py}, then helpers/hooks/GROUP/NAME/*.{sh,py}; those that
/// run afterwards stand in a folder `after` in either place.
std::vector<Script> find_hooks(const std::filesystem::path& runner, const std::string& group, const std::string& name,
                               ScriptKind kind);

/// What scripts asked for.
struct ScriptWishes {
  std::vector<std::string> words;  // --KEY=VALUE
  std::map<std::string, std::string> environment;
  std::map<std::string, std::string> sources;  // "--KEY" or NAME: who asked, "hook lr.py"
};

/// Run a script with `words` as its arguments, in the launcher's environment; add its wishes. A patch may skip itself
/// with exit code 2. Throws UserError if it fails or cannot be started.
void run_script(const Script& script, std::span<const std::string> words, ScriptWishes& wishes);

}  // namespace primus::launch
