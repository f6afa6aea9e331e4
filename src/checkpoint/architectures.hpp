#pragma once
// The Hugging Face architectures that are converted: one row each, read by the config's and the tensors' mapping.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config_reader.hpp"
#include "config/experiment.hpp"
#include "model/model_spec.hpp"

namespace primus::checkpoint {

enum class Architecture {
  kLlama,
  kMixtral,
  kQwen3Moe,
  kDeepseekV2,
  kDeepseekV3,
  kDeepseekV32,
  kGlmMoeDsa,
  kGptOss,
  kLfm2,
  kLfm2Moe,
  kQwen3Next,
  kKimiLinear
};

/// Settings by key, in the order in which they were made.
class Settings {
 public:
  void set(std::string key, config::Value value) { all_.emplace_back(std::move(key), std::move(value)); }
  const std::vector<std::pair<std::string, config::Value>>& all() const { return all_; }

 private:
  std::vector<std::pair<std::string, config::Value>> all_;
};

/// What a config.json says besides settings.
struct ConfigFacts {
  std::int64_t num_mtp_layers = 0;  // that the config declares; the files may hold them or not
  std::vector<std::string> notes;   // where transformers computes something else than the config says
};

struct ArchitectureRow {
  Architecture id = Architecture::kLlama;
  std::string_view model_type;  // config.json's
  std::string_view class_name;  // architectures[0]
  ConfigFacts (*read)(ConfigReader& config, Settings& settings);
  /// Every field with a meaning, as the experiment has it.
  Json (*write)(const config::Experiment& experiment, const model::ModelSpec& spec);
};

std::span<const ArchitectureRow> architectures();
const ArchitectureRow& row_of(Architecture architecture);
/// nullptr if there is none of that model_type.
const ArchitectureRow* find_architecture(std::string_view model_type);
/// "llama, mixtral, …".
std::string architecture_names();

/// Keys that stand at their table's default in every model of these architectures, unless its settings say otherwise.
std::span<const std::string_view> neutral_keys();

}  // namespace primus::checkpoint
