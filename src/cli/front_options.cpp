#include "cli/front_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/commands.hpp"

namespace primus::cli {
namespace {

using enum FrontId;

constexpr FrontOption kGlobal[] = {
    {kConfig, "--config", "FILE", "launcher file instead of ~/.primus.yaml (not an experiment)"},
    {kDryRun, "--dry-run", "", "print what would run, and stop"},
    {kDebug, "--debug", "", "more messages from the worker"},
    {kFormat, "--format", "json", "answers and errors for programs"},
    {kVersion, "--version", "", "print the version"},
    {kHelp, "--help", "", "print this"},
};

constexpr FrontOption kDirect[] = {
    {kConfig, "--config", "FILE", "launcher file"},
    {kDryRun, "--dry-run", "", "print what would run, and stop"},
    {kDebug, "--debug", "", "more messages from the worker"},
    {kNproc, "--nproc", "N", "worker processes (today: 1)"},
    {kSingle, "--single", "", "one process"},
    {kDevice, "--device", "D", "device of the workers: cpu, cuda (default: cuda if it is there)"},
    {kEnv, "--env", "K=V", "variable of the workers, or a file of them (repeatable)"},
    {kPatch, "--patch", "FILE", "script that runs before the command (repeatable)"},
    {kLogFile, "--log_file", "FILE", "copy of everything that is printed"},
    {kSilent, "--silent", "", "standard output goes to the log file only; errors are shown"},
    {kNuma, "--numa", "", "run a GPU's worker on the cores near its device"},
    {kNoNuma, "--no-numa", "", "run it on all cores"},
    {kScript, "--script", "FILE", "no effect: there is no Python entry (PRIMUS_WORKER names a worker)"},
    {kHelp, "--help", "", "print this"},
};

constexpr FrontOption kOuter[] = {
    {kConfig, "--config", "FILE", "launcher file"},
    {kDryRun, "--dry-run", "", "print what would run, and stop"},
    {kDebug, "--debug", "", "more messages from the worker"},
    {kHelp, "--help", "", "print this"},
};

std::string option_lines(std::span<const FrontOption> options) {
  std::string text;
  for (const FrontOption& option : options) {
    const std::string name = option.id == kHelp ? "-h, --help" : std::string(option.name);
    text += fmt::format("  {:<18} {}\n", option.value.empty() ? name : fmt::format("{} {}", name, option.value),
                        option.meaning);
  }
  return text;
}

std::string command_line(const Command& command) {
  std::string words(command.group);
  if (!command.name.empty()) words += fmt::format(" {}", command.name);
  return fmt::format("  {:<59} {}\n", fmt::format("{} {}", words, command.synopsis), command.meaning);
}

/// Groups too large for a line a command, and what they are about.
struct Group {
  std::string_view name;
  std::string_view meaning;
};
constexpr std::array<Group, 3> kGroups = {{{"checkpoint", "weights and checkpoints"},
                                           {"config", "experiments and keys"},
                                           {"data", "texts, tokenizers, data sets"}}};
constexpr std::ptrdiff_t kMostLinesOfAGroup = 5;

/// A line a command; one line for a large group, whose own help says more.
std::string command_lines() {
  std::string text;
  std::string_view last_group;
  for (const Command& command : commands()) {
    const auto num_commands = std::count_if(commands().begin(), commands().end(),
                                            [&](const Command& other) { return other.group == command.group; });
    const auto* const group =
        std::find_if(kGroups.begin(), kGroups.end(), [&](const Group& row) { return row.name == command.group; });
    if (num_commands <= kMostLinesOfAGroup || group == kGroups.end()) {
      text += command_line(command);
    } else if (command.group != last_group) {
      std::string names;
      for (const Command& other : commands()) {
        if (other.group == command.group) names += (names.empty() ? "" : "|") + std::string(other.name);
      }
      text += fmt::format("  {:<59} {}\n", fmt::format("{} {}", group->name, names), group->meaning);
    }
    last_group = command.group;
  }
  return text;
}

}  // namespace

std::span<const FrontOption> global_options() {
  return kGlobal;
}

std::span<const FrontOption> direct_options() {
  return kDirect;
}

std::span<const FrontOption> outer_options() {
  return kOuter;
}

const FrontOption* find_option(std::span<const FrontOption> options, std::string_view word) {
  if (word == "-h") word = "--help";
  std::string name(word.substr(0, word.find('=')));
  if (name == "--log-file") name = "--log_file";
  if (name == "--dry_run") name = "--dry-run";
  for (const FrontOption& option : options) {
    const bool fits_shape = !option.value.empty() || word.find('=') == std::string_view::npos;
    if (option.name == name && fits_shape) return &option;
  }
  return nullptr;
}

std::string main_help() {
  std::string text =
      "primus-cli: plan, train and look at mixture-of-experts pre-training runs.\n\n"
      "usage: primus-cli [options] [MODE [mode options] --] COMMAND ...\n\ncommands (COMMAND --help says more)\n";
  text += command_lines();
  text +=
      "\nmodes (MODE --help says more)\n"
      "  direct       on this machine (also without saying so)\n"
      "  slurm        through srun or sbatch: with --dry-run, what would run\n"
      "  container    in docker or podman: with --dry-run, what would run\n\noptions\n";
  text += option_lines(kGlobal);
  text +=
      "\nexample\n"
      "  primus-cli --dry-run train pretrain --config exp.yaml --micro_batch_size 4 lr=3e-4 --no-bf16\n\n"
      "exit codes: 0 done, 1 failed while running, 2 wrong arguments or configuration,\n"
      "            128 + n ended by signal n. More: docs/configuration.md\n";
  return text;
}

std::string direct_help() {
  return "primus-cli direct: run a command on this machine.\n\nusage: primus-cli direct [options] [--] COMMAND "
         "...\n\n" +
         option_lines(kDirect) +
         "\nThe launcher file's `direct` section holds defaults; hooks and patches run before the command.\n"
         "\nexamples\n"
         "  primus-cli direct --env OMP_NUM_THREADS=2 -- train pretrain --config exp.yaml\n"
         "  primus-cli direct --log_file logs/run.txt --silent -- train pretrain --config exp.yaml\n";
}

std::string slurm_help() {
  return "primus-cli slurm: run a command on nodes that Slurm gives. With --dry-run it prints what it would\n"
         "run; running it is planned for a later release.\n\n"
         "usage: primus-cli slurm [options] [srun|sbatch] [their options] -- [MODE ... --] COMMAND ...\n\n" +
         option_lines(kOuter) +
         "\nThe launcher file's `slurm` section holds defaults. Without container or direct behind the first\n"
         "`--`, the command runs in a container. GPUS_PER_NODE (else the file's gpus_per_node, else 8) says\n"
         "how many workers a node has.\n"
         "\nexamples\n"
         "  primus-cli --dry-run slurm srun -N 4 -- train pretrain --config exp.yaml\n"
         "  primus-cli --dry-run slurm sbatch -N 4 -p main -- direct -- train pretrain --config exp.yaml\n";
}

std::string container_help() {
  return "primus-cli container: run a command in a container. With --dry-run it prints what it would run;\n"
         "running it is planned for a later release.\n\n"
         "usage: primus-cli container [options] [options of docker or podman] -- [direct options] COMMAND ...\n\n" +
         option_lines(kOuter) +
         "  --image IMAGE      image (else DOCKER_IMAGE, else the launcher file's)\n"
         "  --env K=V          variable inside, or a file of them\n"
         "  --volume, --device, --cap-add      added to those of the launcher file\n"
         "  anything else      replaces the launcher file's option of that name\n"
         "\nThe working folder and this program's folder are mounted in the same places.\n"
         "\nexample\n"
         "  primus-cli --dry-run container --image rocm/primus:v26.5 --volume /data:/data:ro -- \\\n"
         "    train pretrain --config exp.yaml\n";
}

std::string group_help(std::string_view group) {
  std::string text = fmt::format(
      "primus-cli {0}\n\nusage: primus-cli {0} COMMAND ...\n\ncommands (COMMAND --help says more)\n", group);
  for (const Command& command : commands()) {
    if (command.group == group) text += command_line(command);
  }
  if (group == "checkpoint") {
    text +=
        "\nexamples\n  primus-cli checkpoint import --from hf/Mixtral-8x7B-v0.1 --to ckpt/mixtral --dtype bf16\n"
        "  primus-cli checkpoint verify ckpt/mixtral\n"
        "  primus-cli checkpoint export --from ckpt/mixtral --to hf/mixtral\n";
  }
  if (group == "data") {
    text +=
        "\nexamples\n  primus-cli data train-tokenizer --input corpus.jsonl --vocab-size 32000 --output my_tokenizer\n"
        "  primus-cli data prepare --input corpus.jsonl --tokenizer-model my_tokenizer --output-prefix train\n"
        "  primus-cli data info train_text_document --tokenizer-model my_tokenizer\n";
  }
  if (group == "config") {
    text +=
        "\nexamples\n  primus-cli config show --config exp.yaml --origin\n"
        "  primus-cli config params --preset deepseek_v2_lite\n  primus-cli config keys deepep\n"
        "  primus-cli config check examples/megatron/configs/MI355X/*.yaml\n";
  }
  return text;
}

}  // namespace primus::cli
