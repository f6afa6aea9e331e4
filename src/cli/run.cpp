#include "cli/run.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/terminal.hpp"
#include "config/parse.hpp"

namespace primus::cli {
namespace {

constexpr std::string_view kHelp = R"(primus-cli: plan, train and look at mixture-of-experts pre-training runs.

usage: primus-cli [options] [MODE [mode options] --] COMMAND ...

commands
  train pretrain --config FILE [overrides]    train an experiment
  data prepare --input PATH... --output-prefix P    text files to training data
  view loss --run DIR    draw the loss curve of a run

modes
  direct [--nproc N] [--device cpu] [--env K=V]    on this machine (also without saying so)
  slurm, container    planned for a later release

options
  --dry-run     print what would run, and stop
  --debug       more messages from the worker
  --version     print the version
  -h, --help    print this; COMMAND --help says more

overrides (see docs/configuration.md)
  --key value   --key=value   key=value   --flag   --no-flag   --map.key value

examples
  primus-cli data prepare --input /usr/share/common-licenses --output-prefix output/text
  primus-cli direct -- train pretrain --config examples/quickstart/deepseek_v2_tiny.yaml
  primus-cli --dry-run train pretrain --config exp.yaml --micro_batch_size 4 --lr 3e-4
  primus-cli view loss --run output/quickstart/local/deepseek_v2_tiny

exit codes: 0 done, 1 failed while running, 2 wrong arguments or configuration, 128 + n ended by signal n
)";

constexpr std::string_view kDirectHelp = R"(primus-cli direct: run a command on this machine.

usage: primus-cli direct [options] -- COMMAND ...

  --nproc N       worker processes (today: 1)
  --device cpu    device of the workers
  --env K=V       environment variable of the workers (repeatable)
  --single        one process
  --no-numa       no binding to NUMA nodes (nothing is bound today)
  --dry-run       print what would run, and stop
  --debug         more messages from the worker
  -h, --help      print this

example
  primus-cli direct --env OMP_NUM_THREADS=2 -- train pretrain --config exp.yaml
)";

constexpr std::array<std::string_view, 3> kCommands = {"train", "data", "view"};
constexpr std::array<std::string_view, 6> kFirstWords = {"direct", "slurm", "container", "train", "data", "view"};
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kPlannedWords = {{
    {"slurm", "starting a run through Slurm"},
    {"container", "starting a run in a container"},
    {"deps", "nothing has to be fetched here; it"},
    {"benchmark", "measuring"},
    {"projection", "projecting memory and time"},
    {"preflight", "checking machines before a run"},
    {"node_smoke", "a quick check of one node"},
    {"config", "showing and comparing experiments"},
}};

enum class Front { kRun, kDone };

class FrontParser {
 public:
  explicit FrontParser(std::span<const std::string> words) : words_(words) {}

  int run() {
    if (words_.empty()) return print(kHelp);
    if (read_global_options() == Front::kDone) return 0;
    if (at_end()) refuse_word("command", "", kFirstWords);
    if (current() == "direct") {
      ++position_;
      if (read_direct_options() == Front::kDone) return 0;
    }
    return dispatch();
  }

 private:
  static int print(std::string_view text) {
    fmt::print("{}", text);
    return 0;
  }

  bool at_end() const { return position_ >= words_.size(); }
  const std::string& current() const { return words_[position_]; }

  // Options that stand before the mode and, except for --version, also behind it.
  bool read_common_option() {
    if (current() == "--dry-run") {
      launch_.action = Action::kDryRun;
    } else if (current() == "--debug") {
      launch_.detail = Detail::kDebug;
    } else {
      return false;
    }
    ++position_;
    return true;
  }

  Front read_global_options() {
    constexpr std::array<std::string_view, 5> kOptions = {"--dry-run", "--debug", "--version", "--help", "--config"};
    while (!at_end() && current().starts_with("-")) {
      if (read_common_option()) continue;
      if (current() == "--version") {
        print("primus-cli " PRIMUS_VERSION "\n");
        return Front::kDone;
      }
      if (current() == "-h" || current() == "--help") {
        print(kHelp);
        return Front::kDone;
      }
      if (current() == "--config" || current().starts_with("--config=")) {
        refuse_planned("--config before the command",
                       "a launcher file (an experiment's --config stands behind `train pretrain`)");
      }
      refuse_word("option", current(), kOptions);
    }
    return Front::kRun;
  }

  // Value of an option: behind '=' or the next word.
  std::string option_value(std::string_view name) {
    const std::string word = current();
    ++position_;
    if (word.size() > name.size()) return word.substr(name.size() + 1);
    if (!at_end() && current() != "--") return words_[position_++];
    throw ConfigError({{.file = "command line", .key = std::string(name), .message = "needs a value"}});
  }

  bool is_option(std::string_view name) const {
    return current() == name ||
           (current().starts_with(name) && current().size() > name.size() && current()[name.size()] == '=');
  }

  Front read_direct_options() {
    constexpr std::array<std::string_view, 8> kOptions = {"--nproc",   "--device",  "--env",   "--single",
                                                          "--no-numa", "--dry-run", "--debug", "--help"};
    while (!at_end()) {
      if (current() == "--") {
        ++position_;
        break;
      }
      if (!current().starts_with("-")) break;
      if (read_common_option()) continue;
      if (current() == "-h" || current() == "--help") {
        print(kDirectHelp);
        return Front::kDone;
      }
      if (is_option("--nproc")) {
        launch_.num_processes = process_count(option_value("--nproc"));
      } else if (is_option("--device")) {
        launch_.device = option_value("--device");
      } else if (is_option("--env")) {
        add_variable(option_value("--env"));
      } else if (current() == "--single") {
        launch_.num_processes = 1;
        ++position_;
      } else if (current() == "--no-numa") {
        ++position_;
      } else {
        refuse_direct_option(kOptions);
      }
    }
    return Front::kRun;
  }

  [[noreturn]] void refuse_direct_option(std::span<const std::string_view> known) const {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kPlanned = {{
        {"--numa", "binding workers to NUMA nodes"},
        {"--config", "a launcher file"},
        {"--patch", "running scripts before a run"},
        {"--log_file", "a copy of the output in a file"},
        {"--script", "another worker program (PRIMUS_WORKER names one)"},
        {"--silent", "running without output"},
    }};
    for (const auto& [name, what] : kPlanned) {
      if (is_option(name)) refuse_planned(name, what);
    }
    refuse_word("option of direct", current(), known);
  }

  static int process_count(const std::string& text) {
    const auto count = config::parse_int(text);
    if (count && *count >= 1 && *count <= 1'000'000) return static_cast<int>(*count);
    throw ConfigError({{.file = "command line",
                        .key = "--nproc",
                        .message = "not a number of processes",
                        .expected = "integer >= 1",
                        .found = fmt::format("'{}'", text)}});
  }

  void add_variable(const std::string& text) {
    const std::size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw ConfigError({{.file = "command line",
                          .key = "--env",
                          .message = "not a variable",
                          .expected = "NAME=value",
                          .found = fmt::format("'{}'", text)}});
    }
    launch_.environment[text.substr(0, equals)] = text.substr(equals + 1);
  }

  // Options that say how workers start mean nothing to a command that starts none.
  void note_unused_launch_options(std::string_view word) const {
    const auto note = [word](std::string_view option) {
      fmt::print(stderr, "{} {} has no effect: {} starts no worker\n", coloured("note:", Colour::kYellow, stderr),
                 option, word);
    };
    if (launch_.num_processes) note("--nproc");
    if (!launch_.device.empty()) note("--device");
    if (!launch_.environment.empty()) note("--env");
    if (launch_.detail == Detail::kDebug) note("--debug");
  }

  int dispatch() {
    if (at_end()) refuse_word("command", "", kCommands);
    const std::string word = current();
    const std::span<const std::string> rest = words_.subspan(position_ + 1);
    if (word == "train") return train_command(rest, launch_);
    if (word == "data" || word == "view") {
      note_unused_launch_options(word);
      return word == "data" ? data_command(rest, launch_.action) : view_command(rest, launch_.action);
    }
    for (const auto& [name, what] : kPlannedWords) {
      if (word == name) refuse_planned(name, what);
    }
    refuse_word("command", word, kFirstWords);
  }

  std::span<const std::string> words_;
  std::size_t position_ = 0;
  LaunchOptions launch_;
};

void print_error(const std::string& text) {
  fmt::print(stderr, "{} {}\n", coloured("error:", Colour::kRed, stderr), text);
}

void print_problems(const ConfigError& error) {
  if (error.problems().size() == 1) return print_error(to_text(error.problems().front()));
  print_error(fmt::format("{} problems", error.problems().size()));
  for (const Problem& problem : error.problems()) fmt::print(stderr, "  {}\n", to_text(problem));
}

}  // namespace

int run(std::span<const std::string> words) {
  try {
    return FrontParser(words).run();
  } catch (const ConfigError& error) {
    print_problems(error);
    return static_cast<int>(error.exit_code());
  } catch (const UserError& error) {
    print_error(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    print_error(error.what());
    return static_cast<int>(ExitCode::kFailedWhileRunning);
  }
}

}  // namespace primus::cli
