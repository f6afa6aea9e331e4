// checkpoint prune: old checkpoints out of a run's folder.
#include <fmt/format.h>

#include "base/error.hpp"
#include "base/folder_lock.hpp"
#include "base/text.hpp"
#include "checkpoint/prune.hpp"
#include "cli/app.hpp"
#include "cli/checkpoint_common.hpp"
#include "cli/config_common.hpp"
#include "cli/terminal.hpp"

namespace primus::cli {
namespace {

struct PruneWords {
  std::string folder;
  std::int64_t keep_last = 0;
  std::int64_t keep_every = 0;
  std::string format = "text";
  bool dry_run = false;  // CLI11 fills flags
};

void add_options(CLI::App& app, PruneWords& read) {
  app.add_option("DIR", read.folder, "A run's folder of checkpoints")->required()->type_name("DIR");
  app.add_option("--keep-last", read.keep_last, "How many of the latest stay")
      ->required()
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option("--keep-every", read.keep_every, "And those of steps that this divides")
      ->type_name("M")
      ->check(CLI::PositiveNumber);
  app.add_flag("--dry-run", read.dry_run, "Say what would go, and stop");
  add_format_option(app, read.format, {"text", "json"});
}

std::string steps_text(const std::vector<std::int64_t>& steps) {
  return steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, ", "));
}

void print_plan(const checkpoint::PrunePlan& plan, const PruneWords& read, bool is_done) {
  for (const std::string& damage : plan.damaged)
    fmt::print("{} {}\n", coloured("note:", Colour::kYellow, stdout), "a newer checkpoint is damaged: " + damage);
  fmt::print("{} {} from {}: steps {} ({})\n", is_done ? "removed" : "would remove",
             counted(std::ssize(plan.removed), "checkpoint"), read.folder, steps_text(plan.removed),
             format_bytes(plan.removed_bytes));
  for (const std::string& name : plan.left_overs)
    fmt::print("{} {}, which an ended process left half-written\n", is_done ? "removed" : "would remove", name);
  fmt::print("steps that stay: {}; the newest whole one is {}\n", steps_text(plan.kept), *plan.newest_whole);
}

void print_plan_json(const checkpoint::PrunePlan& plan, const PruneWords& read, bool is_done) {
  print_json(Json{{"ok", true},
                  {"folder", read.folder},
                  {"done", is_done},
                  {"removed", plan.removed},
                  {"removed_bytes", plan.removed_bytes},
                  {"left_overs", plan.left_overs},
                  {"kept", plan.kept},
                  {"newest_whole", *plan.newest_whole},
                  {"damaged", plan.damaged}});
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  PruneWords read;
  CLI::App app("Remove old checkpoints from a run's folder, never the newest one that is whole.",
               "primus-cli checkpoint prune");
  add_options(app, read);
  app.footer(
      "The newest checkpoints are read in full until one is whole: it and the one that `latest` names stay.\n"
      "Half-written folders of ended processes go, too. A folder that a run is writing to is left alone.\n"
      "example\n  primus-cli checkpoint prune output/me/exp/checkpoints --keep-last 2 --keep-every 1000 --dry-run");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  if (!checkpoint::is_checkpoint_root(read.folder)) {
    throw ConfigError(
        {{.file = read.folder, .message = "holds no checkpoints", .expected = "a folder of iter_0000010 and so on"}});
  }
  const bool is_dry = read.dry_run || launch.action == Action::kDryRun;
  std::optional<FolderLock> lock;
  if (!is_dry) lock.emplace(read.folder);
  checkpoint::Retention retention{.keep_last = read.keep_last, .keep_every = std::nullopt};
  if (read.keep_every > 0) retention.keep_every = read.keep_every;
  const checkpoint::CheckpointRoot root(read.folder);
  const checkpoint::PrunePlan plan = checkpoint::plan_prune(root, retention);
  if (!is_dry) checkpoint::prune(root, plan);
  const bool is_json = format_of(read.format) == Format::kJson || launch.format == Format::kJson;
  is_json ? print_plan_json(plan, read, !is_dry) : print_plan(plan, read, !is_dry);
  return 0;
}

}  // namespace

const Command kCheckpointPrune = {"checkpoint",
                                  "prune",
                                  "DIR --keep-last N",
                                  "old ones out of a run's folder",
                                  Starts::kNothing,
                                  Rest::kRefuse,
                                  "folder",
                                  [](CLI::App& app) {
                                    static PruneWords unused;
                                    add_options(app, unused);
                                  },
                                  run};

}  // namespace primus::cli
