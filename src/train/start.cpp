#include "train/start.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>

#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/damage.hpp"
#include "checkpoint/refuse.hpp"
#include "checkpoint/start_folder.hpp"
#include "train/load_state.hpp"
#include "train/save_options.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;
using config::Experiment;

bool is_on(const Experiment& experiment, std::string_view key) {
  return !experiment.is_null(key) && experiment.get_bool(key);
}

/// A folder to start from, and what of it is wanted.
struct Origin {
  checkpoint::StartFolder start;
  Wanted wanted;
};

Wanted wanted_by(const Experiment& experiment) {
  Wanted wanted;
  if (is_on(experiment, "finetune")) return {OptimizerState::kLeftOut, Generators::kLeftOut, Wanted::Position::kNew};
  if (is_on(experiment, "no_load_optim")) wanted.optimizer = OptimizerState::kLeftOut;
  if (is_on(experiment, "no_load_rng")) wanted.generators = Generators::kLeftOut;
  return wanted;
}

/// Of its own checkpoints a run wants everything, of a pretrained one weights only.
std::optional<Origin> origin_of(const Experiment& experiment) {
  std::optional<checkpoint::StartFolder> start = checkpoint::find_start_folder(experiment);
  if (!start) return std::nullopt;
  if (start->key == "auto_continue_train") return Origin{*std::move(start), {}};
  if (start->key == "load") return Origin{*std::move(start), wanted_by(experiment)};
  return Origin{*std::move(start), {OptimizerState::kLeftOut, Generators::kLeftOut, Wanted::Position::kNew}};
}

[[noreturn]] void refuse_weights_alone(const Origin& origin, const fs::path& folder) {
  checkpoint::refuse({.file = folder.string(),
                      .key = origin.start.key,
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
  const bool is_own = origin.start.key == "auto_continue_train";
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
  const std::optional<Origin> origin = origin_of(experiment);
  if (!origin) {
    const auto load = experiment.get_optional_string("load");
    return {.message = load ? fmt::format("note: {} holds no checkpoint: starting from random weights", *load) : ""};
  }
  const bool is_own = origin->start.key == "auto_continue_train";
  const bool may_go_back = experiment.get_string("on_damaged_checkpoint") == "previous";
  const std::vector<fs::path>& folders = origin->start.candidates;
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
                  damaged, origin->start.folder));
}

}  // namespace primus::train
