#include "train/save_options.hpp"

#include <filesystem>

namespace primus::train {
namespace {

bool is_on(const config::Experiment& experiment, std::string_view key) {
  return !experiment.is_null(key) && experiment.get_bool(key);
}

}  // namespace

std::optional<std::string> save_folder(const config::Experiment& experiment) {
  if (const auto folder = experiment.get_optional_string("save")) return folder;
  if (experiment.is_explicitly_set("save")) return std::nullopt;
  return (std::filesystem::path(experiment.run_folder()) / "checkpoints").string();
}

std::optional<std::string> short_lived_folder(const config::Experiment& experiment) {
  if (experiment.is_null("non_persistent_save_interval")) return std::nullopt;
  const bool is_local = experiment.get_optional_string("non_persistent_ckpt_type").value_or("") == "local";
  const char* key = is_local ? "non_persistent_local_ckpt_dir" : "non_persistent_global_ckpt_dir";
  if (const auto folder = experiment.get_optional_string(key)) return folder;
  const auto save = save_folder(experiment);
  if (!save) return std::nullopt;
  return (std::filesystem::path(*save) / "non_persistent").string();
}

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

bool continues_itself(const config::Experiment& experiment) {
  return is_on(experiment, "auto_continue_train") || !experiment.is_explicitly_set("auto_continue_train");
}

SaveOptions save_options(const config::Experiment& experiment) {
  SaveOptions options;
  options.folder = save_folder(experiment);
  options.interval = experiment.get_int("save_interval");
  options.retention.keep_every = experiment.get_optional_int("save_retain_interval");
  options.retention.keep_last = experiment.get_optional_int("save_keep_last");
  // Megatron keeps the latest beside the retained ones.
  if (options.retention.keep_every && !options.retention.keep_last) options.retention.keep_last = 1;
  if (is_on(experiment, "async_save")) options.writing = SaveOptions::Writing::kBesideTraining;
  if (is_on(experiment, "disable_last_saving")) options.after_last_step = SaveOptions::AfterLastStep::kDoNot;
  if (is_on(experiment, "no_save_optim")) options.optimizer = OptimizerState::kLeftOut;
  if (is_on(experiment, "no_save_rng")) options.generators = Generators::kLeftOut;
  if (const auto folder = short_lived_folder(experiment))
    options.short_lived = {*folder, experiment.get_int("non_persistent_save_interval")};
  if (experiment.get_bool("save_tokenizer_assets"))
    options.tokenizer = experiment.get_optional_string("tokenizer_model").value_or("");
  return options;
}

}  // namespace primus::train
