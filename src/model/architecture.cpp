#include "model/architecture.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "config/key_table.hpp"

namespace primus::model {
namespace {

using config::Experiment;

struct Row {
  const char* key;
  const char* name;
  Counted counted = Counted::kWhole;
};

// A part is asked for where its key stands at a value that the key table calls planned, so that a row takes effect no
// longer once the part is built.
constexpr Row kRows[] = {
    {"position_embedding_type", "positions other than rotary"},
    {"hybrid_layer_pattern", "layers other than attention and MLP", Counted::kMissing},
    {"hybrid_override_pattern", "layers other than attention and MLP", Counted::kMissing},
    {"heterogeneous_layers_config_path", "layers that differ from block to block", Counted::kMissing},
    {"heterogeneous_layers_config_encoded_json", "layers that differ from block to block", Counted::kMissing},
    {"attn_res_block_size", "attention over residuals"},
    {"num_hash_layers", "routing by token id", Counted::kMissing},
};

/// What grouped-query attention has and latent attention has not.
void add_latent_parts(const Experiment& experiment, std::vector<ArchitecturePart>& parts) {
  if (experiment.get_double("rotary_percent") != 1.0) {
    parts.push_back({"rotary_percent", "latent heads that are rotated in part"});
  }
  constexpr std::pair<const char*, const char*> kSwitches[] = {{"attention_output_gate", "a gate on latent attention"},
                                                               {"add_qkv_bias", "biases in latent attention"},
                                                               {"qk_l2_norm", "unit norms in latent attention"}};
  for (const auto& [key, name] : kSwitches) {
    if (experiment.get_bool(key)) parts.push_back({key, name});
  }
}

/// The parts that take more than one key to see.
void add_attention_parts(const Experiment& experiment, std::vector<ArchitecturePart>& parts) {
  const std::string type = experiment.get_string("model_type");
  if (type == "deepseek_v4") {
    parts.push_back({"model_type", "DeepSeek-V4's compressed attention", Counted::kMissing});
  } else if (experiment.get_bool("multi_latent_attention")) {
    add_latent_parts(experiment, parts);
  }
  if (const auto variant = experiment.get_optional_string("experimental_attention_variant")) {
    const bool is_unbuilt = *variant == "gdn2";
    if (is_unbuilt) parts.push_back({"experimental_attention_variant", "linear attention", Counted::kMissing});
  }
  if (experiment.get_int("attn_sliding_window") > 0) parts.push_back({"attn_sliding_window", "sliding windows"});
}

}  // namespace

std::vector<ArchitecturePart> unsupported_parts(const Experiment& experiment) {
  std::vector<ArchitecturePart> parts;
  add_attention_parts(experiment, parts);
  for (const Row& row : kRows) {
    const config::Key* key = config::find_key(row.key);
    PRIMUS_CHECK(key != nullptr, "{} is not a key", row.key);
    if (config::is_working_value(*key, experiment.setting(row.key).value)) continue;
    parts.push_back({row.key, row.name, row.counted});
  }
  return parts;
}

std::vector<ArchitecturePart> uncounted_parts(const Experiment& experiment) {
  std::vector<ArchitecturePart> parts = unsupported_parts(experiment);
  std::erase_if(parts, [](const ArchitecturePart& part) { return part.counted == Counted::kWhole; });
  return parts;
}

}  // namespace primus::model
