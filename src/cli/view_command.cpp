#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/app.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/config_common.hpp"
#include "cli/records_csv.hpp"
#include "cli/run_curve.hpp"
#include "cli/run_files.hpp"

namespace primus::cli {
namespace {

struct ViewOptions {
  std::vector<std::string> runs;
  std::string of = "loss";
  std::string out;
  std::string csv;
  bool dry_run = false;
  std::string format = "text";
};

void add_options(CLI::App& app, ViewOptions& options) {
  app.add_option("--run", options.runs, "Folder of a run; several times for several runs in one picture")
      ->required()
      ->type_name("DIR")
      ->allow_extra_args(false);
  add_choice(app, "--of", options.of, "What is drawn (of several runs, loss is the training loss)",
             {"loss", "training", "held-out", "expert-load"});
  app.add_option("--out", options.out, "Picture to write (default: loss.svg in the first folder)")
      ->type_name("FILE.svg");
  app.add_option("--csv", options.csv, "Table of all records of the run to write beside")->type_name("FILE.csv");
  app.add_flag("--dry-run", options.dry_run, "Say what would be drawn, and stop");
  add_format_option(app, options.format, {"text", "json"});
}

Drawn drawn_of(const std::string& of) {
  if (of == "training") return Drawn::kTraining;
  if (of == "held-out") return Drawn::kHeldOut;
  return of == "expert-load" ? Drawn::kExpertLoad : Drawn::kLoss;
}

void add_summary(Json& json, const LossSummary& summary) {
  json["points"] = summary.num_points;
  if (summary.first) json.update({{"first_loss", *summary.first}, {"last_loss", *summary.last}});
  if (summary.last_held_out) json["held_out_loss"] = *summary.last_held_out;
  if (summary.last_load) json["expert_load"] = *summary.last_load;
}

/// Of one run its figures stand beside the picture; of several, a list has them.
Json summary_json(const std::vector<LossSummary>& summaries, const std::filesystem::path& picture) {
  Json json = {{"ok", true}, {"curve", picture.string()}};
  if (summaries.size() == 1) {
    add_summary(json, summaries.front());
    return json;
  }
  json["runs"] = Json::array();
  for (const LossSummary& summary : summaries) {
    Json run = {{"run", summary.run}};
    add_summary(run, summary);
    json["runs"].push_back(std::move(run));
  }
  return json;
}

void print_summary(const LossSummary& summary) {
  if (summary.first) {
    fmt::print("training loss  {:.4f} -> {:.4f} over {} log lines\n", *summary.first, *summary.last,
               summary.num_points);
  }
  if (summary.last_held_out) fmt::print("held-out loss  {:.4f}\n", *summary.last_held_out);
  if (summary.last_load) fmt::print("expert load    {:.2f} (busiest / mean)\n", *summary.last_load);
}

std::filesystem::path metrics_of(const std::string& run) {
  const std::filesystem::path folder(run);
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError({{.file = "command line",
                        .key = "--run",
                        .message = fmt::format("there is no folder {}", run),
                        .expected = "folder of a run"}});
  }
  const std::filesystem::path metrics = folder / "metrics.jsonl";
  if (!std::filesystem::exists(metrics)) {
    throw ConfigError({{.file = "command line",
                        .key = "--run",
                        .message = fmt::format("there is no {}", metrics.string()),
                        .expected = "folder of a run that has logged a step"}});
  }
  return metrics;
}

int view_loss(std::span<const std::string> words, const LaunchOptions& launch) {
  ViewOptions options;
  options.dry_run = launch.action == Action::kDryRun;
  CLI::App app("Draw the loss curves of runs as SVG, from the metrics.jsonl in their folders.", "primus-cli view loss");
  add_options(app, options);
  app.footer(
      "examples\n  primus-cli view loss --run output/quickstart/local/deepseek_v2_tiny --out loss.svg\n"
      "  primus-cli view loss --run runs/dense --run runs/moe --of held-out --out compared.svg");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  std::vector<std::filesystem::path> metrics;
  for (const std::string& run : options.runs) metrics.push_back(metrics_of(run));
  if (!options.csv.empty() && metrics.size() > 1) {
    throw ConfigError({{.file = "command line",
                        .key = "--csv",
                        .message = "a table is of one run",
                        .expected = "one --run",
                        .found = std::to_string(metrics.size())}});
  }
  const std::filesystem::path picture =
      options.out.empty() ? metrics.front().parent_path() / "loss.svg" : std::filesystem::path(options.out);
  std::vector<RunFile> read;
  for (const std::filesystem::path& file : metrics) read.push_back({file, "the metrics of a run"});
  refuse_writing_over(picture.string(), "--out", read);
  refuse_writing_over(options.csv, "--csv", read);
  if (options.dry_run && launch.format == Format::kJson) {
    Json json = {{"ok", true}, {"would_write", picture.string()}, {"would_read", Json::array()}};
    for (const std::filesystem::path& file : metrics) json["would_read"].push_back(file.string());
    print_json(json);
    return 0;
  }
  if (options.dry_run) {
    for (const std::filesystem::path& file : metrics)
      fmt::print("would draw {} from {}\n", picture.string(), file.string());
    return 0;
  }
  const std::vector<LossSummary> summaries = draw_curves(metrics, drawn_of(options.of), picture);
  if (!options.csv.empty()) write_records_csv(metrics.front(), options.csv);
  if (launch.format == Format::kJson) {
    Json json = summary_json(summaries, picture);
    if (!options.csv.empty()) json["table"] = options.csv;
    print_json(json);
    return 0;
  }
  for (const LossSummary& summary : summaries) {
    if (summaries.size() > 1) fmt::print("{}\n", summary.run);
    print_summary(summary);
  }
  fmt::print("curve          {}\n", picture.string());
  if (!options.csv.empty()) fmt::print("table          {}\n", options.csv);
  return 0;
}

}  // namespace

const Command kViewLoss = {"view",
                           "loss",
                           "--run DIR",
                           "the loss curves of runs",
                           Starts::kNothing,
                           Rest::kRefuse,
                           "",
                           [](CLI::App& app) {
                             static ViewOptions unused;
                             add_options(app, unused);
                           },
                           view_loss};

}  // namespace primus::cli
