#pragma once
// A configuration value as YAML, JSON or a command line gives it, and where it came from.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace primus::config {

/// Null, bool, integer, real, text, list or map.
struct Value {
  using List = std::vector<Value>;
  using Map = std::map<std::string, Value>;
  std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Map> data;

  bool is_null() const { return std::holds_alternative<std::monostate>(data); }
  bool operator==(const Value&) const = default;
};

/// Text of a value as an error message or a YAML file would show it.
std::string to_text(const Value& value);

/// Which of the merged layers a value came from, from the weakest to the strongest.
enum class Layer { kDefault, kModulePreset, kModelPreset, kExperiment, kCommandLine, kRule };

/// "default", "module preset", "model preset", "experiment", "command line", "rule".
std::string_view layer_text(Layer layer);

/// Where a value was written; for kRule, `file` names the rule that changed it.
struct Origin {
  Layer layer = Layer::kDefault;
  std::string file;
  int line = 0;
};

/// Did the user write it (experiment overrides or command line), as opposed to inheriting it (decision 2)?
constexpr bool is_explicit(const Origin& origin) {
  return origin.layer == Layer::kExperiment || origin.layer == Layer::kCommandLine;
}

}  // namespace primus::config
