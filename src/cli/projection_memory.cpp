// projection memory: bytes of every rank before anything is launched.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"
#include "cli/app.hpp"
#include "cli/arguments.hpp"
#include "cli/projection_compat.hpp"
#include "cli/projection_report.hpp"
#include "config/parse.hpp"

namespace primus::cli {
namespace {

struct MemoryOptions {
  ProjectionOptions projection;
  std::string accounting = "ours";
  std::string rank;  // as written; "": the largest
  bool all_ranks = false;
  AnswerOptions answer;
};

const std::vector<std::string> kFormats = {"text", "json", "csv", "html"};

void add_options(CLI::App& app, MemoryOptions& options) {
  add_config_option(app, options.projection.read);
  add_projection_options(app, options.projection);
  auto* rank =
      app.add_option("--rank", options.rank, "Tell this rank in detail (default: the largest)")->type_name("R");
  app.add_flag("--all-ranks", options.all_ranks, "A row for every rank, not for every stage")->excludes(rank);
  add_choice(app, "--accounting", options.accounting, "Whose way of counting; primus is the original's",
             {"ours", "primus", "blog"});
  add_answer_options(app, options.answer, kFormats);
}

/// The rank that is asked for; none: the largest.
std::optional<std::int64_t> rank_of(const MemoryOptions& options, const Projected& projected) {
  if (options.rank.empty()) return std::nullopt;
  const std::int64_t world = projected.inputs.grid.sizes().world;
  const std::optional<std::int64_t> rank = config::parse_int(options.rank);
  if (rank && *rank >= 0 && *rank < world) return rank;
  // Digits alone are a rank, however many: there is just no such rank.
  const bool is_number = options.rank.find_first_not_of("0123456789") == std::string::npos;
  throw ConfigError({{.file = "command line",
                      .key = "--rank",
                      .message = is_number ? fmt::format("the world has {}", counted(world, "rank")) : "is no rank",
                      .expected = fmt::format("0 to {}", world - 1),
                      .found = visible(options.rank)}});
}

/// Options of the original's command, and what stands in their place.
void refuse_original_options(const std::vector<std::string>& words) {
  constexpr std::pair<std::string_view, std::string_view> kOriginal[] = {
      {"pipeline_schedule_algorithm",
       "--pp_algorithm with --patch_primus_pipeline chooses one, view pipeline --schedule compares several"},
      {"memory_mode", "nothing is measured here: leave it out"},
      {"memory_safety_margin", "the verdict says how wrong the estimates may be: leave it out"},
      {"target_nodes", "write --world-size N for nodes x devices"},
      {"target_num_nodes", "write --world-size N for nodes x devices"},
      {"benchmark_gpus", "nothing is measured here: leave it out"},
      {"save_benchmark", "nothing is measured here: leave it out"},
      {"save_profiling", "nothing is measured here: leave it out"},
      {"load_benchmark", "nothing is measured here: leave it out"},
      {"compute_baseline", "nothing is measured here: leave it out"},
      {"sweep", "primus-cli projection compare has it"}};
  std::vector<Problem> problems;
  for (const std::string& word : words) {
    if (!word.starts_with("--")) continue;
    std::string name = word.substr(2, word.find('=') == std::string::npos ? std::string::npos : word.find('=') - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    const auto row =
        std::find_if(std::begin(kOriginal), std::end(kOriginal), [&](const auto& one) { return one.first == name; });
    if (row == std::end(kOriginal)) continue;
    problems.push_back({.file = "command line",
                        .key = word.substr(0, word.find('=')),
                        .message = "no option of projection memory",
                        .nearest = std::string(row->second)});
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
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
  const ReportRequest request{
      .rank = rank_of(options, projected), .all_ranks = options.all_ranks, .device = device_of(options.projection)};
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
  refuse_original_options(options.projection.read.overrides);
  refuse_ours_only(app, options.accounting);
  device_of(options.projection);  // a wrong name is told before the experiment is read
  const Projected projected = project(options.projection, launch);
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
