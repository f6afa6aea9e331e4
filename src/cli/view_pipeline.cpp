// view pipeline: schedules and what ran, as SVG, HTML, PNG, bars of letters or JSON.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/arguments.hpp"
#include "cli/pipeline_charts.hpp"
#include "config/parse.hpp"
#include "view/pipeline_json.hpp"
#include "view/pipeline_labels.hpp"
#include "view/pipeline_page.hpp"
#include "view/pipeline_svg.hpp"
#include "view/pipeline_text.hpp"
#include "view/png.hpp"
#include "view/pp_data.hpp"

namespace primus::cli {
namespace {

struct ViewOptions {
  PipelineOptions pipeline;
  std::string out;
  std::string format = "text";
  std::string colour = "pass";
  std::string write_data;
  bool dry_run = false;
};

std::string at_least_one(const std::string& text) {
  const auto count = config::parse_int(text);
  return count && *count >= 1 && *count <= 1'000'000
             ? ""
             : fmt::format("expected an integer from 1 to 1000000, found '{}'", text);
}

std::string not_negative(const std::string& text) {
  const auto value = config::parse_real(text);
  return value && *value >= 0.0 && *value <= 1e9 ? ""
                                                 : fmt::format("expected a number from 0 to 1e9, found '{}'", text);
}

void add_source_options(CLI::App& app, PipelineOptions& options) {
  app.add_option("--config,--exp", options.read.config, "Experiment file, simulated; overrides may follow")
      ->type_name("FILE.yaml");
  add_world_option(app, options.read.world_size);
  app.add_option("--data", options.data, "Folder of dump_pp_data, as it ran; several times for several")
      ->type_name("DIR")
      ->allow_extra_args(false);
  app.add_option("--iteration", options.iteration, "Of those files (default: the last)")->type_name("N");
  app.add_option("--stages", options.num_ranks, "Pipeline ranks, without a model: all stages alike")
      ->type_name("P")
      ->check(at_least_one);
  app.add_option("--micro-batches", options.num_micro_batches, "Of one step, with --stages")
      ->type_name("M")
      ->check(at_least_one);
}

void add_options(CLI::App& app, ViewOptions& options) {
  PipelineOptions& pipeline = options.pipeline;
  add_source_options(app, pipeline);
  app.add_option("--schedule", pipeline.schedules, "Schedules on one axis (default: the experiment's)")
      ->type_name("A,B,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--chunks", pipeline.num_chunks, "Chunks a rank of interleaved ones")
      ->type_name("V")
      ->check(at_least_one);
  app.add_option("--times", pipeline.times, "A rank's forward, input and weight gradient (default: FLOPs)")
      ->type_name("F,B,W")
      ->delimiter(',')
      ->expected(3)
      ->check(not_negative);
  app.add_option("--message", pipeline.message, "Time between ranks, in forwards")->type_name("T")->check(not_negative);
  app.add_option("--exchange", pipeline.exchange, "Time of a dispatch or combine, in its layer's forward")
      ->type_name("SHARE")
      ->check(not_negative);
  app.add_flag("--better", pipeline.better, "Beside each schedule a shorter order of it, if one is found");
  add_choice(app, "--colour,--color", options.colour, "What colours tell apart", {"pass", "micro-batch"});
  app.add_option("--out", options.out, "Picture to write")->type_name("FILE.svg|html|png|txt|json");
  app.add_option("--write-data", options.write_data, "Write a simulation as files of dump_pp_data")->type_name("DIR");
  app.add_flag("--dry-run", options.dry_run, "Say what would be drawn, and stop");
  add_format_option(app, options.format, {"text", "svg", "html", "png", "json"});
}

constexpr std::string_view kExamples =
    "examples\n"
    "  primus-cli view pipeline --config exp.yaml\n"
    "  primus-cli view pipeline --config exp.yaml --schedule 1f1b,zbv-formatted --out pipeline.html\n"
    "  primus-cli view pipeline --stages 8 --micro-batches 32 --schedule v-min --better\n"
    "  primus-cli view pipeline --data output/pp_data --iteration 7 --out pipeline.svg";

/// How wide the terminal is; what is read by a program gets 120 columns.
int terminal_width() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const auto count = columns == nullptr ? std::nullopt : config::parse_int(columns);
  return count && *count >= 60 && *count <= 1000 ? static_cast<int>(*count) : 120;
}

std::string text_of(const DrawnPipeline& drawn, int width, view::Paint paint) {
  const std::string text = view::pipeline_text(drawn.picture, width, paint);
  return drawn.planned.empty() ? text : text + fmt::format("a real train refuses today: {}\n", drawn.planned);
}

std::string json_of(const DrawnPipeline& drawn) {
  return view::pipeline_json(drawn.picture, drawn.tables, drawn.planned) + "\n";
}

/// Megabytes, without the copy that formatting makes.
void print_text(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

std::string extension_of(const std::string& out) {
  constexpr std::array<std::string_view, 5> kKnown = {".svg", ".html", ".png", ".txt", ".json"};
  const std::string extension = lower(std::filesystem::path(out).extension().string());
  if (std::find(kKnown.begin(), kKnown.end(), extension) == kKnown.end()) {
    throw ConfigError({{.file = "command line",
                        .key = "--out",
                        .message = "the ending says what to write",
                        .expected = "FILE.svg, .html, .png, .txt or .json",
                        .found = out}});
  }
  return extension;
}

/// A format that is a picture names the same as the ending of --out; text and JSON tell what was written there.
void check_format(const ViewOptions& options) {
  const bool is_picture = options.format == "svg" || options.format == "html" || options.format == "png";
  const auto refuse = [&](const char* message, std::string expected, std::string found) {
    throw ConfigError({{.file = "command line",
                        .key = "--out",
                        .message = message,
                        .expected = std::move(expected),
                        .found = std::move(found)}});
  };
  if (options.out.empty()) {
    if (options.format == "png") refuse("is missing: a terminal shows no PNG", "FILE.png", "standard output");
    return;
  }
  if (is_picture && extension_of(options.out) != "." + options.format) {
    refuse("the ending and --format name two formats", options.format, options.out);
  }
}

view::ColourBy colour_of(const ViewOptions& options) {
  return options.colour == "pass" ? view::ColourBy::kPass : view::ColourBy::kMicroBatch;
}

void write_picture(const DrawnPipeline& drawn, const ViewOptions& options) {
  const view::ColourBy colour = colour_of(options);
  const std::string extension = extension_of(options.out);
  const std::filesystem::path file(options.out);
  if (file.has_parent_path()) make_folder(file.parent_path());
  if (extension == ".png") {
    view::write_png(view::pipeline_svg(drawn.picture, colour), file, 1.5);
  } else if (extension == ".svg") {
    write_file(file, view::pipeline_svg(drawn.picture, colour));
  } else if (extension == ".html") {
    write_file(file, view::pipeline_page(drawn.picture, colour));
  } else if (extension == ".json") {
    write_file(file, json_of(drawn));
  } else {
    write_file(file, text_of(drawn, terminal_width(), view::Paint::kPlain));
  }
}

void write_data(const DrawnPipeline& drawn, const std::string& folder) {
  const std::vector<view::PipelineChart>& charts = drawn.picture.charts;
  for (const view::PipelineChart& chart : charts) {
    const std::filesystem::path root(folder);
    view::write_pp_data(chart, "0", {drawn.picture.time_unit, drawn.picture.memory_unit},
                        charts.size() == 1 ? root : root / chart.name);
  }
}

Json summary_json(const DrawnPipeline& drawn, const ViewOptions& options) {
  Json json = {{"ok", true}, {"picture", options.out}, {"charts", Json::array()}};
  for (const view::PipelineChart& chart : drawn.picture.charts) {
    json["charts"].push_back({{"name", chart.name}, {"step", chart.step}, {"mean_bubble", chart.mean_bubble()}});
  }
  return json;
}

bool paints() {
  return isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  ViewOptions options;
  options.dry_run = launch.action == Action::kDryRun;
  CLI::App app("Draw pipeline schedules, or what a pipeline did.", "primus-cli view pipeline");
  add_options(app, options);
  app.footer(std::string(kExamples));
  if (parse_options(app, words, Rest::kReturn, options.pipeline.read.overrides) == Parsed::kHelpShown) return 0;
  if (!options.out.empty()) extension_of(options.out);
  check_format(options);
  const DrawnPipeline drawn = draw_pipeline(options.pipeline, launch);
  const bool is_json = format_of(options.format) == Format::kJson || launch.format == Format::kJson;
  if (options.dry_run) {
    const std::string target = options.out.empty() ? "standard output" : options.out;
    is_json ? print_json({{"ok", true}, {"would_write", target}}) : fmt::print("would draw {}\n", target);
    return 0;
  }
  if (!options.write_data.empty()) write_data(drawn, options.write_data);
  if (!options.out.empty()) write_picture(drawn, options);
  if (options.out.empty() && options.format == "svg") {
    print_text(view::pipeline_svg(drawn.picture, colour_of(options)));
  } else if (options.out.empty() && options.format == "html") {
    print_text(view::pipeline_page(drawn.picture, colour_of(options)));
  } else if (is_json) {
    options.out.empty() ? print_text(json_of(drawn)) : print_json(summary_json(drawn, options));
  } else if (options.out.empty()) {
    fmt::print("{}", text_of(drawn, terminal_width(), paints() ? view::Paint::kColoured : view::Paint::kPlain));
  } else {
    for (const view::PipelineChart& chart : drawn.picture.charts)
      fmt::print("{}: step {} {}, mean bubble {:.2f} %\n", chart.name, view::figure(chart.step),
                 drawn.picture.time_unit, 100.0 * chart.mean_bubble());
    fmt::print("wrote {}\n", options.out);
  }
  return 0;
}

}  // namespace

const Command kViewPipeline = {"view",
                               "pipeline",
                               "--config FILE | --data DIR",
                               "a pipeline, simulated or as it ran",
                               Starts::kNothing,
                               Rest::kReturn,
                               "",
                               [](CLI::App& app) {
                                 static ViewOptions unused;
                                 add_options(app, unused);
                               },
                               run};

}  // namespace primus::cli
