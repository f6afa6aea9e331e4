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

}  // namespace primus::test
