#include <fmt/format.h>

#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/data_check.hpp"
#include "cli/plan_report.hpp"
#include "cli/run_curve.hpp"
#include "cli/terminal.hpp"
#include "config/resolve.hpp"
#include "launch/run_folder.hpp"
#include "launch/worker_process.hpp"
#include "launch/world.hpp"

namespace primus::cli {
namespace {

struct TrainOptions {
  std::string config;
  std::string device;
  std::string backend_path;
  std::string export_config;
  std::int64_t world_size = 0;
  Action action = Action::kStart;
  std::vector<std::string> overrides;
};

Parsed read_options(std::span<const std::string> words, TrainOptions& options) {
  bool dry_run = false;
  CLI::App app("Train an experiment. Everything that is no option below overrides a key of the experiment.",
               "primus-cli train pretrain");
  app.add_option("--config,--exp", options.config, "Experiment file")->required()->type_name("FILE.yaml");
  app.add_option("--device", options.device, "cpu or cuda")->type_name("DEVICE");
  app.add_flag("--dry-run", dry_run, "Print the plan, and stop");
  app.add_option("--world-size,--world_size", options.world_size, "Processes of the plan that --dry-run prints")
      ->type_name("N")
      ->check([](const std::string& text) {
        return !text.empty() && text != "0" && text.front() != '-' ? "" : "expected an integer >= 1";
      });
  app.add_option("--export_config,--export-config", options.export_config, "Write the resolved experiment as YAML")
      ->type_name("FILE");
  app.add_option("--backend_path,--backend-path", options.backend_path, "No effect: there is no Python backend")
      ->type_name("DIR");
  app.footer(
      "overrides\n  --key value  --key=value  key=value  --flag  --no-flag  --map.key value\n"
      "examples\n  primus-cli train pretrain --config exp.yaml --train_iters 20 --lr 3e-4 --no-bf16\n"
      "  primus-cli --dry-run train pretrain --config exp.yaml --num_layers 4 moe_layer_freq='([0]*1+[1]*3)'");
  const Parsed parsed = parse_options(app, words, Rest::kReturn, options.overrides);
  if (dry_run) options.action = Action::kDryRun;
  return parsed;
}

void check_device(const std::string& device) {
  if (device.empty() || device == "cpu") return;
  if (device == "cuda") {
    throw ConfigError({{.file = "command line",
                        .key = "--device",
                        .message = "this build has no CUDA half",
                        .expected = "cpu",
                        .found = "cuda"}});
  }
  constexpr std::array<std::string_view, 2> kDevices = {"cpu", "cuda"};
  refuse_word("device", device, kDevices);
}

// Who decides the number of processes (decision 3).
std::optional<config::WorldSize> world_of(const TrainOptions& options, const LaunchOptions& launch) {
  if (options.world_size > 0) return config::WorldSize{options.world_size, "--world-size"};
  if (launch.num_processes) return config::WorldSize{*launch.num_processes, "--nproc"};
  if (const auto world = launch::world_of_environment()) return world;
  if (options.action == Action::kDryRun) return std::nullopt;
  return config::WorldSize{1, "one process on a CPU"};
}

void refuse_several_processes(const config::WorldSize& world) {
  if (world.size == 1) return;
  throw ConfigError({{.file = world.source.starts_with("--") ? "command line" : "environment",
                      .key = world.source,
                      .message = "training in several processes is planned for a later release",
                      .expected = "1",
                      .found = std::to_string(world.size)}});
}

void report_end(const launch::WorkerOutcome& outcome) {
  if (outcome.signal == 0) return;
  fmt::print(stderr, "{} the worker was ended by signal {} ({})\n", coloured("error:", Colour::kRed, stderr),
             outcome.signal, strsignal(outcome.signal));
  if (outcome.signal == SIGKILL)
    fmt::print(stderr, "       often the system's answer to a lack of memory: see `dmesg`\n");
}

void report_results(const launch::RunFolder& folder) {
  fmt::print("run folder  {}\n", folder.path.string());
  if (!std::filesystem::exists(folder.metrics())) return;
  fmt::print("metrics     {}\n", folder.metrics().string());
  try {
    draw_loss_curve(folder.metrics(), folder.loss_curve());
    fmt::print("loss curve  {}\n", folder.loss_curve().string());
  } catch (const UserError& error) {
    // A run of no steps has no curve, and is done all the same.
    fmt::print(stderr, "{} no loss curve: {}\n", coloured("note:", Colour::kYellow, stderr), error.what());
  }
}

int start(config::Resolution& resolution, Detail detail) {
  const std::filesystem::path worker = launch::find_worker();
  check_data(resolution.experiment);
  const std::string notes = start_notes(resolution);
  fmt::print("{}", notes);
  const launch::RunFolder folder = launch::make_run_folder(resolution.experiment);
  const auto commands =
      launch::worker_commands(resolution.experiment, worker, folder, static_cast<int>(resolution.world.size));
  if (detail == Detail::kDebug) {
    for (const launch::WorkerCommand& command : commands) fmt::print("worker command  {}\n", shell_text(command));
  }
  // Whatever is printed here must stand before the worker's first line.
  std::fflush(stdout);
  const launch::WorkerOutcome outcome = launch::run_workers(commands);
  report_end(outcome);
  // A worker that a signal told to end has finished its step and written its metrics; one that failed explains itself.
  const bool ended_cleanly = outcome.exit_code == 0 || (outcome.exit_code > 128 && outcome.signal == 0);
  if (ended_cleanly) {
    report_results(folder);
  } else {
    fmt::print(stderr, "       run folder {}\n", folder.path.string());
  }
  return outcome.exit_code;
}

int dry_run(const config::Resolution& resolution, const std::string& file) {
  const launch::RunFolder folder = launch::run_folder_of(resolution.experiment);
  const auto commands = launch::worker_commands(resolution.experiment, "primus-worker", folder, 1);
  fmt::print("{}", plan_report(resolution, file, commands.front()));
  return 0;
}

int pretrain(std::span<const std::string> words, const LaunchOptions& launch) {
  TrainOptions options;
  options.action = launch.action;
  options.device = launch.device;
  if (read_options(words, options) == Parsed::kHelpShown) return 0;
  check_device(options.device);
  const auto world = world_of(options, launch);
  const bool is_start = options.action == Action::kStart;
  if (is_start) refuse_several_processes(*world);
  config::Resolution resolution = config::resolve(
      {options.config, options.overrides, is_start ? config::Purpose::kTrain : config::Purpose::kPlan, world});
  for (const auto& [name, value] : launch.environment) resolution.experiment.env[name] = value;
  if (launch.detail == Detail::kDebug) resolution.experiment.env["PRIMUS_LOG_LEVEL"] = "DEBUG";
  if (!options.backend_path.empty()) resolution.no_effect.push_back({"--backend_path", "there is no Python backend"});
  if (!options.export_config.empty()) write_file(options.export_config, config::to_yaml(resolution.experiment));
  return is_start ? start(resolution, launch.detail) : dry_run(resolution, options.config);
}

}  // namespace

int train_command(std::span<const std::string> words, const LaunchOptions& launch) {
  constexpr std::array<std::string_view, 2> kSuites = {"pretrain", "posttrain"};
  if (!words.empty() && (words.front() == "--help" || words.front() == "-h")) return pretrain(words, launch);
  if (!words.empty() && words.front() == "posttrain") refuse_planned("train posttrain", "fine-tuning");
  if (words.empty() || words.front() != "pretrain")
    refuse_word("kind of training", words.empty() ? "" : words.front(), kSuites);
  return pretrain(words.subspan(1), launch);
}

}  // namespace primus::cli
