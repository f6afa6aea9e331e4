#pragma once
// An experiment of one preset, projected: through the real configuration.
#include "model/preset_spec.hpp"
#include "projection/memory.hpp"

namespace primus::test {

/// `preset` with these overrides on `world` ranks. Data, iterations and a sequence length are filled in.
inline config::Experiment plan_experiment(const std::string& preset, std::int64_t world,
                                          std::vector<std::string> overrides) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("primus_plan_" + preset + std::to_string(getpid()) + ".yaml");
  std::ofstream(file) << "work_group: test\nuser_name: test\nexp_name: " << preset
                      << "\nworkspace: ./output\nmodules:\n  pre_trainer:\n    framework: megatron\n"
                         "    config: pre_trainer.yaml\n    model: "
                      << preset
                      << ".yaml\n    overrides:\n      train_iters: 1\n      seq_length: 4096\n"
                         "      max_position_embeddings: 4096\n      train_data_path: [/dev/null]\n"
                         "      micro_batch_size: 1\n";
  const config::Resolution resolution =
      config::resolve({.file = file, .overrides = std::move(overrides), .world = config::WorldSize{world, "the test"}});
  std::filesystem::remove(file);
  return resolution.experiment;
}

inline projection::MemoryInputs plan_inputs(const std::string& preset, std::int64_t world,
                                            std::vector<std::string> overrides, double imbalance = 1.0) {
  return projection::memory_inputs(plan_experiment(preset, world, std::move(overrides)), world, imbalance);
}

}  // namespace primus::test
