#include "train/start.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>

#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/damage.hpp"
#include "checkpoint/refuse.hpp"
#include "train/load_state.hpp"
#include "train/save_options.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;
using config::Experiment;

bool is_on(const Experiment& experiment, std::string_view key) {
  return !experiment.is_null(key) && experiment.get_bool(key);
}

/// A folder to start from, the key that names it, and what of it is wanted.
struct Origin {
  std::string key;
  std::string folder;
  std::optional<std::int64_t> step;  // of a folder of checkpoints; absent: its latest
  std::string short_lived;           // another folder, whose checkpoints count when they are newer; "": none
  Wanted wanted;
};

bool holds_model(const fs::path& folder) {
  return checkpoint::is_checkpoint(folder) || checkpoint::is_checkpoint_root(folder) ||
         fs::exists(folder / "config.json");
}

Wanted wanted_by(const Experiment& experiment) {
  Wanted wanted;
  if (is_on(experiment, "finetune")) return {OptimizerState::kLeftOut, Generators::kLeftOut, Wanted::Position::kNew};
  if (is_on(experiment, "no_load_optim")) wanted.optimizer = OptimizerState::kLeftOut;
  if (is_on(experiment, "no_load_rng")) wanted.generators = Generators::kLeftOut;
  return wanted;
}

/// The run's own checkpoints, where it has some and may go on from them. Then nothing but `ckpt_step` is asked.
std::optional<Origin> own_checkpoints(const Experiment& experiment) {
  const auto folder = save_folder(experiment);
  if (!folder || !continues_itself(experiment)) return std::nullopt;
  const std::string short_lived = short_lived_folder(experiment).value_or("");
  const bool has_short_lived = !short_lived.empty() && checkpoint::is_checkpoint_root(short_lived);
  if (!checkpoint::is_checkpoint_root(*folder) && !has_short_lived) return std::nullopt;
  Origin origin{"auto_continue_train", *folder, std::nullopt, has_short_lived ? short_lived : "", {}};
  if (experiment.is_null("load")) origin.step = experiment.get_optional_int("ckpt_step");
  return origin;
}

/// Megatron: `load` first; where it has nothing, the pretrained checkpoint, of which only weights are wanted.
std::optional<Origin> named_origin(const Experiment& experiment, std::string& note) {
  const auto load = experiment.get_optional_string("load");
  const auto pretrained = experiment.get_optional_string("pretrained_checkpoint");
  if (load && (holds_model(*load) || (fs::exists(*load) && !fs::is_empty(*load))))
    return Origin{"load", *load, experiment.get_optional_int("ckpt_step"), "", wanted_by(experiment)};
  if (pretrained) {
    return Origin{"pretrained_checkpoint",
                  *pretrained,
                  std::nullopt,
                  "",
                  {OptimizerState::kLeftOut, Generators::kLeftOut, Wanted::Position::kNew}};
  }
  if (!load) return std::nullopt;
  if (is_on(experiment, "exit_on_missing_checkpoint")) {
    checkpoint::refuse({.file = "experiment",
                        .key = "load",
                        .message = "there is no checkpoint, and exit_on_missing_checkpoint is on",
                        .expected = "a checkpoint or a Hugging Face folder",
                        .found = *load});
  }
  note = fmt::format("note: {} holds no checkpoint: starting from random weights", *load);
  return std::nullopt;
}

/// The folders to try, the best first. One that names a single model has itself alone.
std::vector<fs::path> candidates(const Origin& origin) {
  const bool is_one = !checkpoint::is_checkpoint_root(origin.folder) || checkpoint::is_checkpoint(origin.folder);
  if (is_one && origin.short_lived.empty()) return {origin.folder};
  const checkpoint::CheckpointRoot root(origin.folder);
  if (origin.step) {
    if (fs::is_directory(root.folder(*origin.step))) return {root.folder(*origin.step)};
    std::string there;
    for (const std::int64_t step : root.iterations()) there += (there.empty() ? "" : ", ") + std::to_string(step);
    checkpoint::refuse(
        {origin.folder, "ckpt_step", "there is no checkpoint of this step", there, std::to_string(*origin.step)});
  }
  // By step, the newest first; of two of one step the lasting one.
  std::vector<std::pair<std::int64_t, fs::path>> found;
  for (const std::int64_t step : root.candidates()) found.emplace_back(step, root.folder(step));
  if (!origin.short_lived.empty()) {
    const checkpoint::CheckpointRoot other(origin.short_lived);
    for (const std::int64_t step : other.candidates()) found.emplace_back(step, other.folder(step));
  }
  std::ranges::stable_sort(found, std::ranges::greater(), &std::pair<std::int64_t, fs::path>::first);
  std::vector<fs::path> folders;
  for (auto& [step, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

[[noreturn]] void refuse_weights_alone(const Origin& origin, const fs::path& folder) {
  checkpoint::refuse({.file = folder.string(),
                      .key = origin.key,
                      .message = "the checkpoint holds weights alone, and the optimizer's state is asked for",
                      .expected = "finetune: true, or no_load_optim: true"});
}

/// One candidate, whole or not at all as far as the run can tell: whoever comes after it overwrites what it left.
Start load_one(const Experiment& experiment, const model::ModelSpec& spec, const Origin& origin, const fs::path& folder,
               const RunState& run) {
  std::optional<checkpoint::CheckpointReader> reader;
  if (checkpoint::is_checkpoint(folder)) {
    reader.emplace(folder);
  } else if (checkpoint::is_checkpoint_root(folder.parent_path())) {
    throw checkpoint::DamagedError(fmt::format("{}: is missing", (folder / checkpoint::kIndexFile).string()));
  }
  const bool is_training = reader && reader->index().training;
  if (!is_training && origin.wanted.optimizer == OptimizerState::kIncluded) refuse_weights_alone(origin, folder);
  if (is_training) check_state(*reader, origin.wanted, experiment, run);
  Start start{.message = load_weights(folder.string(), experiment, spec, run.parameters)};
  // Master copies start from the weights; the stored ones come over them where they are wanted.
  run.optimizer.take_masters();
  if (is_training) {
    load_state(*reader, origin.wanted, experiment, run);
    start.position = position_of(*reader, origin.wanted, experiment);
  }
  if (is_on(experiment, "load_main_params_from_ckpt") && origin.wanted.optimizer == OptimizerState::kLeftOut)
    load_masters_from_weights(folder.string(), run);
  return start;
}

void tell_position(const Origin& origin, const Experiment& experiment, const fs::path& folder, double seconds,
                   Start& start) {
  if (start.position.iteration == 0) return;
  const bool is_own = origin.key == "auto_continue_train";
  const bool has_optimizer = origin.wanted.optimizer == OptimizerState::kIncluded;
  start.message = fmt::format("{} after iteration {} ({} samples) from {}{}, loaded in {:.3f} s",
                              is_own ? "continuing this run" : "going on", start.position.iteration,
                              start.position.consumed_samples, folder.string(),
                              has_optimizer ? "" : ", without the optimizer's state", seconds);
  if (is_own && !experiment.is_null("load")) {
    start.message += fmt::format(
        "\n  note: load ({}) is where this run began and is not read again; another exp_name, or "
        "auto_continue_train: false, starts from it",
        experiment.get_string("load"));
  }
}

}  // namespace

Start load_start(const Experiment& experiment, const model::ModelSpec& spec, RunState run) {
  std::string note;
  std::optional<Origin> origin = own_checkpoints(experiment);
  const bool is_own = origin.has_value();
  if (!origin) origin = named_origin(experiment, note);
  if (!origin) {
    if (is_on(experiment, "moe_use_upcycling")) {
      checkpoint::refuse({.file = "experiment",
                          .key = "moe_use_upcycling",
                          .message = "there is no dense checkpoint to start from",
                          .expected = "load, or pretrained_checkpoint"});
    }
    return {.message = note};
  }
  const bool may_go_back = experiment.get_string("on_damaged_checkpoint") == "previous";
  const std::vector<fs::path> folders = candidates(*origin);
  std::string damaged;
  for (const fs::path& folder : folders) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      Start start = load_one(experiment, spec, *origin, folder, run);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      tell_position(*origin, experiment, folder, seconds.count(), start);
      if (is_own) start.own_run = Start::OwnRun::kContinued;
      start.message = damaged + start.message;
      return start;
    } catch (const checkpoint::DamagedError& error) {
      if (!may_go_back || folders.size() == 1) throw;
      damaged += fmt::format("WARNING: this checkpoint is damaged and is not used: {}\n", error.what());
    }
  }
  throw UserError(
      fmt::format("{}no checkpoint under {} is whole; auto_continue_train: false, or another load, starts "
                  "without them",
                  damaged, origin->folder));
}

}  // namespace primus::train
