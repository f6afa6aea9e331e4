// projection memory: bytes of every rank before anything is launched.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "cli/app.hpp"
#include "cli/projection_compat.hpp"
#include "cli/projection_report.hpp"

namespace primus::cli {
namespace {

struct MemoryOptions {
  ProjectionOptions projection;
  std::string accounting = "ours";
  std::int64_t rank = -1;
  bool all_ranks = false;
  AnswerOptions answer;
};

const std::vector<std::string> kFormats = {"text", "json", "csv", "html"};

void add_options(CLI::App& app, MemoryOptions& options) {
  add_config_option(app, options.projection.read);
  add_projection_options(app, options.projection);
  auto* rank = app.add_option("--rank", options.rank, "Tell this rank in detail (default: the largest)")
                   ->type_name("R")
                   ->check(CLI::NonNegativeNumber);
  app.add_flag("--all-ranks", options.all_ranks, "A row for every rank, not for every stage")->excludes(rank);
  app.add_option("--accounting", options.accounting, "Whose way of counting: ours, primus (the original's), blog")
      ->type_name("NAME")
      ->check(CLI::IsMember({"ours", "primus", "blog"}));
  add_answer_options(app, options.answer, kFormats);
}

void check_rank(const MemoryOptions& options, const Projected& projected) {
  const std::int64_t world = projected.inputs.grid.sizes().world;
  if (options.rank < world) return;
  throw ConfigError({{.file = "command line",
                      .key = "--rank",
                      .message = fmt::format("the world has {}", counted(world, "rank")),
                      .expected = fmt::format("0 to {}", world - 1),
                      .found = std::to_string(options.rank)}});
}

/// What has a meaning in our accounting alone.
void refuse_ours_only(const CLI::App& app, const MemoryOptions& options) {
  if (options.accounting == "ours") return;
  for (const char* option : {"--rank", "--all-ranks", "--imbalance"}) {
    if (app.count(option) == 0) continue;
    throw ConfigError({{.file = "command line",
                        .key = option,
                        .message = fmt::format("--accounting {} knows no such thing", options.accounting),
                        .expected = "it with --accounting ours only"}});
  }
}

/// The other accountings answer as text or JSON.
std::string compat_answer(const MemoryOptions& options, const Projected& projected, const std::string& format) {
  const bool is_blog = options.accounting == "blog";
  const auto device = device_of(options.projection);
  if (format == "json") {
    return (is_blog ? blog_json(projected, device) : primus_json(projected, device)).dump(2) + "\n";
  }
  if (format == "text") return is_blog ? blog_text(projected, device) : primus_text(projected, device);
  throw ConfigError({{.file = "command line",
                      .key = "--format",
                      .message = fmt::format("--accounting {} answers as text or json", options.accounting),
                      .expected = "text or json",
                      .found = format}});
}

std::string answer(const MemoryOptions& options, const Projected& projected, const std::string& format) {
  if (options.accounting != "ours") return compat_answer(options, projected, format);
  ReportRequest request{.rank = {}, .all_ranks = options.all_ranks, .device = device_of(options.projection)};
  if (options.rank >= 0) request.rank = options.rank;
  if (format == "json") return memory_json(projected, request).dump(2) + "\n";
  if (format == "csv") return memory_csv(projected, request);
  if (format == "html") return memory_report_page(projected, request);
  return memory_text(projected, request);
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  MemoryOptions options;
  CLI::App app("Project every rank's memory, to the byte where layers declare it; nothing is launched.",
               "primus-cli projection memory");
  add_options(app, options);
  app.footer(
      "examples\n  primus-cli projection memory --config exp.yaml --gpu MI355X\n"
      "  primus-cli projection memory --config exp.yaml --hbm 140GiB --context_parallel_size 2\n"
      "  primus-cli projection memory --config exp.yaml --rank 5 --format json | jq '.ranks[0].bytes'\n"
      "  primus-cli projection memory --config exp.yaml --accounting blog");
  if (parse_options(app, words, Rest::kReturn, options.projection.read.overrides) == Parsed::kHelpShown) return 0;
  const std::string format = chosen_format(app, options.answer, kFormats, launch);
  refuse_ours_only(app, options);
  device_of(options.projection);  // a wrong name is told before the experiment is read
  const Projected projected = project(options.projection, launch);
  check_rank(options, projected);
  write_answer(answer(options, projected, format), options.answer, format, launch);
  return 0;
}

}  // namespace

const Command kProjectionMemory = {"projection",
                                   "memory",
                                   "--config FILE [--gpu NAME]",
                                   "bytes of every rank; does it fit?",
                                   Starts::kNothing,
                                   Rest::kReturn,
                                   "",
                                   [](CLI::App& app) {
                                     static MemoryOptions unused;
                                     add_options(app, unused);
                                   },
                                   run};

}  // namespace primus::cli
