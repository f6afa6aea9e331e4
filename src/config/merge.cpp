#include "config/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "config/flag_names.hpp"
#include "config/key_table.hpp"
#include "config/map_entries.hpp"
#include "config/typing.hpp"

namespace primus::config {
namespace {

Problem problem_of(const Node& node, const std::string& written) {
  return {.file = node.origin.file, .line = node.origin.line, .key = written};
}

Problem problem_of(const Node& node, const std::string& written, const TypeFault& fault) {
  Problem problem = problem_of(node, written);
  problem.message = fault.message;
  problem.expected = fault.expected;
  problem.found = fault.found;
  problem.nearest = fault.nearest;
  return problem;
}

Problem removed_key(const Node& value, const std::string& written, std::string_view successor) {
  Problem problem = problem_of(value, written);
  problem.message = "this key was removed";
  problem.nearest = fmt::format("write {} instead", successor);
  return problem;
}

Problem unknown_key(const Node& value, std::string_view key, const std::string& written) {
  const std::string_view successor = successor_of_removed_key(key);
  if (!successor.empty()) return removed_key(value, written, successor);
  Problem problem = problem_of(value, written);
  problem.message = "unknown key";
  constexpr std::string_view kTop[] = {"work_group", "user_name", "exp_name", "workspace",
                                       "platform",   "env",       "modules"};
  if (std::find(std::begin(kTop), std::end(kTop), key) != std::end(kTop)) {
    problem.nearest = "it belongs at the top of the experiment";
  } else if (key == "framework" || key == "model" || key == "config") {
    const bool is_on_command_line = written.starts_with("--");
    problem.message = is_on_command_line ? "cannot be overridden: the experiment names its presets" : "unknown key";
    problem.nearest = is_on_command_line ? "an experiment that extends this one may name another"
                                         : "it belongs beside overrides, in the block of the trainer";
  } else if (const std::size_t colon = key.find(':');
             colon != std::string_view::npos && find_key(key.substr(0, colon))) {
    problem.nearest =
        fmt::format("a space is missing behind the colon: {}: {}", key.substr(0, colon), key.substr(colon + 1));
  } else if (key == "nproc" || key == "nproc_per_node") {
    problem.nearest = "processes are an option of direct: direct --nproc N -- train ...";
  } else if (const Key* row = key_turned_off_by(key)) {
    problem.nearest = fmt::format("write {}: false", row->name);
  } else {
    problem.nearest = nearest_key_hint(key);
  }
  return problem;
}

}  // namespace

Origin SettingMerger::origin_of(const Entry& entry) {
  return {entry.layer, entry.node.origin.file, entry.node.origin.line};
}

void SettingMerger::add_layer(const Node& map, Layer layer, const std::string& prefix) {
  for (const Node::Entry& entry : map.entries) add(entry.key, entry.value, layer, prefix + entry.key);
}

void SettingMerger::add(std::string_view key, const Node& value, Layer layer, const std::string& written) {
  const Key* row = find_key(key);
  if (!row) {
    problems_.push_back(unknown_key(value, key, written));
    return;
  }
  if (value.is_broken()) return;  // told
  if (row->type == KeyType::kMap) {
    const bool is_dotted = layer == Layer::kCommandLine;  // --lora.dim names the entry already
    if (!check_entries(value, *row, is_dotted ? written.substr(0, written.find('.')) : written)) return;
  }
  const auto [found, is_new] = entries_.try_emplace(std::string(row->name));
  Entry& entry = found->second;
  Node node = value;
  if (!is_new && row->type == KeyType::kMap) node = merged(entry.node, std::move(node));
  const std::variant<Value, TypeFault> typed = typed_value(node, *row);
  if (const auto* fault = std::get_if<TypeFault>(&typed)) {
    problems_.push_back(problem_of(value, written, *fault));
    if (is_new) entries_.erase(found);
    return;
  }
  const Value& result = std::get<Value>(typed);
  const std::string_view successor = successor_of_removed_key(row->name);
  if (!successor.empty() && result != default_value(*row)) problems_.push_back(removed_key(value, written, successor));
  const bool is_same_place = !is_new && entry.layer == layer && entry.node.origin.file == value.origin.file;
  if (is_same_place && entry.name != key && entry.value != result) {
    Problem problem = problem_of(value, written);
    const std::string place =
        layer == Layer::kCommandLine ? "on the command line" : fmt::format("at line {}", entry.node.origin.line);
    problem.message = fmt::format("conflicts with {} {}: two names of one key", entry.name, place);
    problem.expected = to_text(entry.value);
    problem.found = to_text(result);
    problems_.push_back(std::move(problem));
    return;
  }
  node.origin.file = value.origin.file;
  node.origin.line = value.origin.line;
  std::vector<ReplacedValue> replaced = std::move(entry.replaced);
  if (!is_new) replaced.push_back({std::move(entry.value), origin_of(entry)});
  entry = {std::move(node), result, layer, std::string(key), std::move(replaced)};
}

bool SettingMerger::check_entries(const Node& map, const Key& row, const std::string& written) {
  const std::span<const Key> rows = entries_of_map(row.name);
  if (rows.empty() || map.kind != Node::Kind::kMap) return true;
  const std::size_t num_before = problems_.size();
  for (const Node::Entry& entry : map.entries) {
    const std::string name = fmt::format("{}.{}", written, entry.key);
    const Key* entry_row = find_map_entry(fmt::format("{}.{}", row.name, entry.key));
    if (!entry_row) {
      std::string known;
      for (const Key& candidate : rows) {
        known += (known.empty() ? "" : ", ") + std::string(candidate.name.substr(row.name.size() + 1));
      }
      Problem problem = problem_of(entry.value, name);
      problem.message = fmt::format("unknown entry of {}", row.name);
      problem.expected = "one of " + known;
      problem.nearest = nearest_entry_hint(row.name, entry.key);
      problems_.push_back(std::move(problem));
      continue;
    }
    const std::variant<Value, TypeFault> typed = typed_value(entry.value, *entry_row);
    if (const auto* fault = std::get_if<TypeFault>(&typed)) problems_.push_back(problem_of(entry.value, name, *fault));
  }
  return problems_.size() == num_before;
}

void SettingMerger::apply_to(Experiment& experiment) const {
  for (const auto& [key, entry] : entries_) {
    for (const ReplacedValue& past : entry.replaced) experiment.set(key, past.value, past.origin);
    experiment.set(key, entry.value, origin_of(entry));
  }
}

}  // namespace primus::config
