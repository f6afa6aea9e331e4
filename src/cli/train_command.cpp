#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "cli/app.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/config_common.hpp"
#include "cli/data_check.hpp"
#include "cli/gathered.hpp"
#include "cli/outer_modes.hpp"
#include "cli/output_aside.hpp"
#include "cli/plan_report.hpp"
#include "cli/resolution_json.hpp"
#include "cli/run_curve.hpp"
#include "cli/run_files.hpp"
#include "cli/start_check.hpp"
#include "cli/terminal.hpp"
#include "cli/train_refusal.hpp"
#include "config/resolve.hpp"
#include "launch/environment.hpp"
#include "launch/hooks.hpp"
#include "launch/run_folder.hpp"
#include "launch/worker_process.hpp"

namespace primus::cli {
namespace {

constexpr const char* kExport = "--export_config";

struct TrainOptions {
  ReadOptions read;
  std::string device;
  std::string backend_path;
  std::string export_config;
  bool dry_run = false;
};

void add_options(CLI::App& app, TrainOptions& options) {
  add_config_option(app, options.read);
  app.add_option("--device", options.device, "cpu or cuda")->type_name("DEVICE");
  app.add_flag("--dry-run,--dry_run", options.dry_run, "Print the plan, and stop");
  add_world_option(app, options.read.world_size);
  add_format_option(app, options.read.format, {"text", "json"});
  app.add_option("--export_config,--export-config", options.export_config,
                 "Write the resolved experiment as YAML (a dry run does not)")
      ->type_name("FILE");
  app.add_option("--backend_path,--backend-path", options.backend_path, "No effect: there is no Python backend")
      ->type_name("DIR");
}

Parsed read_options(std::span<const std::string> words, TrainOptions& options) {
  CLI::App app("Train an experiment. Everything that is no option below overrides a key of the experiment.",
               "primus-cli train pretrain");
  add_options(app, options);
  app.footer(
      "overrides\n  --key value  --key=value  key=value  --flag  --no-flag  --map.key value\n"
      "  primus-cli config keys PATTERN lists the keys, config explain KEY explains one\n"
      "examples\n  primus-cli train pretrain --config exp.yaml --train_iters 20 --lr 3e-4 --no-bf16\n"
      "  primus-cli --dry-run train pretrain --config exp.yaml moe_layer_freq='([0]*1+[1]*26)'");
  return parse_options(app, words, Rest::kReturn, options.read.overrides);
}

void check_device(const std::string& device) {
  constexpr std::array<std::string_view, 2> kDevices = {"cpu", "cuda"};
  if (device.empty() || std::find(kDevices.begin(), kDevices.end(), device) != kDevices.end()) return;
  refuse_word("device", device, kDevices);
}

// What a GPU run lacks on this machine; a plan may be made without it.
void check_gpu(const std::filesystem::path& worker) {
  const auto refuse = [](std::string message, std::string nearest) {
    throw ConfigError({{.file = "command line",
                        .key = "--device",
                        .message = std::move(message),
                        .expected = "cpu",
                        .found = "cuda",
                        .nearest = std::move(nearest)}});
  };
  std::error_code error;
  const std::filesystem::path half = worker.parent_path() / "libprimus_cuda.so";
  if (!std::filesystem::exists(half, error)) {
    refuse("this build has no CUDA half", "it is built where nvcc is found, see docs/development.md");
  }
  const auto exists = [&error](const char* node) { return std::filesystem::exists(node, error); };
  if (!exists("/dev/nvidiactl") && !exists("/dev/nvidia0")) {
    refuse("this machine shows no NVIDIA device", "is the driver loaded, and the device passed into the container?");
  }
}

void refuse_several_processes(const config::WorldSize& world, const LaunchOptions& launch) {
  if (world.size == 1) return;
  const bool is_option = world.source.starts_with("--");
  // "NNODES x GPUS_PER_NODE", "NNODES, one process a node": the variables stand before the comma.
  const std::string variables = world.source.substr(0, world.source.find(','));
  Problem problem{.file = is_option ? "command line" : "environment", .key = variables};
  for (const char* name : {"WORLD_SIZE", "NNODES", "GPUS_PER_NODE"}) {
    const auto place = launch.places.find(name);
    if (variables.find(name) != std::string::npos && place != launch.places.end()) problem = place->second;
  }
  problem.message = "training in several processes is planned for a later release";
  problem.expected = "1";
  problem.found = std::to_string(world.size);
  throw ConfigError({std::move(problem)});
}

// A run's folder and a container's are found from here.
void check_working_folder() {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  if (!error) return;
  throw ConfigError({{.file = "command line",
                      .message = "the working folder is not there any more",
                      .expected = "a folder that exists"}});
}

/// What stands in the way of a file or folder that the command will make; empty: nothing.
std::string obstacle_to(const std::filesystem::path& wanted) {
  const bool is_long =
      std::any_of(wanted.begin(), wanted.end(), [](const auto& part) { return part.native().size() > NAME_MAX; });
  if (is_long) return fmt::format("cannot be: {}", std::strerror(ENAMETOOLONG));
  std::error_code error;
  std::filesystem::path above = std::filesystem::absolute(wanted, error);
  const bool is_there = std::filesystem::exists(above, error);
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    return fmt::format("cannot be: {}", error.message());
  if (is_there) return access(above.c_str(), W_OK) == 0 ? "" : "may not be written";
  while (!std::filesystem::exists(above, error) && above.has_relative_path()) above = above.parent_path();
  if (!std::filesystem::is_directory(above, error)) return fmt::format("cannot be: {} is no folder", above.string());
  return access(above.c_str(), W_OK) == 0 ? "" : fmt::format("cannot be: {} may not be written", above.string());
}

/// Told before anything starts.
void check_output_file(const std::string& path, const std::string& key) {
  if (path.empty()) return;
  std::error_code error;
  const std::string fault = std::filesystem::is_directory(path, error) ? "is a folder" : obstacle_to(path);
  if (fault.empty()) return;
  throw ConfigError({{.file = "command line",
                      .key = key,
                      .message = fmt::format("'{}' {}", path, fault),
                      .expected = "a file that can be written"}});
}

/// The same of the run's folder, whose first part is the workspace.
void check_run_folder(const config::Resolution& resolution) {
  const std::string folder = resolution.experiment.run_folder();
  std::error_code error;
  const bool is_file = std::filesystem::exists(folder, error) && !std::filesystem::is_directory(folder, error);
  const std::string fault = is_file ? "is a file" : obstacle_to(folder);
  if (fault.empty()) return;
  const config::Origin& origin = resolution.names.at("workspace").origin;
  throw ConfigError({{.file = origin.file,
                      .line = origin.line,
                      .key = "workspace",
                      .message = fmt::format("the run's folder {} {}", folder, fault),
                      .expected = "a folder that can be made or written"}});
}

void report_end(const launch::WorkerOutcome& outcome) {
  if (outcome.signal == 0 && outcome.exit_code != 0 && outcome.exit_code <= 128)
    tell(fmt::format("{} worker {} ended with exit code {}\n", coloured("error:", Colour::kRed, stderr), outcome.worker,
                     outcome.exit_code));
  if (outcome.signal == 0) return;
  tell(fmt::format("{} the worker was ended by signal {} ({})\n", coloured("error:", Colour::kRed, stderr),
                   outcome.signal, strsignal(outcome.signal)));
  if (outcome.signal == SIGKILL) tell("       often the system's answer to a lack of memory: see `dmesg`\n");
}

void report_results(const launch::RunFolder& folder, Json& report) {
  fmt::print("run folder  {}\n", folder.path.string());
  if (!std::filesystem::exists(folder.metrics())) return;
  fmt::print("metrics     {}\n", folder.metrics().string());
  report["metrics"] = folder.metrics().string();
  try {
    draw_curves({folder.metrics()}, Drawn::kLoss, folder.loss_curve());
    fmt::print("loss curve  {}\n", folder.loss_curve().string());
    report["loss_curve"] = folder.loss_curve().string();
  } catch (const UserError& error) {
    // A run of no steps has no curve, and is done all the same.
    tell(fmt::format("{} no loss curve: {}\n", coloured("note:", Colour::kYellow, stderr), error.what()));
  }
}

Json outcome_json(const launch::WorkerOutcome& outcome, const launch::RunFolder& folder,
                  const config::Resolution& resolution) {
  Json json = {{"ok", outcome.exit_code == 0}, {"exit_code", outcome.exit_code}};
  json["run_folder"] = folder.path.string();
  json["notes"] = notes_json(resolution.notes);
  json["no_effect"] = notes_json(resolution.no_effect);
  if (outcome.signal != 0) json["signal"] = outcome.signal;
  if (outcome.exit_code == 0) return json;
  const std::string how = outcome.signal != 0
                              ? fmt::format("was ended by signal {} ({})", outcome.signal, strsignal(outcome.signal))
                              : fmt::format("ended with exit code {}", outcome.exit_code);
  const Problem problem{.message =
                            fmt::format("worker {} {}; its own words stand on standard error", outcome.worker, how)};
  json["problems"] = Json::array({json_of(problem)});
  return json;
}

/// The run itself; everything has been checked but the data. What became of it goes to `report` as well.
int start_workers(config::Resolution& resolution, const LaunchOptions& launch, const std::string& device,
                  const std::string& experiment_file, Json& report) {
  const std::filesystem::path worker = launch::find_worker();
  if (device == "cuda") check_gpu(worker);
  Gathered gathered;
  gathered.step([&] { check_data(resolution.experiment); });
  gathered.step([&] { check_start(resolution.experiment, experiment_file); });
  gathered.raise();
  fmt::print("{}", start_notes(resolution));
  const launch::RunFolder folder = launch::make_run_folder(resolution.experiment);
  const auto commands =
      launch::worker_commands(resolution.experiment, {worker, device, static_cast<int>(resolution.world.size)}, folder);
  if (launch.detail == Detail::kDebug) {
    for (const launch::WorkerCommand& command : commands) fmt::print("worker command  {}\n", shell_text(command));
  }
  // Whatever is printed here must stand before the worker's first line.
  std::fflush(stdout);
  const launch::WorkerOutcome outcome = launch::run_workers(commands);
  report_end(outcome);
  report = outcome_json(outcome, folder, resolution);
  // A worker that a signal told to end has finished its step and written its metrics; one that failed explains itself.
  const bool ended_cleanly = outcome.exit_code == 0 || (outcome.exit_code > 128 && outcome.signal == 0);
  if (ended_cleanly) {
    report_results(folder, report);
  } else {
    tell(fmt::format("       run folder {}\n", folder.path.string()));
  }
  return outcome.exit_code;
}

class Pretrain {
 public:
  Pretrain(const LaunchOptions& launch, TrainOptions options) : launch_(launch), options_(std::move(options)) {
    std::filesystem::path runner;
    try {
      runner = launch::runner_folder();
    } catch (const ConfigError& error) {
      runner_problems_ = error.problems();
    }
    before_ = launch::find_hooks(runner, "train", "pretrain", launch::ScriptKind::kHook);
    for (const std::string& patch : launch.patches) before_.push_back({launch::ScriptKind::kPatch, patch});
    after_ = launch::find_hooks(runner, "train", "pretrain", launch::ScriptKind::kAfterHook);
  }

  int run() {
    if (launch_.action == Action::kDryRun || options_.dry_run) return dry_run();
    Json outcome;
    if (launch_.format != Format::kJson) return start(outcome);
    int code = 0;
    {
      const OutputAside aside;
      code = start(outcome);
    }
    print_json(outcome);
    return code;
  }

 private:
  const std::string& device() const { return options_.device.empty() ? launch_.device : options_.device; }

  void check_patches() const {
    std::vector<Problem> problems;
    for (const launch::Script& script : before_) {
      if (script.kind != launch::ScriptKind::kPatch || std::filesystem::is_regular_file(script.path)) continue;
      const auto place = launch_.places.find(script.path.string());
      Problem problem =
          place == launch_.places.end() ? Problem{.file = "command line", .key = "--patch"} : place->second;
      problem.message = fmt::format("there is no file {}", script.path.string());
      problem.expected = "a script";
      problems.push_back(std::move(problem));
    }
    if (!problems.empty()) throw ConfigError(std::move(problems));
  }

  /// What command line and environment say by themselves, told together with the experiment's faults.
  void check_surroundings(Gathered& gathered) const {
    for (const std::vector<Problem>& problems : {launch_.problems, runner_problems_}) {
      if (!problems.empty()) gathered.step([&] { throw ConfigError(problems); });
    }
    gathered.step([&] { check_working_folder(); });
    gathered.step([&] { check_device(device()); });
    gathered.step([&] { check_patches(); });
    gathered.step([&] { check_output_file(options_.export_config, kExport); });
    gathered.step([&] { check_output_file(launch_.log_file, "--log_file"); });
    gathered.step([&] { check_environment(launch_); });
  }

  config::Resolution resolve(config::Purpose purpose, std::optional<config::WorldSize> world) const {
    config::Resolution resolution = resolve_naming_parts(
        {options_.read.config, options_.read.overrides, purpose, std::move(world), &launch::problems_of_variables});
    auto& env = resolution.experiment.env;
    for (const auto& [name, value] : launch_.environment) env[name] = value;
    if (launch_.detail == Detail::kDebug) env["PRIMUS_LOG_LEVEL"] = "DEBUG";
    launch::Variables known = launch::current_environment();
    for (const auto& [name, value] : env) known[name] = value;
    for (const auto& [name, value] : launch::derived_variables(known)) env[name] = value;
    if (!options_.backend_path.empty())
      resolution.no_effect.push_back({"--backend_path", "there is no Python backend"});
    return resolution;
  }

  void write_export(const config::Resolution& resolution) const {
    if (options_.export_config.empty()) return;
    const std::filesystem::path folder = std::filesystem::path(options_.export_config).parent_path();
    if (!folder.empty()) make_folder(folder);
    write_file(options_.export_config, config::to_yaml(resolution.experiment));
  }

  /// The same, with the faults of hooks' overrides told as theirs.
  config::Resolution resolve_with_places(config::Purpose purpose, const std::optional<config::WorldSize>& world) const {
    try {
      return resolve(purpose, world);
    } catch (const ConfigError& error) {
      std::vector<Problem> problems = error.problems();
      for (Problem& problem : problems) {
        const auto place = launch_.places.find(problem.key);
        if (problem.file == "command line" && place != launch_.places.end()) problem.file = place->second.file;
      }
      throw ConfigError(std::move(problems));
    }
  }

  /// Environment, world and experiment; all that is wrong with them in one error.
  config::Resolution resolve_all(config::Purpose purpose) const {
    Gathered gathered;
    if (launch_.action == Action::kStart && !options_.dry_run) gathered.step([&] { refuse_elsewhere(); });
    check_surroundings(gathered);
    std::optional<config::WorldSize> world;
    const bool starts = launch_.action == Action::kStart && !options_.dry_run && launch_.outer.empty();
    const config::Purpose of_world = starts ? config::Purpose::kTrain : config::Purpose::kPlan;
    gathered.step([&] { world = wanted_world(options_.read.world_size, of_world, launch_); });
    if (starts) {
      world = world.value_or(config::WorldSize{1, "one process on a CPU"});
      gathered.step([&] { refuse_several_processes(*world, launch_); });
    }
    std::optional<config::Resolution> resolution;
    gathered.step([&] { resolution = resolve_with_places(purpose, world); });
    std::vector<RunFile> read;
    if (resolution) read = files_read(*resolution, launch_, scripts());
    gathered.step([&] {
      refuse_writing_over(options_.export_config, kExport, read);
      check_export(options_.export_config, kExport);
    });
    if (resolution) {
      gathered.step([&] { refuse_writing_over(launch_.log_file, "--log_file", read); });
      if (starts) gathered.step([&] { check_run_folder(*resolution); });
    }
    gathered.raise();
    return *std::move(resolution);
  }

  int dry_run() const {
    const config::Resolution resolution = resolve_all(config::Purpose::kPlan);
    const launch::RunFolder folder = launch::run_folder_of(resolution.experiment);
    const auto commands = launch::worker_commands(resolution.experiment, {"primus-worker", device(), 1}, folder);
    const PlanInputs inputs{resolution,       launch_,           options_.read.config,  scripts(),
                            commands.front(), outer(resolution), options_.export_config};
    if (launch_.format == Format::kJson) {
      print_json(plan_json(inputs));
    } else {
      fmt::print("{}", plan_report(inputs));
    }
    return 0;
  }

  std::vector<launch::Script> scripts() const {
    std::vector<launch::Script> all = before_;
    all.insert(all.end(), after_.begin(), after_.end());
    return all;
  }

  /// What slurm and container would start, with everything that a run reads and writes in a container's reach.
  std::vector<OuterText> outer(const config::Resolution& resolution) const {
    if (launch_.outer.empty()) return {};
    std::vector<RunFile> files = files_read(resolution, launch_, scripts());
    for (RunFile& file : files_written(resolution, launch_)) files.push_back(std::move(file));
    if (!options_.export_config.empty()) files.push_back({options_.export_config, std::string(kExport)});
    return outer_texts(launch_.outer, files);
  }

  /// `outcome`: what became of the run, for programs.
  int start(Json& outcome) {
    // Hooks may add data or a device to what is not complete yet; whatever else is wrong is told before one runs.
    const bool is_here = launch_.outer.empty();
    const config::Purpose first = before_.empty() && is_here ? config::Purpose::kTrain : config::Purpose::kPlan;
    config::Resolution resolution = resolve_all(first);
    if (launch_.log_file.empty() && launch_.show == launch::Show::kErrorsOnly) {
      tell(fmt::format(
          "{} --silent without --log_file: standard output is kept nowhere but in the run folder's log.txt\n",
          coloured("note:", Colour::kYellow, stderr)));
    }
    const bool has_copy = !launch_.log_file.empty() || launch_.show == launch::Show::kErrorsOnly;
    if (has_copy) launch_.output->start(launch_.log_file, launch_.show);
    if (!before_.empty()) {
      if (run_before() == Verdict::kSkip) {
        outcome = {{"ok", true}, {"exit_code", 0}, {"skipped", "PRIMUS_SKIP_MAIN_LAUNCH"}};
        return 0;
      }
      resolution = resolve_all(config::Purpose::kTrain);
    }
    resolution.no_effect.insert(resolution.no_effect.begin(), launch_.no_effect.begin(), launch_.no_effect.end());
    write_export(resolution);
    const int code = start_workers(resolution, launch_, device(), options_.read.config, outcome);
    return run_after(code, outcome);
  }

  void refuse_elsewhere() const {
    if (launch_.outer.empty()) return;
    const bool is_slurm = launch_.outer.front().mode == "slurm";
    throw ConfigError(
        {{.file = "command line",
          .message = fmt::format("{}: starting a run {} is planned for a later release", launch_.outer.front().mode,
                                 is_slurm ? "through Slurm" : "in a container"),
          .nearest = "--dry-run prints what would run"}});
  }

  enum class Verdict { kGoOn, kSkip };

  Verdict run_before() {
    launch::ScriptWishes wishes;
    for (const launch::Script& script : before_) launch::run_script(script, launch_.words, wishes);
    take_words(wishes.words);
    for (const auto& [name, source] : wishes.sources) {
      // Faults of what a script asked for are told as that script's.
      launch_.places[name] = {.file = source, .key = name};
    }
    const auto skip = wishes.environment.find("PRIMUS_SKIP_MAIN_LAUNCH");
    if (skip == wishes.environment.end() || skip->second != "1") return Verdict::kGoOn;
    fmt::print("a hook asked for nothing to be started (PRIMUS_SKIP_MAIN_LAUNCH)\n");
    return Verdict::kSkip;
  }

  /// Hooks written for Primus name the Python backend, which is an option and no key.
  void take_words(const std::vector<std::string>& words) {
    constexpr std::string_view kBackend = "--backend_path=";
    for (const std::string& word : words) {
      if (word.starts_with(kBackend)) {
        options_.backend_path = word.substr(kBackend.size());
      } else {
        options_.read.overrides.push_back(word);
      }
    }
  }

  /// What the command ends with: its own failure is what the caller must learn, a script's failure only beside success.
  int run_after(int code, Json& outcome) const {
    setenv("PRIMUS_EXIT_CODE", std::to_string(code).c_str(), 1);
    launch::ScriptWishes ignored;
    int result = code;
    for (const launch::Script& script : after_) {
      try {
        launch::run_script(script, launch_.words, ignored);
      } catch (const UserError& error) {
        const std::string text = fmt::format("{} with exit code {}", error.what(), code);
        if (result == 0) result = static_cast<int>(error.exit_code());
        outcome["ok"] = false;
        outcome["exit_code"] = result;
        outcome["command_exit_code"] = code;
        outcome["problems"].push_back(json_of(Problem{.message = text}));
        if (launch_.format != Format::kJson) print_failure(text, error.exit_code(), Format::kText);
      }
    }
    return result;
  }

  LaunchOptions launch_;
  TrainOptions options_;
  std::vector<Problem> runner_problems_;  // of the folder of hooks
  std::vector<launch::Script> before_;
  std::vector<launch::Script> after_;
};

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  TrainOptions options;
  if (read_options(words, options) == Parsed::kHelpShown) return 0;
  return Pretrain(launch, std::move(options)).run();
}

}  // namespace

const Command kTrainPretrain = {"train",
                                "pretrain",
                                "--config FILE [overrides]",
                                "train an experiment",
                                Starts::kWorkers,
                                Rest::kReturn,
                                "",
                                [](CLI::App& app) {
                                  static TrainOptions unused;
                                  add_options(app, unused);
                                },
                                run};

}  // namespace primus::cli
