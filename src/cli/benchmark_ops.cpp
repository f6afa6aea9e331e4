// benchmark ops: how fast the ops of a training step are on this machine.
#include <fmt/format.h>

#include "base/error.hpp"
#include "cli/app.hpp"
#include "cli/commands.hpp"
#include "cli/config_common.hpp"
#include "launch/worker_process.hpp"

namespace primus::cli {
namespace {

struct OpsWords {
  std::string filter;
  std::string device;
  std::string format = "text";
};

void add_options(CLI::App& app, OpsWords& read) {
  app.add_option("--filter", read.filter, "Only ops with this in their name")->type_name("TEXT");
  add_choice(app, "--device", read.device, "Where (default: as in training)", {"cpu", "cuda"});
  add_format_option(app, read.format, {"text", "json"});
}

launch::WorkerCommand worker_command(const OpsWords& read, const LaunchOptions& launch) {
  launch::WorkerCommand command;
  command.program = launch::find_worker().string();
  command.arguments = {"--benchmark", "ops"};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) command.arguments.insert(command.arguments.end(), {option, value});
  };
  add("--filter", read.filter);
  add("--format", launch.format == Format::kJson ? "json" : read.format);
  add("--device", read.device.empty() ? launch.device : read.device);
  command.environment = launch.environment;
  return command;
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  if (!launch.problems.empty()) throw ConfigError(launch.problems);
  OpsWords read;
  CLI::App app("Measure each op of a training step: time, rate, share of the machine's best, gain over libtorch.",
               "primus-cli benchmark ops");
  add_options(app, read);
  app.footer(
      "On a GPU in bf16 with the sizes of DeepSeek-V2-Lite and 16,384 tokens, on the CPU in fp32 with a\n"
      "small model's. Median and median absolute deviation (MAD) over repetitions, buffers in turn. The\n"
      "rate counts a product's multiplications and additions, or bytes with each tensor moved once. %: its\n"
      "share of a large product's or a copy's rate, measured first. x ATen: how many times faster than\n"
      "libtorch's own operators; - where it has none.\n"
      "example\n  primus-cli benchmark ops --filter grouped --format json");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const launch::WorkerCommand command = worker_command(read, launch);
  if (launch.action == Action::kDryRun) {
    fmt::print("would run {}\n", shell_text(command));
    return 0;
  }
  return launch::run_workers({&command, 1}).exit_code;
}

}  // namespace

const Command kBenchmarkOps = {"benchmark",
                               "ops",
                               "[--filter TEXT] [--format text|json]",
                               "speed of each op on this machine",
                               Starts::kWorkers,
                               Rest::kRefuse,
                               "",
                               [](CLI::App& app) {
                                 static OpsWords unused;
                                 add_options(app, unused);
                               },
                               run};

}  // namespace primus::cli
