#include "checkpoint/hugging_face_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/files.hpp"
#include "base/text.hpp"
#include "checkpoint/refuse.hpp"
#include "config/key_table.hpp"

namespace primus::checkpoint {
namespace {

using config::Experiment;
using config::Value;

const ArchitectureRow& find_row(const Json& json, const std::string& file) {
  const Json* type = json.is_object() && json.contains("model_type") ? &json["model_type"] : nullptr;
  if (type == nullptr || !type->is_string())
    refuse({.file = file, .key = "model_type", .message = "is missing", .expected = "one of " + architecture_names()});
  const ArchitectureRow* row = find_architecture(type->get<std::string>());
  if (row == nullptr)
    refuse({file, "model_type", "is not converted", "one of " + architecture_names(), type->get<std::string>()});
  const Json classes = json.value("architectures", Json());
  if (classes.is_array() && !classes.empty() && classes[0] != row->class_name) {
    refuse({file, "architectures", "is not the language model of this model_type", std::string(row->class_name),
            classes[0].dump()});
  }
  return *row;
}

Json parse_json(const std::string& text, const std::string& file) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    refuse({.file = file, .message = fmt::format("is no JSON: {}", error.what())});
  }
}

Experiment experiment_of(const Settings& settings, const std::string& file) {
  Experiment experiment;
  experiment.work_group = "primus";
  experiment.user_name = "root";
  experiment.workspace = "./output";
  experiment.exp_name = "imported";
  experiment.module = "pre_trainer";
  experiment.framework = "megatron";
  experiment.module_preset = "pre_trainer.yaml";
  experiment.model_preset = "language_model.yaml";
  for (const auto& [key, value] : settings.all()) experiment.set(key, value, {config::Layer::kExperiment, file, 0});
  return experiment;
}

/// What the model is without the key, where null or another key says so.
Value effective(const Experiment& experiment, const std::string& key) {
  const Value& value = experiment.setting(key).value;
  if (key == "moe_layer_freq") {
    const auto layers = model::layer_kinds(value, experiment.get_int("num_layers"));
    Value::List list;
    for (const model::LayerKind kind : layers) list.emplace_back().data = kind == model::LayerKind::kMoe;
    return {list};
  }
  if (key == "linear_attention_freq" && !experiment.is_null("experimental_attention_variant")) {
    Value::List list;
    for (const model::MixerKind kind : model::build_model_spec(experiment).mixers) {
      list.emplace_back().data = kind == model::MixerKind::kGatedDelta || kind == model::MixerKind::kKimiDelta;
    }
    return {list};
  }
  if (key == "experimental_attention_variant" && value == Value{std::string("gdn")}) {
    return {std::string("gated_delta_net")};
  }
  if (key == "group_query_attention") return {true};  // without it there is a group a head
  const model::ModelSpec spec = model::build_model_spec(experiment);
  const auto* gqa = std::get_if<model::GqaSpec>(&spec.attention);
  if (gqa != nullptr && key == "num_query_groups") return {gqa->num_query_groups};
  if (gqa != nullptr && key == "kv_channels") return {gqa->head_dim};
  if (key == "ffn_hidden_size") return {spec.dense_ffn_hidden_size};
  if (key == "rope_type") return {std::string(spec.rope.type == model::RopeType::kYarn ? "yarn" : "rope")};
  if (key == "original_max_position_embeddings") return {spec.rope.original_max_position};
  if (key == "dsa_indexer_k_norm_epsilon" && spec.indexer() != nullptr) return {spec.indexer()->norm_epsilon};
  if (key == "max_position_embeddings" && value.is_null()) return {spec.seq_length};
  if (spec.moe) {
    if (key == "moe_ffn_hidden_size") return {spec.moe->ffn_hidden_size};
    if (key == "moe_shared_expert_intermediate_size") return {spec.moe->shared_ffn_hidden_size};
    if (key == "moe_router_topk_scaling_factor") return {spec.moe->router.scaling_factor};
  }
  return value;
}

bool means_the_same(const Value& a, const Value& b) {
  const auto number = [](const Value& value) -> std::optional<double> {
    if (const auto* integer = std::get_if<std::int64_t>(&value.data)) return static_cast<double>(*integer);
    if (const auto* real = std::get_if<double>(&value.data)) return *real;
    return std::nullopt;
  };
  if (number(a) && number(b)) return *number(a) == *number(b);
  return a == b;
}

/// Choices of a training; a model is the same with any of them.
bool is_training_choice(std::string_view key) {
  constexpr std::array<std::string_view, 8> kChoices = {"make_vocab_size_divisible_by",
                                                        "seq_length",
                                                        "moe_router_load_balancing_type",
                                                        "moe_aux_loss_coeff",
                                                        "moe_grouped_gemm",
                                                        "moe_token_dispatcher_type",
                                                        "hidden_dropout",
                                                        "dsa_indexer_rotate_activation"};
  return std::ranges::find(kChoices, key) != kChoices.end();
}

/// The settings in which an experiment and the one that a config.json describes differ.
std::vector<Problem> differences(const Experiment& experiment, const HuggingFaceConfig& config,
                                 const std::string& file) {
  const Experiment& described = config.experiment;
  const std::string_view model_type = row_of(config.architecture).model_type;
  std::vector<std::string> keys;
  for (const auto& [key, setting] : described.settings()) keys.push_back(key);
  for (const std::string_view key : neutral_keys()) {
    if (!described.settings().contains(key)) keys.emplace_back(key);
  }
  const bool has_experts = !experiment.is_null("num_experts");
  std::vector<Problem> problems;
  // A config may declare layers that the files do not hold; the other way round they would be lost.
  const std::int64_t depths = experiment.get_optional_int("mtp_num_layers").value_or(0);
  if (depths > 0 && depths != config.facts.num_mtp_layers) {
    problems.push_back(
        problem_of({file, "mtp_num_layers", fmt::format("cannot be said in a config.json of {}", model_type),
                    std::to_string(config.facts.num_mtp_layers), std::to_string(depths)}));
  }
  for (const std::string& key : keys) {
    if (is_training_choice(key)) continue;
    // Without experts, what their keys say has no meaning.
    if (!has_experts && key.starts_with("moe_")) continue;
    const Value ours = effective(experiment, key);
    const Value theirs = effective(described, key);
    if (means_the_same(ours, theirs)) continue;
    problems.push_back(problem_of({file, key, fmt::format("cannot be said in a config.json of {}", model_type),
                                   config::to_text(theirs), config::to_text(ours)}));
  }
  return problems;
}

HuggingFaceConfig parse(const Json& json, const std::string& file) {
  const ArchitectureRow& row = find_row(json, file);
  HuggingFaceConfig config;
  config.architecture = row.id;
  config.json = json;
  Settings settings;
  ConfigReader reader(config.json, file);
  config.facts = row.read(reader, settings);
  reader.refuse_rest();
  reader.finish();
  config.experiment = experiment_of(settings, file);
  return config;
}

void set_dtype(Json& json, DType dtype) {
  const char* name = dtype == DType::kBFloat16 ? "bfloat16" : dtype == DType::kFloat16 ? "float16" : "float32";
  const char* field = json.contains("torch_dtype") ? "torch_dtype" : json.contains("dtype") ? "dtype" : "torch_dtype";
  json[field] = name;
}

/// New values on top of the source's, without what the source says in another spelling.
Json merged(const Json& source, Json fields) {
  Json json = source;
  for (const char* field :
       {"rope_parameters", "rope_theta", "rope_scaling", "num_local_experts", "num_experts", "linear_attn_config"}) {
    json.erase(field);
  }
  for (const auto& [field, value] : fields.items()) json[field] = value;
  return json;
}

struct Attempt {
  Json json;
  std::vector<Problem> problems;
  /// kNoModel: what was written is no config of the architecture, so nothing is known of further differences.
  enum class Outcome { kDescribed, kNoModel } outcome = Outcome::kDescribed;

  bool is_better_than(const Attempt& other) const {
    return std::pair(outcome, problems.size()) < std::pair(other.outcome, other.problems.size());
  }
};

Attempt attempt(const Experiment& experiment, const ArchitectureRow& row, const std::optional<Json>& source,
                const std::string& file) {
  Json fields = row.write(experiment, model::build_model_spec(experiment));
  fields["model_type"] = row.model_type;
  fields["architectures"] = {row.class_name};
  Attempt made;
  made.json = source ? merged(*source, fields) : std::move(fields);
  try {
    made.problems = differences(experiment, parse(made.json, file), file);
  } catch (const ConfigError& error) {
    made.problems = error.problems();
    made.outcome = Attempt::Outcome::kNoModel;
  }
  return made;
}

/// The architecture with the fewest settings that it cannot express.
Attempt best_attempt(const Experiment& experiment, const std::string& file, Architecture& chosen) {
  std::optional<Attempt> best;
  for (const ArchitectureRow& row : architectures()) {
    Attempt made = attempt(experiment, row, std::nullopt, file);
    if (best && !made.is_better_than(*best)) continue;
    best = std::move(made);
    chosen = row.id;
  }
  return *best;
}

}  // namespace

HuggingFaceConfig parse_hugging_face_config(const std::string& text, const std::string& file) {
  return parse(parse_json(text, file), file);
}

HuggingFaceConfig read_hugging_face_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  if (!std::filesystem::exists(file))
    refuse({.file = folder.string(), .message = "is no Hugging Face model", .expected = "config.json"});
  return parse_hugging_face_config(read_file(file), file.string());
}

ExportedConfig write_hugging_face_config(const Experiment& experiment, const std::optional<Json>& source, DType dtype,
                                         const std::string& experiment_file) {
  ExportedConfig exported;
  if (source) {
    const HuggingFaceConfig config = parse(*source, "the imported config.json");
    exported.architecture = config.architecture;
    const ArchitectureRow& row = row_of(config.architecture);
    exported.json = *source;
    if (!differences(experiment, config, experiment_file).empty()) {
      Attempt made = attempt(experiment, row, source, experiment_file);
      if (!made.problems.empty()) throw ConfigError(std::move(made.problems));
      exported.json = std::move(made.json);
    }
  } else {
    Attempt made = best_attempt(experiment, experiment_file, exported.architecture);
    if (!made.problems.empty()) throw ConfigError(std::move(made.problems));
    exported.json = std::move(made.json);
  }
  set_dtype(exported.json, dtype);
  return exported;
}

}  // namespace primus::checkpoint
