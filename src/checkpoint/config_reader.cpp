#include "checkpoint/config_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/text.hpp"
#include "checkpoint/refuse.hpp"

namespace primus::checkpoint {
namespace {

bool same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
  return a == b;
}

/// Sizes beyond any model's; what is counted one by one has a smaller bound, so that a damaged file costs no memory.
std::int64_t most_of(std::string_view field) {
  constexpr std::int64_t kMostCounted = 1 << 14;
  constexpr std::array<std::string_view, 4> kCounted = {"num_hidden_layers", "num_local_experts", "n_routed_experts",
                                                        "num_experts"};
  return std::ranges::find(kCounted, field) != kCounted.end() ? kMostCounted : std::int64_t{1} << 32;
}

}  // namespace

ConfigReader::ConfigReader(const Json& json, std::string file, std::string prefix)
    : json_(json), file_(std::move(file)), prefix_(std::move(prefix)) {
  if (!json.is_object()) refuse({.file = file_, .message = "is no map of fields"});
}

const Json* ConfigReader::find(const std::string& field) {
  known_.insert(field);
  const auto found = json_.find(field);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::has(const std::string& field) const {
  const auto found = json_.find(field);
  return found != json_.end() && !found->is_null();
}

std::int64_t ConfigReader::integer(const std::string& field, std::optional<std::int64_t> default_value) {
  const Json* value = find(field);
  if (value == nullptr) {
    if (!default_value) problem(field, "is missing", "integer >= 1");
    return default_value.value_or(1);
  }
  if (value->is_number_integer() && *value >= 0 && *value <= most_of(field)) return value->get<std::int64_t>();
  // A field may be read several times.
  const bool is_known = std::ranges::find(problems_, prefix_ + field, &Problem::key) != problems_.end();
  if (!is_known) problem(field, "is no size", fmt::format("integer from 0 to {}", most_of(field)), value->dump());
  return default_value.value_or(1);
}

std::optional<std::int64_t> ConfigReader::optional_integer(const std::string& field) {
  if (find(field) == nullptr) return std::nullopt;
  return integer(field);
}

double ConfigReader::real(const std::string& field, std::optional<double> default_value) {
  const Json* value = find(field);
  if (value == nullptr) {
    if (!default_value) problem(field, "is missing", "number");
    return default_value.value_or(1.0);
  }
  if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
  problem(field, "is no number", "number", value->dump());
  return default_value.value_or(1.0);
}

bool ConfigReader::flag(const std::string& field, bool default_value) {
  const Json* value = find(field);
  if (value == nullptr) return default_value;
  if (value->is_boolean()) return value->get<bool>();
  problem(field, "is no truth value", "true or false", value->dump());
  return default_value;
}

std::string ConfigReader::text(const std::string& field, const std::string& default_value) {
  const Json* value = find(field);
  if (value == nullptr) return default_value;
  if (value->is_string()) return value->get<std::string>();
  problem(field, "is no text", "text", value->dump());
  return default_value;
}

const Json* ConfigReader::object(const std::string& field) {
  const Json* value = find(field);
  if (value == nullptr || value->is_object()) return value;
  problem(field, "is no map", "map of fields", value->dump());
  return nullptr;
}

std::vector<Json> ConfigReader::list(const std::string& field) {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (value->is_array()) return {value->begin(), value->end()};
  problem(field, "is no list", "list", value->dump());
  return {};
}

void ConfigReader::expect(const std::string& field, const Json& value, const std::string& why) {
  const Json* found = find(field);
  if (found == nullptr || same(*found, value)) return;
  problem(field, why, value.dump(), found->dump());
}

void ConfigReader::ignore(std::initializer_list<const char*> fields) {
  known_.insert(fields.begin(), fields.end());
}

void ConfigReader::problem(const std::string& field, std::string message, std::string expected, std::string found) {
  problems_.push_back(problem_of({file_, prefix_ + field, std::move(message), std::move(expected), std::move(found)}));
}

void ConfigReader::take_problems(ConfigReader& inner) {
  for (Problem& problem : std::exchange(inner.problems_, {})) problems_.push_back(std::move(problem));
}

void ConfigReader::refuse_rest() {
  const std::vector<std::string_view> names(known_.begin(), known_.end());
  for (const auto& [field, value] : json_.items()) {
    if (known_.contains(field)) continue;
    const auto nearest = nearest_name(field, names);
    Problem unknown =
        problem_of({file_, prefix_ + field, "is a field whose meaning is not known here", "", value.dump()});
    if (nearest) unknown.nearest = fmt::format("did you mean '{}'?", *nearest);
    problems_.push_back(std::move(unknown));
  }
}

void ConfigReader::finish() {
  if (!problems_.empty()) throw ConfigError(std::exchange(problems_, {}));
}

}  // namespace primus::checkpoint
