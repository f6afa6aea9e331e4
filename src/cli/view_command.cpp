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
#include "cli/run_curve.hpp"

namespace primus::cli {
namespace {

struct ViewOptions {
  std::string run;
  std::string out;
  bool dry_run = false;
  std::string format = "text";
};

void add_options(CLI::App& app, ViewOptions& options) {
  app.add_option("--run", options.run, "Folder of the run")->required()->type_name("DIR");
  app.add_option("--out", options.out, "Picture to write (default: loss.svg in the folder)")->type_name("FILE.svg");
  app.add_flag("--dry-run", options.dry_run, "Say what would be drawn, and stop");
  add_format_option(app, options.format, {"text", "json"});
}

Json summary_json(const LossSummary& summary, const std::filesystem::path& picture) {
  Json json = {{"ok", true}, {"points", summary.num_points}, {"curve", picture.string()}};
  if (summary.first) json.update({{"first_loss", *summary.first}, {"last_loss", *summary.last}});
  if (summary.last_held_out) json["held_out_loss"] = *summary.last_held_out;
  return json;
}

int view_loss(std::span<const std::string> words, const LaunchOptions& launch) {
  ViewOptions options;
  options.dry_run = launch.action == Action::kDryRun;
  CLI::App app("Draw the loss curve of a run as SVG, from the metrics.jsonl in its folder.", "primus-cli view loss");
  add_options(app, options);
  app.footer("example\n  primus-cli view loss --run output/quickstart/local/deepseek_v2_tiny --out loss.svg");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const std::filesystem::path folder(options.run);
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError({{.file = "command line",
                        .key = "--run",
                        .message = fmt::format("there is no folder {}", options.run),
                        .expected = "folder of a run"}});
  }
  const std::filesystem::path picture = options.out.empty() ? folder / "loss.svg" : std::filesystem::path(options.out);
  const std::filesystem::path metrics = folder / "metrics.jsonl";
  if (!std::filesystem::exists(metrics)) {
    throw ConfigError({{.file = "command line",
                        .key = "--run",
                        .message = fmt::format("there is no {}", metrics.string()),
                        .expected = "folder of a run that has logged a step"}});
  }
  if (options.dry_run && launch.format == Format::kJson) {
    print_json({{"ok", true}, {"would_read", metrics.string()}, {"would_write", picture.string()}});
    return 0;
  }
  if (options.dry_run) {
    fmt::print("would draw {} from {}\n", picture.string(), metrics.string());
    return 0;
  }
  const LossSummary summary = draw_loss_curve(metrics, picture);
  if (launch.format == Format::kJson) {
    print_json(summary_json(summary, picture));
    return 0;
  }
  if (summary.first)
    fmt::print("training loss  {:.4f} -> {:.4f} over {} log lines\n", *summary.first, *summary.last,
               summary.num_points);
  if (summary.last_held_out) fmt::print("held-out loss  {:.4f}\n", *summary.last_held_out);
  fmt::print("curve          {}\n", picture.string());
  return 0;
}

}  // namespace

const Command kViewLoss = {"view",
                           "loss",
                           "--run DIR",
                           "the loss curve of a run",
                           Starts::kNothing,
                           Rest::kRefuse,
                           "",
                           [](CLI::App& app) {
                             static ViewOptions unused;
                             add_options(app, unused);
                           },
                           view_loss};

}  // namespace primus::cli
