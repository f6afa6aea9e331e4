#include "config/map_entries.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config {
namespace {

using namespace rows;

constexpr std::string_view kNoPython = "there is no Python runtime";
constexpr std::string_view kInit = "xavier|normal|kaiming|zero";
constexpr std::string_view kMock = "mock_data makes tokens";

constexpr Key kLora[] = {
  planned("lora.enabled", kBool, "false", "", "Train low-rank adapters instead of the weights."),
  planned("lora.dim", kInt, "32", ">=1", "Rank of the adapters."),
  planned("lora.alpha", kInt, "32", ">=1", "Their output is scaled by alpha / dim."),
  planned("lora.dropout", kReal, "0.0", "0..<1", "Dropout on the adapters."),
  planned("lora.dropout_position", kText, "pre", "pre|post", "Dropout in front of the adapter or behind it."),
  planned("lora.lora_A_init_method", kText, "xavier", kInit, "First weights of the matrix that narrows."),
  planned("lora.lora_B_init_method", kText, "zero", kInit, "First weights of the matrix that widens."),
  planned("lora.target_modules", kTextList, "[linear_qkv, linear_proj, linear_fc1, linear_fc2]", "", "Linear layers that have an adapter."),
};

constexpr Key kTorchCompile[] = {
  no_effect("torch_compile.enable", kBool, "false", "", "Compile Python graphs.", kNoPython),
  no_effect("torch_compile.backend", kText, "inductor", "inductor|eager|aot_eager|cudagraphs|onnxrt|openxla|tvm", "Which compiler.", kNoPython),
  no_effect("torch_compile.mode", kText, "default", "default|reduce-overhead|max-autotune|max-autotune-no-cudagraphs", "How hard it tries.", kNoPython),
  no_effect("torch_compile.fullgraph", kBool, "false", "", "One graph or none.", kNoPython),
};

constexpr Key kMockDataset[] = {
  no_effect("mock_dataset.class", kText, "null", "", "Python class of made-up images.", kMock),
  no_effect("mock_dataset.params", kMap, "null", "", "What that class takes.", kMock),
};

constexpr std::pair<std::string_view, std::span<const Key>> kMaps[] = {
  {"lora", kLora}, {"torch_compile", kTorchCompile}, {"mock_dataset", kMockDataset}};

}  // namespace
// clang-format on

std::span<const Key> entries_of_map(std::string_view map) {
  for (const auto& [name, rows] : kMaps) {
    if (name == map) return rows;
  }
  return {};
}

const Key* find_map_entry(std::string_view dotted) {
  for (const Key& row : entries_of_map(dotted.substr(0, dotted.find('.')))) {
    if (row.name == dotted) return &row;
  }
  return nullptr;
}

std::vector<std::string> unread_entries(const Key& map, const Value& value) {
  const std::string enabled = fmt::format("{}.enabled", map.name);
  const auto* entries = std::get_if<Value::Map>(&value.data);
  if (!entries || !find_map_entry(enabled)) return {};
  const auto found = entries->find("enabled");
  if (found != entries->end() && found->second == Value{true}) return {};
  std::vector<std::string> names;
  for (const auto& [name, entry] : *entries) {
    const Key* row = find_map_entry(fmt::format("{}.{}", map.name, name));
    if (row && row->name != enabled && entry != default_value(*row)) names.emplace_back(row->name);
  }
  return names;
}

std::string nearest_entry_hint(std::string_view map, std::string_view entry) {
  std::vector<std::string_view> names;
  for (const Key& row : entries_of_map(map)) names.push_back(row.name.substr(map.size() + 1));
  const auto nearest = nearest_name(entry, names);
  return nearest ? fmt::format("did you mean '{}'?", *nearest) : "";
}

}  // namespace primus::config
