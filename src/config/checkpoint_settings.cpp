#include "config/checkpoint_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/files.hpp"
#include "config/key_table.hpp"

namespace primus::config {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 7> kModelAreas = {
    "structure", "position", "attention", "latent attention", "linear attention", "mixture of experts", "mixed layers"};
constexpr std::array<std::string_view, 9> kParallelKeys = {"tensor_model_parallel_size",
                                                           "pipeline_model_parallel_size",
                                                           "context_parallel_size",
                                                           "expert_model_parallel_size",
                                                           "expert_tensor_parallel_size",
                                                           "num_virtual_stages_per_pipeline_rank",
                                                           "num_layers_per_virtual_pipeline_stage",
                                                           "virtual_pipeline_model_parallel_size",
                                                           "pipeline_model_parallel_layout"};
// The vocabulary belongs to the embedding, whoever made the tokens.
constexpr std::array<std::string_view, 3> kVocabularyKeys = {"vocab_size", "padded_vocab_size",
                                                             "make_vocab_size_divisible_by"};

/// The folder of one checkpoint: `load` itself, or one of the steps in it.
fs::path checkpoint_folder(const Experiment& experiment) {
  const fs::path load = experiment.get_string("load");
  std::error_code error;
  if (fs::exists(load / "experiment.json", error)) return load;
  if (const auto step = experiment.get_optional_int("ckpt_step")) return load / fmt::format("iter_{:07}", *step);
  return load / "latest";
}

std::vector<std::string_view> wanted_keys(const Experiment& experiment) {
  std::vector<std::string_view> keys(kVocabularyKeys.begin(), kVocabularyKeys.end());
  const bool has_tokenizer = experiment.get_bool("use_tokenizer_model_from_checkpoint_args");
  for (const KeySection& section : key_sections()) {
    const bool is_model = std::ranges::find(kModelAreas, section.area) != kModelAreas.end();
    const bool is_tokenizer = section.area == "tokenizer" && has_tokenizer;
    if (!is_model && !is_tokenizer) continue;
    for (const Key& key : section.keys) {
      if (std::ranges::find(keys, key.name) == keys.end()) keys.push_back(key.name);
    }
  }
  if (experiment.get_bool("use_mp_args_from_checkpoint_args"))
    keys.insert(keys.end(), kParallelKeys.begin(), kParallelKeys.end());
  // How long samples are and how many steps there are is the run's.
  std::erase(keys, "seq_length");
  return keys;
}

}  // namespace

CheckpointSettings take_checkpoint_settings(Experiment& experiment, const std::string& experiment_file) {
  CheckpointSettings result;
  if (!experiment.get_bool("use_checkpoint_args")) return result;
  if (experiment.is_null("load")) {
    Problem problem = problem_at(experiment, "use_checkpoint_args", experiment_file);
    problem.message = "needs a checkpoint to read";
    problem.expected = "load: a checkpoint, or false";
    result.problems.push_back(std::move(problem));
    return result;
  }
  const fs::path file = checkpoint_folder(experiment) / "experiment.json";
  std::error_code error;
  if (!fs::exists(file, error)) {
    // As in Megatron: a run that starts a folder of checkpoints has none yet.
    result.notes.push_back(
        {"use_checkpoint_args", fmt::format("there is no {}: nothing is taken over", file.string())});
    return result;
  }
  Experiment stored;
  try {
    stored = Experiment::from_json(read_file(file));
  } catch (const UserError& fault) {
    result.problems.push_back({.file = file.string(), .key = "use_checkpoint_args", .message = fault.what()});
    return result;
  }
  int num_taken = 0;
  for (const std::string_view key : wanted_keys(experiment)) {
    const Value& theirs = stored.setting(key).value;
    const Setting& mine = experiment.setting(key);
    if (mine.value == theirs) continue;
    if (experiment.is_explicitly_set(key)) {
      Problem problem = problem_at(experiment, key, experiment_file);
      problem.message = "is not what the checkpoint was trained with, and use_checkpoint_args is on";
      problem.expected = fmt::format("{} ({})", to_text(theirs), file.string());
      problem.found = to_text(mine.value);
      result.problems.push_back(std::move(problem));
      continue;
    }
    experiment.set(key, theirs, {Layer::kModelPreset, file.string(), 0});
    ++num_taken;
  }
  result.notes.push_back({"use_checkpoint_args", fmt::format("{} settings come from {}", num_taken, file.string())});
  return result;
}

}  // namespace primus::config
