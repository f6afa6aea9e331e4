#include "checkpoint/start_folder.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint_index.hpp"
#include "checkpoint/checkpoint_root.hpp"
#include "checkpoint/refuse.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;
using config::Experiment;

bool is_on(const Experiment& experiment, std::string_view key) {
  return !experiment.is_null(key) && experiment.get_bool(key);
}

/// Is there something that a run could mean to start from? What exactly is told when it is read.
bool holds_something(const std::string& folder) {
  std::error_code error;
  return fs::is_directory(folder, error) && !fs::is_empty(folder, error);
}

void refuse_file(const std::string& path, std::string_view key) {
  std::error_code error;
  if (!fs::exists(path, error) || fs::is_directory(path, error)) return;
  refuse({.file = "",
          .key = std::string(key),
          .message = "is no folder",
          .expected = "a checkpoint, a folder of them, or a Hugging Face folder",
          .found = path});
}

std::vector<fs::path> candidates_in(const std::string& folder, std::optional<std::int64_t> step) {
  if (!is_checkpoint_root(folder) || is_checkpoint(folder)) return {folder};
  const CheckpointRoot root(folder);
  if (step) {
    if (fs::is_directory(root.folder(*step))) return {root.folder(*step)};
    std::string there;
    for (const std::int64_t known : root.iterations()) there += (there.empty() ? "" : ", ") + std::to_string(known);
    refuse({.file = "",
            .key = "ckpt_step",
            .message = "there is no checkpoint of this step in " + folder,
            .expected = there,
            .found = std::to_string(*step)});
  }
  std::vector<fs::path> folders;
  for (const std::int64_t known : root.candidates()) folders.push_back(root.folder(known));
  return folders;
}

/// The run's own checkpoints, where it has some. Its short-lived ones count beside them, unless a step is asked for.
std::optional<StartFolder> own_start(const Experiment& experiment, std::optional<std::int64_t> step) {
  const auto own = save_folder(experiment);
  if (!own || !continues_itself(experiment)) return std::nullopt;
  const std::string short_lived = short_lived_folder(experiment).value_or("");
  const bool has_short_lived = !short_lived.empty() && is_checkpoint_root(short_lived);
  if (!has_short_lived && !is_checkpoint_root(*own)) return std::nullopt;
  StartFolder start{"auto_continue_train", *own, {}};
  if (step || !has_short_lived) {
    start.candidates = candidates_in(*own, step);
    return start;
  }
  std::vector<std::pair<std::int64_t, fs::path>> found;
  for (const std::string& folder : {*own, short_lived}) {
    const CheckpointRoot root(folder);
    for (const std::int64_t known : root.candidates()) found.emplace_back(known, root.folder(known));
  }
  // The newest first; of two of one step the lasting one.
  std::ranges::stable_sort(found, std::ranges::greater(), &std::pair<std::int64_t, fs::path>::first);
  for (auto& [known, folder] : found) start.candidates.push_back(std::move(folder));
  return start;
}

StartFolder start_in(std::string key, const std::string& folder, std::optional<std::int64_t> step) {
  return {std::move(key), folder, candidates_in(folder, step)};
}

}  // namespace

std::optional<std::string> save_folder(const Experiment& experiment) {
  if (const auto folder = experiment.get_optional_string("save")) return folder;
  if (experiment.is_explicitly_set("save")) return std::nullopt;
  return (fs::path(experiment.run_folder()) / "checkpoints").string();
}

std::optional<std::string> short_lived_folder(const Experiment& experiment) {
  if (experiment.is_null("non_persistent_save_interval")) return std::nullopt;
  const bool is_local = experiment.get_optional_string("non_persistent_ckpt_type").value_or("") == "local";
  const char* key = is_local ? "non_persistent_local_ckpt_dir" : "non_persistent_global_ckpt_dir";
  if (const auto folder = experiment.get_optional_string(key)) return folder;
  const auto save = save_folder(experiment);
  if (!save) return std::nullopt;
  return (fs::path(*save) / "non_persistent").string();
}

bool continues_itself(const Experiment& experiment) {
  return is_on(experiment, "auto_continue_train") || !experiment.is_explicitly_set("auto_continue_train");
}

// Megatron: `load` first; where it has nothing, the pretrained checkpoint.
std::optional<StartFolder> find_start_folder(const Experiment& experiment) {
  const auto load = experiment.get_optional_string("load");
  const auto pretrained = experiment.get_optional_string("pretrained_checkpoint");
  const auto step = experiment.get_optional_int("ckpt_step");
  if (auto own = own_start(experiment, load ? std::nullopt : step)) return own;
  if (load) refuse_file(*load, "load");
  if (load && holds_something(*load)) return start_in("load", *load, step);
  if (pretrained) {
    refuse_file(*pretrained, "pretrained_checkpoint");
    if (holds_something(*pretrained)) return start_in("pretrained_checkpoint", *pretrained, std::nullopt);
    refuse({.file = "",
            .key = "pretrained_checkpoint",
            .message = "there is no checkpoint",
            .expected = "a checkpoint, a folder of them, or a Hugging Face folder",
            .found = *pretrained});
  }
  if (load && is_on(experiment, "exit_on_missing_checkpoint")) {
    refuse({.file = "",
            .key = "load",
            .message = "there is no checkpoint, and exit_on_missing_checkpoint is on",
            .expected = "a checkpoint, a folder of them, or a Hugging Face folder",
            .found = *load,
            .nearest = "exit_on_missing_checkpoint: false starts from random weights"});
  }
  if (is_on(experiment, "moe_use_upcycling")) {
    refuse({.file = "",
            .key = "moe_use_upcycling",
            .message = "there is no dense checkpoint to start from",
            .expected = "load, or pretrained_checkpoint"});
  }
  return std::nullopt;
}

}  // namespace primus::checkpoint
