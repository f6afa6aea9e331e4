// checkpoint logits: one pass of the trainer's model, for a comparison with another system.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "cli/app.hpp"
#include "cli/checkpoint_common.hpp"
#include "cli/config_common.hpp"
#include "cli/run_files.hpp"
#include "launch/worker_process.hpp"
#include "model/architecture.hpp"

namespace primus::cli {
namespace {

struct LogitsWords {
  std::string folder;
  std::string tokens;
  std::string out;
  std::string dtype = "fp32";
  std::string device;
  std::string format = "text";
  bool gradients = false;
};

void add_options(CLI::App& app, LogitsWords& read) {
  app.add_option("DIR", read.folder, "A checkpoint, or a Hugging Face model")->required()->type_name("DIR");
  app.add_option("--tokens", read.tokens, "input_ids [B, S] and, if wanted, labels [B, S], as safetensors")
      ->required()
      ->type_name("FILE");
  app.add_option("--out", read.out, "File to write")->required()->type_name("FILE");
  app.add_flag("--gradients", read.gradients, "The gradient of the mean loss of every parameter, too");
  add_choice(app, "--dtype", read.dtype, "What the pass is computed in", {"fp32", "bf16", "fp64"});
  add_choice(app, "--device", read.device, "Where (default: as in training)", {"cpu", "cuda"});
  add_format_option(app, read.format, {"text", "json"});
}

/// What can be known without a worker.
void check(const LogitsWords& read) {
  const checkpoint::StoredModel stored = checkpoint::open_model(read.folder);
  std::vector<Problem> problems;
  for (const model::ArchitecturePart& part : model::unsupported_parts(stored.experiment)) {
    problems.push_back(
        {.file = read.folder, .key = part.key, .message = fmt::format("{}: not built in this release", part.name)});
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  const checkpoint::SafetensorsFile tokens(read.tokens);
  if (tokens.find("input_ids") == nullptr) {
    throw ConfigError(
        {{.file = read.tokens, .key = "input_ids", .message = "is missing", .expected = "I64 or I32 [B, S]"}});
  }
}

launch::WorkerCommand worker_command(const LogitsWords& read, const LaunchOptions& launch) {
  launch::WorkerCommand command;
  command.program = launch::find_worker().string();
  command.arguments = {"--logits", read.folder, read.tokens, read.out, "--dtype", read.dtype};
  if (read.gradients) command.arguments.emplace_back("--gradients");
  const std::string& device = read.device.empty() ? launch.device : read.device;
  if (!device.empty()) {
    command.arguments.emplace_back("--device");
    command.arguments.push_back(device);
  }
  command.environment = launch.environment;
  return command;
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  if (!launch.problems.empty()) throw ConfigError(launch.problems);
  LogitsWords read;
  CLI::App app("Run a stored model once over given tokens: logits, loss and, if wanted, gradients.",
               "primus-cli checkpoint logits");
  add_options(app, read);
  app.footer(
      "Writes logits [B, S, V], loss (the mean over all predicted tokens; token s predicts label s + 1, and\n"
      "labels of -100 do not count) and each gradient under its parameter's Hugging Face name.\n"
      "example\n  primus-cli checkpoint logits ckpt/mixtral --tokens ids.safetensors --out ours.safetensors");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  refuse_writing_over(read.out, "--out", std::vector<RunFile>{{read.tokens, "--tokens"}});
  check(read);
  const launch::WorkerCommand command = worker_command(read, launch);
  if (launch.action == Action::kDryRun) {
    fmt::print("would run {}\n", shell_text(command));
    return 0;
  }
  const launch::WorkerOutcome outcome = launch::run_workers({&command, 1});
  if (outcome.exit_code != 0) return outcome.exit_code;
  if (format_of(read.format) == Format::kJson || launch.format == Format::kJson) {
    print_json(Json{{"ok", true}, {"out", read.out}});
  } else {
    fmt::print("wrote {}\n", read.out);
  }
  return 0;
}

}  // namespace

const Command kCheckpointLogits = {"checkpoint",
                                   "logits",
                                   "DIR --tokens FILE --out FILE",
                                   "logits and gradients of one pass",
                                   Starts::kWorkers,
                                   Rest::kRefuse,
                                   "folder",
                                   [](CLI::App& app) {
                                     static LogitsWords unused;
                                     add_options(app, unused);
                                   },
                                   run};

}  // namespace primus::cli
