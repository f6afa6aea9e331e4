#pragma once
// The experiment: every key typed and validated, with the place that set it. What all four readers start from.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/value.hpp"

namespace primus::config {

/// A value that a stronger layer, a later word or a rule replaced.
struct ReplacedValue {
  Value value;
  Origin origin;
};

/// A resolved value and where it came from.
struct Setting {
  Value value;
  Origin origin;
  std::vector<ReplacedValue> replaced = {};  // the weakest first; not part of the JSON
};

/// A resolved run description. Built by resolve() (planning half) or read back from the run's folder (worker).
class Experiment {
 public:
  std::string work_group;
  std::string user_name;
  std::string exp_name;
  std::string workspace;
  std::string module;         // for instance pre_trainer
  std::string framework;      // megatron
  std::string module_preset;  // for instance pre_trainer.yaml
  std::string model_preset;   // for instance deepseek_v2_lite.yaml
  std::map<std::string, std::string> env;

  /// Typed access. The key must be a row of the key table, of that type and, without `optional`, not null:
  /// InternalError.
  bool get_bool(std::string_view key) const;
  std::int64_t get_int(std::string_view key) const;
  double get_double(std::string_view key) const;  // an integer counts as a real
  std::string get_string(std::string_view key) const;
  std::optional<std::int64_t> get_optional_int(std::string_view key) const;
  std::optional<double> get_optional_double(std::string_view key) const;
  std::optional<std::string> get_optional_string(std::string_view key) const;
  /// A list of texts; a single text counts as a list of one, null as none.
  std::vector<std::string> get_strings(std::string_view key) const;

  /// Value and origin of a key; the key table's default when nothing set it.
  const Setting& setting(std::string_view key) const;
  bool is_null(std::string_view key) const { return setting(key).value.is_null(); }
  /// Was the key written by the user, and not merely inherited?
  bool is_explicitly_set(std::string_view key) const { return is_explicit(setting(key).origin); }

  /// What was set before is kept among the replaced values.
  void set(std::string_view key, Value value, Origin origin);

  /// workspace/work_group/user_name/exp_name.
  std::string run_folder() const;

  /// The settings that something set, by key.
  const std::map<std::string, Setting, std::less<>>& settings() const { return settings_; }

  std::string to_json() const;
  /// Throws UserError if the text is not what to_json() writes.
  static Experiment from_json(std::string_view text);

 private:
  std::map<std::string, Setting, std::less<>> settings_;
};

}  // namespace primus::config
