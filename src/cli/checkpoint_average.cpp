// checkpoint average: one model whose weights are the mean of several's.
#include <fmt/format.h>

#include <array>
#include <numeric>

#include "base/error.hpp"
#include "base/text.hpp"
#include "checkpoint/average.hpp"
#include "checkpoint/checkpoint_root.hpp"
#include "cli/app.hpp"
#include "cli/checkpoint_common.hpp"
#include "cli/config_common.hpp"
#include "cli/terminal.hpp"
#include "config/key_table.hpp"

namespace primus::cli {
namespace {

namespace fs = std::filesystem;

struct AverageWords {
  ConvertOptions write;
  std::vector<std::string> from;
  std::vector<double> weights;
  std::int64_t last = 0;
};

void add_options(CLI::App& app, AverageWords& read) {
  app.add_option("--from", read.from, "Folders of weights, or with --last a run's folder of checkpoints")
      ->required()
      ->type_name("DIR");
  app.add_option("--last", read.last, "The last N checkpoints of the folder")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option("--weights", read.weights, "A share for each folder, as in 1 2 1 (default: the same)")->type_name("W");
  add_write_options(app, read.write);
}

[[noreturn]] void refuse(const std::string& key, const std::string& message, const std::string& expected,
                         const std::string& found) {
  throw ConfigError({{.file = "command line", .key = key, .message = message, .expected = expected, .found = found}});
}

/// The folders that the words name, the oldest first.
std::vector<fs::path> folders(const AverageWords& read) {
  if (read.last == 0) return {read.from.begin(), read.from.end()};
  if (read.from.size() != 1)
    refuse("--last", "is of one folder of checkpoints", "one --from", std::to_string(read.from.size()));
  const checkpoint::CheckpointRoot root(read.from.front());
  std::vector<std::int64_t> steps = root.candidates();  // the newest first
  if (std::ssize(steps) < read.last) {
    refuse("--last", "is more than there are in " + read.from.front(), fmt::format("1 to {}", steps.size()),
           std::to_string(read.last));
  }
  steps.resize(static_cast<std::size_t>(read.last));
  std::vector<fs::path> found;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) found.push_back(root.folder(*step));
  return found;
}

std::vector<double> shares(const AverageWords& read, std::size_t count) {
  if (read.weights.empty()) return std::vector<double>(count, 1.0 / static_cast<double>(count));
  const double sum = std::accumulate(read.weights.begin(), read.weights.end(), 0.0);
  const bool is_usable = std::ranges::all_of(read.weights, [](double weight) { return weight >= 0.0; });
  if (read.weights.size() != count || !is_usable || !(sum > 0.0) || sum > std::numeric_limits<double>::max()) {
    refuse("--weights", "are no shares of the folders", fmt::format("{} numbers from 0 on, not all 0", count),
           fmt::format("{}", fmt::join(read.weights, " ")));
  }
  std::vector<double> normal = read.weights;
  for (double& weight : normal) weight /= sum;
  return normal;
}

/// Settings that say how the weights are used, and on which the models disagree: the last one's hold.
void note_differences(const std::vector<checkpoint::StoredModel>& models, std::vector<std::string>& notes) {
  constexpr std::array<std::string_view, 5> kAreas = {"structure", "position", "attention", "latent attention",
                                                      "mixture of experts"};
  for (const config::KeySection& section : config::key_sections()) {
    if (std::ranges::find(kAreas, section.area) == kAreas.end()) continue;
    for (const config::Key& key : section.keys) {
      const config::Value& last = models.back().experiment.setting(key.name).value;
      for (const checkpoint::StoredModel& model : models) {
        const config::Value& value = model.experiment.setting(key.name).value;
        if (value == last) continue;
        notes.push_back(fmt::format("{} is {} in {} and {} in {}, which holds", key.name, config::to_text(value),
                                    model.folder.string(), config::to_text(last), models.back().folder.string()));
        break;
      }
    }
  }
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  AverageWords read;
  CLI::App app("Make one model of several: each weight is the mean, in fp64, rounded once.",
               "primus-cli checkpoint average");
  add_options(app, read);
  app.footer(
      "All folders must have the same parameters; experiment, types and tokenizer files are the last one's.\n"
      "The result has weights alone: train from it with finetune or no_load_optim.\n"
      "examples\n  primus-cli checkpoint average --from output/me/exp/checkpoints --last 5 --to ckpt/mean\n"
      "  primus-cli checkpoint average --from ckpt/a ckpt/b --weights 3 1 --to ckpt/soup --dtype bf16");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const checkpoint::WriteOptions write = write_options(read.write);
  checkpoint::check_target(write.to);
  std::vector<checkpoint::StoredModel> models;
  for (const fs::path& folder : folders(read)) models.push_back(checkpoint::open_model(folder));
  const auto mean = checkpoint::average(models, shares(read, models.size()));
  const checkpoint::StoredModel& last = models.back();
  const fs::path target(read.write.to);
  const ResolvedModel resolved =
      resolve_model(last.experiment, (target.has_filename() ? target : target.parent_path()).filename(), "average");
  const checkpoint::WritePlan plan = checkpoint::plan_checkpoint(*mean, write);
  read.write.from = fmt::format("the mean of {}", counted(std::ssize(models), "model"));
  ConvertReport report{"average", &read.write, architecture_of(last), &plan, last.notes};
  note_differences(models, report.notes);
  if (!read.write.dry_run && launch.action != Action::kDryRun) {
    ProgressBar bar("average");
    checkpoint::write_checkpoint(*mean, write, plan, resolved.run, last,
                                 [&](std::int64_t done, std::int64_t all) { bar.show(done, all); });
    report.is_done = true;
  }
  print_report(report, launch);
  return 0;
}

}  // namespace

const Command kCheckpointAverage = {"checkpoint",
                                    "average",
                                    "--from DIR... --to DIR",
                                    "the mean of several",
                                    Starts::kNothing,
                                    Rest::kRefuse,
                                    "",
                                    [](CLI::App& app) {
                                      static AverageWords unused;
                                      add_options(app, unused);
                                    },
                                    run};

}  // namespace primus::cli
