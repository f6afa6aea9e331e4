#include "config/experiment.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "config/key_table.hpp"

namespace primus::config {
namespace {

const Key& row_of(std::string_view key) {
  const Key* row = find_key(key);
  PRIMUS_CHECK(row != nullptr, "'{}' is not a row of the key table", key);
  return *row;
}

// Built whole at first use, so that threads of a worker may read settings side by side.
const Setting& default_setting(const Key& row) {
  static const std::unordered_map<const Key*, Setting> defaults = [] {
    std::unordered_map<const Key*, Setting> all;
    for (const KeySection& section : key_sections()) {
      for (const Key& key : section.keys) all[&key] = {default_value(key), {}};
    }
    return all;
  }();
  return defaults.at(&row);
}

template <typename T>
const T& alternative(const Setting& setting, std::string_view key, std::string_view wanted) {
  const T* value = std::get_if<T>(&setting.value.data);
  PRIMUS_CHECK(value != nullptr, "key {} holds {}, not {}", key, to_text(setting.value), wanted);
  return *value;
}

double real_of(const Setting& setting, std::string_view key) {
  if (const auto* integer = std::get_if<std::int64_t>(&setting.value.data)) return static_cast<double>(*integer);
  return alternative<double>(setting, key, "a number");
}

}  // namespace

bool Experiment::get_bool(std::string_view key) const {
  return alternative<bool>(setting(key), key, "true or false");
}

std::int64_t Experiment::get_int(std::string_view key) const {
  return alternative<std::int64_t>(setting(key), key, "an integer");
}

double Experiment::get_double(std::string_view key) const {
  return real_of(setting(key), key);
}

std::string Experiment::get_string(std::string_view key) const {
  const Setting& found = setting(key);
  // A layer pattern is a text or an integer; readers that take it as text get either.
  if (row_of(key).type == KeyType::kLayers && !std::holds_alternative<std::string>(found.value.data)) {
    return to_text(found.value);
  }
  return alternative<std::string>(found, key, "text");
}

std::optional<std::int64_t> Experiment::get_optional_int(std::string_view key) const {
  if (is_null(key)) return std::nullopt;
  return get_int(key);
}

std::optional<double> Experiment::get_optional_double(std::string_view key) const {
  if (is_null(key)) return std::nullopt;
  return get_double(key);
}

std::optional<std::string> Experiment::get_optional_string(std::string_view key) const {
  if (is_null(key)) return std::nullopt;
  return get_string(key);
}

std::vector<std::string> Experiment::get_strings(std::string_view key) const {
  const Setting& found = setting(key);
  if (found.value.is_null()) return {};
  if (const auto* text = std::get_if<std::string>(&found.value.data)) return {*text};
  std::vector<std::string> texts;
  for (const Value& item : alternative<Value::List>(found, key, "a list")) {
    const auto* text = std::get_if<std::string>(&item.data);
    texts.push_back(text ? *text : to_text(item));
  }
  return texts;
}

const Setting& Experiment::setting(std::string_view key) const {
  const Key& row = row_of(key);
  const auto found = settings_.find(row.name);
  return found != settings_.end() ? found->second : default_setting(row);
}

void Experiment::set(std::string_view key, Value value, Origin origin) {
  const auto [found, is_new] = settings_.try_emplace(std::string(row_of(key).name));
  Setting& setting = found->second;
  if (!is_new) setting.replaced.push_back({std::move(setting.value), std::move(setting.origin)});
  setting.value = std::move(value);
  setting.origin = std::move(origin);
}

std::string Experiment::run_folder() const {
  return (std::filesystem::path(workspace) / work_group / user_name / exp_name).lexically_normal().string();
}

}  // namespace primus::config
