#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/app.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/run_curve.hpp"

namespace primus::cli {
namespace {

struct ViewOptions {
  std::string run;
  std::string out;
  bool dry_run = false;
};

void add_options(CLI::App& app, ViewOptions& options) {
  app.add_option("--run", options.run, "Folder of the run")->required()->type_name("DIR");
  app.add_option("--out", options.out, "Picture to write (default: loss.svg in the folder)")->type_name("FILE.svg");
  app.add_flag("--dry-run", options.dry_run, "Say what would be drawn, and stop");
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
  if (options.dry_run) {
    fmt::print("would draw {} from {}\n", picture.string(), (folder / "metrics.jsonl").string());
    return 0;
  }
  const LossSummary summary = draw_loss_curve(folder / "metrics.jsonl", picture);
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
