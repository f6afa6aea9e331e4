#include "projection/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"
#include "config/key_table.hpp"

namespace primus::projection {
namespace {

constexpr std::size_t kMostPoints = 10'000;

struct ShortName {
  std::string_view name;
  std::string_view key;
};

constexpr ShortName kShortNames[] = {{"tp", "tensor_model_parallel_size"},
                                     {"cp", "context_parallel_size"},
                                     {"pp", "pipeline_model_parallel_size"},
                                     {"vpp", "num_virtual_stages_per_pipeline_rank"},
                                     {"ep", "expert_model_parallel_size"},
                                     {"etp", "expert_tensor_parallel_size"},
                                     {"mbs", "micro_batch_size"},
                                     {"gbs", "global_batch_size"},
                                     {"seq", "seq_length"}};

struct Axis {
  std::string name;
  std::string key;
  std::vector<std::string> values;
};

[[noreturn]] void refuse(std::string message, std::string found, std::string nearest = "") {
  throw ConfigError({{.file = "command line",
                      .key = "--sweep",
                      .message = std::move(message),
                      .expected = "NAME=VALUE,VALUE,... such as cp=1,2,4",
                      .found = std::move(found),
                      .nearest = std::move(nearest)}});
}

std::string key_of(const std::string& name, const std::string& written) {
  for (const ShortName& row : kShortNames) {
    if (row.name == name) return std::string(row.key);
  }
  if (const config::Key* key = config::find_key(name)) return std::string(key->name);
  const std::string nearest = config::nearest_key_hint(name);
  refuse(fmt::format("unknown setting '{}'", name), written,
         nearest.empty() ? "one of tp, cp, pp, vpp, ep, etp, mbs, gbs, seq, or any key" : nearest);
}

/// Cut at commas outside brackets and quotation marks: a list is one value.
std::vector<std::string> values_of(const std::string& text) {
  std::vector<std::string> values(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (c == quote || (quote == 0 && (c == '"' || c == '\''))) {
      quote = quote == 0 ? c : '\0';
      continue;
    }
    if (quote != 0) {
      values.back() += c;
      continue;
    }
    depth += c == '[' || c == '(' ? 1 : c == ']' || c == ')' ? -1 : 0;
    if (c == ',' && depth == 0) {
      values.emplace_back();
    } else {
      values.back() += c;
    }
  }
  if (quote != 0) refuse("a quotation mark is never closed", text);
  return values;
}

Axis axis_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) refuse("no setting is named", text);
  Axis axis;
  axis.name = text.substr(0, equals);
  axis.key = key_of(axis.name, text);
  axis.values = values_of(text.substr(equals + 1));
  if (std::any_of(axis.values.begin(), axis.values.end(), [](const std::string& value) { return value.empty(); })) {
    refuse("a value is missing", text);
  }
  std::vector<std::string> sorted = axis.values;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  constexpr std::string_view kQuotes = "a value that holds commas stands in quotation marks: NAME='\"a,b\",\"c,d\"'";
  if (twice != sorted.end()) refuse(fmt::format("{} stands twice", *twice), text, std::string(kQuotes));
  return axis;
}

}  // namespace

std::vector<std::string> swept_keys(std::span<const std::string> axes) {
  std::vector<std::string> keys;
  for (const std::string& text : axes) keys.push_back(axis_of(text).key);
  return keys;
}

std::vector<SweepPoint> sweep_points(std::span<const std::string> axes) {
  std::vector<SweepPoint> points = {{}};
  std::vector<std::string> keys;
  for (const std::string& text : axes) {
    const Axis axis = axis_of(text);
    if (std::find(keys.begin(), keys.end(), axis.key) != keys.end()) {
      refuse(fmt::format("{} is swept twice", axis.key), text, "write all its values behind one --sweep");
    }
    keys.push_back(axis.key);
    if (points.size() * axis.values.size() > kMostPoints) {
      refuse(fmt::format("more than {} layouts", format_count(kMostPoints)), text);
    }
    std::vector<SweepPoint> more;
    for (const SweepPoint& point : points) {
      for (const std::string& value : axis.values) {
        SweepPoint next = point;
        next.label += fmt::format("{}{} {}", next.label.empty() ? "" : ", ", axis.name, value);
        next.words.insert(next.words.end(), {"--" + axis.key, value});
        more.push_back(std::move(next));
      }
    }
    points = std::move(more);
  }
  return points;
}

}  // namespace primus::projection
