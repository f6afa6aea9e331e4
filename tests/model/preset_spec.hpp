#pragma once
// A preset as a ModelSpec, through the real configuration.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "config/resolve.hpp"
#include "model/model_spec.hpp"

namespace primus::test {

/// Resolves `preset` (for instance "deepseek_v3") with the few keys that any experiment must set.
inline config::Experiment preset_experiment(const std::string& preset, std::vector<std::string> overrides = {}) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("primus_preset_" + preset + std::to_string(getpid()) + ".yaml");
  std::ofstream(file) << "work_group: test\nuser_name: test\nexp_name: " << preset
                      << "\nworkspace: ./output\nmodules:\n  pre_trainer:\n    framework: megatron\n"
                         "    config: pre_trainer.yaml\n    model: "
                      << preset
                      << ".yaml\n    overrides:\n      train_iters: 1\n      seq_length: 4096\n"
                         "      max_position_embeddings: 4096\n      train_data_path: [/dev/null]\n";
  const config::Resolution resolution = config::resolve({.file = file, .overrides = std::move(overrides)});
  std::filesystem::remove(file);
  return resolution.experiment;
}

/// The same as a ModelSpec.
inline model::ModelSpec preset_spec(const std::string& preset, std::vector<std::string> overrides = {}) {
  return model::build_model_spec(preset_experiment(preset, std::move(overrides)));
}

/// DeepSeek-V3.2: DeepSeek-V3 with the published indexer.
inline model::ModelSpec sparse_spec(std::vector<std::string> words = {}) {
  std::vector<std::string> all = {"--experimental_attention_variant", "dsa", "--dsa_indexer_n_heads", "64",
                                  "--dsa_indexer_head_dim",           "128", "--dsa_indexer_topk",    "2048"};
  all.insert(all.end(), words.begin(), words.end());
  return preset_spec("deepseek_v3", all);
}

}  // namespace primus::test
