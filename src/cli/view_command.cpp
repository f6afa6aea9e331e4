#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/run_curve.hpp"

namespace primus::cli {
namespace {

int view_loss(std::span<const std::string> words, Action action) {
  bool dry_run = action == Action::kDryRun;
  std::string run;
  std::string out;
  CLI::App app("Draw the loss curve of a run as SVG, from the metrics.jsonl in its folder.", "primus-cli view loss");
  app.add_option("--run", run, "Folder of the run")->required()->type_name("DIR");
  app.add_option("--out", out, "Picture to write (default: loss.svg in the folder)")->type_name("FILE.svg");
  app.add_flag("--dry-run", dry_run, "Say what would be drawn, and stop");
  app.footer("example\n  primus-cli view loss --run output/quickstart/local/deepseek_v2_tiny --out loss.svg");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const std::filesystem::path folder(run);
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError({{.file = "command line",
                        .key = "--run",
                        .message = fmt::format("there is no folder {}", run),
                        .expected = "folder of a run"}});
  }
  const std::filesystem::path picture = out.empty() ? folder / "loss.svg" : std::filesystem::path(out);
  if (dry_run) {
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

int view_command(std::span<const std::string> words, Action action) {
  constexpr std::array<std::string_view, 1> kPictures = {"loss"};
  if (!words.empty() && (words.front() == "--help" || words.front() == "-h")) return view_loss(words, action);
  if (words.empty() || words.front() != "loss") refuse_word("picture", words.empty() ? "" : words.front(), kPictures);
  return view_loss(words.subspan(1), action);
}

}  // namespace primus::cli
