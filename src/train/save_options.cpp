#include "train/save_options.hpp"

#include "checkpoint/start_folder.hpp"

namespace primus::train {
namespace {

bool is_on(const config::Experiment& experiment, std::string_view key) {
  return !experiment.is_null(key) && experiment.get_bool(key);
}

}  // namespace

SaveOptions short_lived_only(const SaveOptions& options) {
  SaveOptions result = options;
  result.short_lived.reset();
  result.folder.reset();
  if (!options.short_lived) return result;
  result.folder = options.short_lived->folder;
  result.interval = options.short_lived->interval;
  result.retention = {.keep_last = 1, .keep_every = std::nullopt};
  return result;
}

SaveOptions save_options(const config::Experiment& experiment) {
  SaveOptions options;
  options.folder = checkpoint::save_folder(experiment);
  options.interval = experiment.get_int("save_interval");
  options.retention.keep_every = experiment.get_optional_int("save_retain_interval");
  options.retention.keep_last = experiment.get_optional_int("save_keep_last");
  // Megatron keeps the latest beside the retained ones.
  if (options.retention.keep_every && !options.retention.keep_last) options.retention.keep_last = 1;
  if (is_on(experiment, "async_save")) options.writing = SaveOptions::Writing::kBesideTraining;
  if (is_on(experiment, "disable_last_saving")) options.after_last_step = SaveOptions::AfterLastStep::kDoNot;
  if (is_on(experiment, "no_save_optim")) options.optimizer = OptimizerState::kLeftOut;
  if (is_on(experiment, "no_save_rng")) options.generators = Generators::kLeftOut;
  if (const auto folder = checkpoint::short_lived_folder(experiment))
    options.short_lived = {*folder, experiment.get_int("non_persistent_save_interval")};
  if (experiment.get_bool("save_tokenizer_assets"))
    options.tokenizer = experiment.get_optional_string("tokenizer_model").value_or("");
  return options;
}

}  // namespace primus::train
