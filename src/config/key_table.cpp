#include "config/key_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "config/common_names.hpp"
#include "config/key_rows.hpp"
#include "config/parse.hpp"
#include "config/read_beside.hpp"

namespace primus::config {
namespace {

struct Pair {
  std::string_view name;
  std::string_view target;
};

// Megatron's argument is --norm-epsilon and its attribute layernorm_epsilon: presets use either. The others are
// spellings of other releases and of model families.
constexpr Pair kAliases[] = {
    {"layernorm_epsilon", "norm_epsilon"},
    {"layernorm_zero_centered_gamma", "apply_layernorm_1p"},
    {"yarn_original_max_position_embeddings", "original_max_position_embeddings"},
    {"yarn_beta_fast", "beta_fast"},
    {"yarn_beta_slow", "beta_slow"},
    {"num_nextn_predict_layers", "mtp_num_layers"},
    {"routed_expert_hidden_size", "moe_latent_size"},
    {"moe_router_padding_for_fp8", "moe_router_padding_for_quantization"},
    {"muon_nesterov", "muon_use_nesterov"},
    {"fp4_param_gather", "fp4_param"},
    {"output_logit_dtype", "logit_dtype"},
    {"fully_parallel_save", "ckpt_fully_parallel_save"},
    {"use_gloo_process_groups", "enable_gloo_process_groups"},
    {"use_nccl_ub", "nccl_ub"},
    {"keep_fp8_transpose_cache", "keep_fp8_transpose_cache_when_using_custom_fsdp"},
    {"cuda_graph_scope_deprecated", "cuda_graph_scope"},
    {"fp8_format", "fp8"},
    {"fp4_format", "fp4"},
    {"persistent_save_interval", "save_interval"},
    {"tokenizer_metadata", "metadata_path"},
    {"tokenizer_special_tokens", "special_tokens"},
    {"microbatch_group_size_per_virtual_pipeline_stage", "microbatch_group_size_per_vp_stage"},
    {"overlap_p2p_communication_warmup_flush", "overlap_p2p_comm_warmup_flush"},
    {"inference_dynamic_batching_prefix_caching", "inference_dynamic_batching_enable_prefix_caching"},
    {"use_mcore_models", "deprecated_use_mcore_models"},
    {"use_dist_ckpt", "use_dist_ckpt_deprecated"},
    {"dist_ckpt_format", "dist_ckpt_format_deprecated"},
    {"disable_msc", "disable_msc_deprecated"},
};

// The last ones have rows, because files carry them at their defaults, which mean nothing.
constexpr Pair kRemoved[] = {
    {"use_turbo_parallel_linear", "use_turbo_gemm"},
    {"use_turbo_grouped_mlp", "use_turbo_grouped_gemm"},
    {"distribute_checkpointed_activations", "distribute_saved_activations"},
    {"activations_checkpoint_method", "recompute_method"},
    {"activations_checkpoint_num_layers", "recompute_num_layers"},
    {"checkpoint_num_layers", "recompute_num_layers"},
    {"batch_size", "micro_batch_size"},
    {"warmup", "lr_warmup_iters or lr_warmup_fraction"},
    {"model_parallel_size", "tensor_model_parallel_size"},
    {"checkpoint_activations", "recompute_granularity"},
};

struct NameLess {
  bool operator()(const Key* a, const Key* b) const { return a->name < b->name; }
};

const std::vector<const Key*>& index_by_name() {
  static const std::vector<const Key*> index = [] {
    std::vector<const Key*> keys;
    for (const KeySection& section : key_sections()) {
      for (const Key& key : section.keys) keys.push_back(&key);
    }
    std::sort(keys.begin(), keys.end(), NameLess{});
    const auto twin = std::adjacent_find(keys.begin(), keys.end(), [](auto a, auto b) { return a->name == b->name; });
    PRIMUS_CHECK(twin == keys.end(), "key {} has two rows", (*twin)->name);
    return keys;
  }();
  return index;
}

// Rules ask for keys by name hundreds of times in one resolution.
using Lookup = std::unordered_map<std::string_view, const Key*>;

const Lookup& lookup() {
  static const Lookup table = [] {
    Lookup keys;
    for (const Key* key : index_by_name()) keys.emplace(key->name, key);
    for (const Pair& alias : kAliases) {
      const auto target = keys.find(alias.target);
      PRIMUS_CHECK(target != keys.end(), "{} is another name of no key", alias.name);
      keys[alias.name] = target->second;
    }
    return keys;
  }();
  return table;
}

std::string_view type_text(KeyType type) {
  switch (type) {
    case KeyType::kBool:
      return "true or false";
    case KeyType::kInt:
      return "integer";
    case KeyType::kReal:
      return "number";
    case KeyType::kText:
      return "text";
    case KeyType::kTextList:
      return "text or list of texts";
    case KeyType::kIntList:
      return "list of integers";
    case KeyType::kRealList:
      return "number or list of numbers";
    case KeyType::kLayers:
      return "integer >= 1, or a pattern such as ([0]*1+[1]*26)";
    case KeyType::kMap:
      return "map";
  }
  return "";
}

bool equals(const Value& value, std::string_view text) {
  const Value other = parse_value(text);
  if (value == other) return true;
  const auto* integer = std::get_if<std::int64_t>(&other.data);
  const auto* real = std::get_if<double>(&value.data);
  return integer && real && static_cast<double>(*integer) == *real;
}

// A map with a switch of its own asks for nothing while that is off.
bool is_switched_off(const Value& value) {
  const auto* map = std::get_if<Value::Map>(&value.data);
  if (!map) return false;
  const auto enabled = map->find("enabled");
  return enabled == map->end() || enabled->second == Value{false};
}

}  // namespace

std::span<const KeySection> key_sections() {
  using namespace rows;
  static const std::array<KeySection, 38> sections = {{
      {"structure", structure_keys()},
      {"position", position_keys()},
      {"attention", attention_keys()},
      {"latent attention", latent_attention_keys()},
      {"linear attention", linear_attention_keys()},
      {"DeepSeek-V4", deepseek_v4_keys()},
      {"Kimi K3", kimi_k3_keys()},
      {"mixed layers", mixed_layer_keys()},
      {"tokenizer", tokenizer_keys()},
      {"initialisation and fusion", init_and_fusion_keys()},
      {"mixture of experts", moe_keys()},
      {"token dispatch", dispatch_keys()},
      {"turbo", turbo_keys()},
      {"parallelism", parallel_keys()},
      {"sharding", sharding_keys()},
      {"communication", communication_keys()},
      {"pipeline", pipeline_keys()},
      {"offloading", offload_keys()},
      {"recorded steps", graph_keys()},
      {"recompute", recompute_keys()},
      {"precision", precision_keys()},
      {"low precision", low_precision_keys()},
      {"training", training_keys()},
      {"optimizer", optimizer_keys()},
      {"learning rate", learning_rate_keys()},
      {"data", data_keys()},
      {"checkpoint", checkpoint_keys()},
      {"exit and faults", exit_keys()},
      {"restart", restart_keys()},
      {"logging", logging_keys()},
      {"profiling", profile_keys()},
      {"runtime", runtime_keys()},
      {"fine-tuning", fine_tuning_keys()},
      {"distillation", distillation_keys()},
      {"images", image_keys()},
      {"retrieval", retrieval_keys()},
      {"serving", serving_keys()},
      {"reinforcement learning", reinforcement_keys()},
  }};
  return sections;
}

const Key* find_key(std::string_view name) {
  const auto found = lookup().find(name);
  return found == lookup().end() ? nullptr : found->second;
}

std::string_view area_of(const Key& key) {
  for (const KeySection& section : key_sections()) {
    if (&key >= section.keys.data() && &key < section.keys.data() + section.keys.size()) return section.area;
  }
  return "";
}

std::string_view successor_of_removed_key(std::string_view name) {
  for (const Pair& removed : kRemoved) {
    if (removed.name == name) return removed.target;
  }
  return "";
}

std::string nearest_key_hint(std::string_view name) {
  // What the whole name means elsewhere is a better guess than what is spelled alike.
  if (const std::string_view key = key_of_common_name(name); !key.empty())
    return fmt::format("did you mean '{}'?", key);
  std::vector<std::string_view> names;
  for (const Key* key : index_by_name()) names.push_back(key->name);
  for (const Pair& alias : kAliases) names.push_back(alias.name);
  const auto nearest = nearest_name(name, names);
  return nearest ? fmt::format("did you mean '{}'?", *nearest) : "";
}

Value default_value(const Key& key) {
  // A text key may have an empty default, which is not the same as null.
  if (key.type == KeyType::kText || key.type == KeyType::kTextList) {
    if (key.default_text == "null") return {};
    if (key.default_text.starts_with('[')) return parse_value(key.default_text);
    return {std::string(key.default_text)};
  }
  Value value = parse_value(key.default_text);
  if (const auto* integer = std::get_if<std::int64_t>(&value.data); integer && key.type == KeyType::kReal) {
    return {static_cast<double>(*integer)};
  }
  return value;
}

std::string expected_text(const Key& key) {
  if (key.allowed.empty()) return std::string(type_text(key.type));
  if (key.allowed.find("..") != std::string_view::npos) {
    const std::size_t dots = key.allowed.find("..");
    std::string_view high = key.allowed.substr(dots + 2);
    const std::string_view relation = high.starts_with('<') ? "to below" : "to";
    if (high.starts_with('<')) high.remove_prefix(1);
    return fmt::format("{} from {} {} {}", type_text(key.type), key.allowed.substr(0, dots), relation, high);
  }
  if (key.allowed.starts_with('>')) {
    const std::size_t digits = key.allowed.starts_with(">=") ? 2 : 1;
    return fmt::format("{} {} {}", type_text(key.type), key.allowed.substr(0, digits), key.allowed.substr(digits));
  }
  std::string text;
  for (const std::string& word : split(key.allowed, '|')) text += (text.empty() ? "" : ", ") + word;
  return text.find(',') == std::string::npos ? text : "one of " + text;
}

std::string_view state_text(KeyState state) {
  switch (state) {
    case KeyState::kWorks:
      return "works";
    case KeyState::kPlanned:
      return "planned";
    case KeyState::kNoEffect:
      return "no effect";
  }
  return "";
}

bool is_working_value(const Key& key, const Value& value) {
  if (key.state == KeyState::kNoEffect || is_switched_off(value)) return true;
  if (key.working.empty()) return key.state == KeyState::kWorks || value == default_value(key);
  for (const std::string& working : split(key.working, '|')) {
    if (equals(value, working)) return true;
  }
  return false;
}

std::string unbuilt_text(const Key& key) {
  // A detail is missing because what it belongs to is.
  if (key.unbuilt.empty() && key.reading == Reading::kBesideASwitch) {
    const Key& feature = *find_key(switches_of(key).front().front().key);
    if (feature.state == KeyState::kPlanned || !feature.unbuilt.empty()) return unbuilt_text(feature);
  }
  std::string text(key.unbuilt.empty() ? key.meaning : key.unbuilt);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

bool allows_null(const Key& key) {
  return key.default_text == "null";
}

}  // namespace primus::config
