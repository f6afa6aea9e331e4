#pragma once
// Field by field through a config.json: what is missing, wrong or left over is told at the end, all of it.
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace primus::checkpoint {

using Json = nlohmann::ordered_json;

class ConfigReader {
 public:
  /// `prefix` stands before the fields' names in messages: "rope_scaling.".
  ConfigReader(const Json& json, std::string file, std::string prefix = "");

  /// A field that is absent or null has the default; without one it is missing, which is a problem, and reads as 1.
  std::int64_t integer(const std::string& field, std::optional<std::int64_t> default_value = std::nullopt);
  double real(const std::string& field, std::optional<double> default_value = std::nullopt);
  bool flag(const std::string& field, bool default_value);
  std::string text(const std::string& field, const std::string& default_value);
  std::optional<std::int64_t> optional_integer(const std::string& field);
  /// nullptr if absent or null.
  const Json* object(const std::string& field);
  std::vector<Json> list(const std::string& field);
  bool has(const std::string& field) const;

  /// A field that, where it stands (and not as null), must say this: `why` is what cannot be done otherwise.
  void expect(const std::string& field, const Json& value, const std::string& why);
  /// Fields that say nothing about the weights or what is computed with them.
  void ignore(std::initializer_list<const char*> fields);

  void problem(const std::string& field, std::string message, std::string expected = "", std::string found = "");
  /// Move another reader's problems here: that of an object within this one.
  void take_problems(ConfigReader& inner);

  /// Every field that nobody asked for becomes a problem.
  void refuse_rest();
  /// Throws ConfigError if there are problems.
  void finish();

  const std::string& file() const { return file_; }

 private:
  const Json* find(const std::string& field);

  const Json& json_;
  std::string file_;
  std::string prefix_;
  std::set<std::string> known_;
  std::vector<Problem> problems_;
};

}  // namespace primus::checkpoint
