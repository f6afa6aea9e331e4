#include "config/effects.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "config/parse.hpp"
#include "config/rules.hpp"

namespace primus::config {
namespace {

// A small model of experts on which every switch may stand, with the values that the presets give to what switches
// change.
constexpr std::pair<std::string_view, std::string_view> kBase[] = {{"mock_data", "true"},
                                                                   {"train_iters", "10"},
                                                                   {"seq_length", "128"},
                                                                   {"max_position_embeddings", "128"},
                                                                   {"micro_batch_size", "1"},
                                                                   {"global_batch_size", "64"},
                                                                   {"num_layers", "4"},
                                                                   {"hidden_size", "64"},
                                                                   {"num_attention_heads", "4"},
                                                                   {"num_experts", "8"},
                                                                   {"moe_ffn_hidden_size", "64"},
                                                                   {"moe_shared_expert_intermediate_size", "64"},
                                                                   {"moe_shared_expert_overlap", "true"},
                                                                   {"enable_primus_turbo", "true"},
                                                                   {"lr", "0.001"}};

Experiment base() {
  Experiment experiment;
  experiment.module = "pre_trainer";
  for (const auto& [key, value] : kBase) experiment.set(key, parse_value(value), {Layer::kModulePreset, "", 0});
  return experiment;
}

std::vector<Value> candidates_of(const Key& key) {
  constexpr std::int64_t kMost = 8;
  if (key.type == KeyType::kBool) return {{false}, {true}};
  std::vector<Value> values;
  const std::size_t dots = key.allowed.find("..");
  if (key.type == KeyType::kInt && dots != std::string_view::npos) {
    const std::int64_t low = parse_int(key.allowed.substr(0, dots)).value_or(0);
    const std::int64_t high = parse_int(key.allowed.substr(dots + 2)).value_or(low);
    for (std::int64_t value = low; value <= high && high - low < kMost; ++value) values.emplace_back().data = value;
  } else if (key.type == KeyType::kText && !key.allowed.empty()) {
    for (const std::string& word : split(key.allowed, '|')) values.emplace_back().data = word;
  } else if (key.type == KeyType::kInt && key.name.ends_with("_parallel_size")) {
    values.emplace_back().data = std::int64_t{2};
  }
  return values;
}

// The notes that the rules leave because of the key.
std::vector<Note> notes_of(const Key& key, const Value& value) {
  Experiment experiment = base();
  experiment.set(key.name, value, {Layer::kCommandLine, "command line", 0});
  if (!has_plausible_sizes(experiment)) return {};
  const WorldSize world{smallest_world(experiment), "the smallest that is legal"};
  RuleContext context(experiment, Purpose::kPlan, world, "");
  for (const Rule& rule : all_rules()) {
    context.enter(rule.name);
    rule.apply(context);
  }
  return context.notes();
}

}  // namespace

std::vector<Effect> effects_of(const Key& key) {
  std::vector<Effect> effects;
  for (const Value& value : candidates_of(key)) {
    for (const Note& note : notes_of(key, value)) {
      if (note.cause != key.name || note.text.find(" -> ") == std::string::npos) continue;
      effects.push_back({to_text(value), note.key, note.text.substr(0, note.text.find(", because"))});
    }
  }
  return effects;
}

}  // namespace primus::config
