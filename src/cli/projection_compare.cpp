// projection compare: several experiments, or one in many layouts, a row each.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"
#include "cli/app.hpp"
#include "cli/projection_report.hpp"
#include "projection/sweep.hpp"
#include "projection/verdict.hpp"

namespace primus::cli {
namespace {

using projection::Category;

struct CompareOptions {
  ProjectionOptions projection;
  std::vector<std::string> axes;
};

/// One layout: its projection, or why it is none.
struct Row {
  std::string label;
  std::optional<Projected> projected;
  std::string refusal;
};

void add_options(CLI::App& app, CompareOptions& options) {
  add_projection_options(app, options.projection);
  app.add_option("--sweep", options.axes, "Every value of a setting: cp=1,2,4; several --sweep: every combination")
      ->type_name("KEY=A,B")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_format_option(app, options.projection.read.format, {"text", "json", "csv"});
}

/// The files stand before any override.
std::vector<std::string> take_files(std::vector<std::string>& words) {
  const auto end = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with("-") || word.find('=') != std::string::npos;
  });
  std::vector<std::string> files(words.begin(), end);
  words.erase(words.begin(), end);
  if (files.empty()) {
    throw ConfigError({{.file = "command line",
                        .message = "no experiment is named",
                        .expected = "one or more files before the overrides",
                        .nearest = "see primus-cli projection compare --help"}});
  }
  return files;
}

Row row_of(const std::string& file, const std::string& label, const CompareOptions& options,
           std::vector<std::string> overrides, const LaunchOptions& launch) {
  Row row{label, {}, ""};
  try {
    row.projected = project(file, options.projection, std::move(overrides), launch);
  } catch (const ConfigError& error) {
    row.refusal = to_text(error.problems().front());
  } catch (const UserError& error) {
    row.refusal = error.what();
  }
  return row;
}

/// The file's name; the whole path where another of the files has the same name.
std::string label_of(const std::string& file, const std::vector<std::string>& files) {
  const auto stem = [](const std::string& path) { return std::filesystem::path(path).stem().string(); };
  const auto alike =
      std::count_if(files.begin(), files.end(), [&](const std::string& other) { return stem(other) == stem(file); });
  return alike > 1 ? file : stem(file);
}

std::vector<Row> rows_of(const CompareOptions& options, const std::vector<std::string>& files,
                         const LaunchOptions& launch) {
  const std::vector<projection::SweepPoint> points = projection::sweep_points(options.axes);
  std::vector<Row> rows;
  for (const std::string& file : files) {
    for (const projection::SweepPoint& point : points) {
      std::vector<std::string> overrides = options.projection.read.overrides;
      overrides.insert(overrides.end(), point.words.begin(), point.words.end());
      std::string label = point.label;
      if (label.empty() || files.size() > 1) {
        label = label_of(file, files) + (label.empty() ? "" : ": " + label);
      }
      rows.push_back(row_of(file, label, options, std::move(overrides), launch));
    }
  }
  return rows;
}

std::string text_of(const std::vector<Row>& rows, const std::optional<projection::Hardware>& device) {
  std::size_t width = 6;
  for (const Row& row : rows) width = std::max(width, row.label.size());
  width = std::min<std::size_t>(width, 60);
  std::string text = fmt::format("{:<{}} {:>6} {:>8} {:>9} {:>9} {:>11} {:>9} {:>9} {:>8}{}\n", "layout (GiB)", width,
                                 "stage", "weights", "gradients", "optimizer", "activations", "transient", "framework",
                                 "total", device ? "  on " + device->name : "");
  for (const Row& row : rows) {
    if (!row.projected) {
      text += fmt::format("{:<{}} not legal: {}\n", row.label, width, visible(row.refusal));
      continue;
    }
    const projection::RankMemory& rank = row.projected->memory.worst();
    const std::string verdict =
        !device ? "" : fmt::format("  {}", projection::name(projection::fit_of(rank, device->memory_bytes)));
    text += fmt::format("{:<{}} {:>6} {:>8} {:>9} {:>9} {:>11} {:>9} {:>9} {:>8}{}\n", row.label, width,
                        rank.pipeline_rank, gib_text(rank.bytes(Category::kParameters)),
                        gib_text(rank.bytes(Category::kGradients)), gib_text(rank.bytes(Category::kOptimizer)),
                        gib_text(rank.bytes(Category::kActivations)), gib_text(rank.transient()),
                        gib_text(rank.bytes(Category::kFramework)), gib_text(rank.total()), verdict);
  }
  return text + "each layout's largest pipeline rank (stage)\n";
}

Json json_of_rows(const std::vector<Row>& rows, const std::optional<projection::Hardware>& device) {
  Json json = {{"ok", true}, {"layouts", Json::array()}};
  for (const Row& row : rows) {
    Json entry = {{"layout", row.label}, {"legal", row.projected.has_value()}};
    if (row.projected) {
      const projection::RankMemory& rank = row.projected->memory.worst();
      entry["largest"] = rank_json(rank);
      if (device) entry["fits"] = rank.total() <= device->memory_bytes;
    } else {
      entry["problem"] = row.refusal;
    }
    json["layouts"].push_back(std::move(entry));
  }
  return json;
}

std::string csv_of(const std::vector<Row>& rows) {
  std::string text = "layout,legal,pipeline_rank,parameters";
  for (int i = 0; i < projection::kNumCategories; ++i) {
    text += "," + category_name(static_cast<Category>(i)) + "_bytes";
  }
  text += ",total_bytes,problem\n";
  for (const Row& row : rows) {
    text += csv_field(row.label);
    if (!row.projected) {
      text += ",no,,," + std::string(projection::kNumCategories, ',') + "," + csv_field(row.refusal) + "\n";
      continue;
    }
    const projection::RankMemory& rank = row.projected->memory.worst();
    text += fmt::format(",yes,{},{}", rank.pipeline_rank, rank.num_parameters());
    for (int i = 0; i < projection::kNumCategories; ++i) {
      text += fmt::format(",{}", rank.bytes(static_cast<Category>(i)));
    }
    text += fmt::format(",{},\n", rank.total());
  }
  return text;
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  CompareOptions options;
  CLI::App app("Project several experiments or layouts, a row each: the largest rank, bytes by category.",
               "primus-cli projection compare");
  add_options(app, options);
  app.footer(
      "examples\n  primus-cli projection compare a.yaml b.yaml --gpu H200\n"
      "  primus-cli projection compare exp.yaml --sweep cp=1,2,4 --sweep ep=8,16 --gpu MI300X\n"
      "  primus-cli projection compare exp.yaml --sweep pipeline_model_parallel_size=24,48 --format csv");
  if (parse_options(app, words, Rest::kReturn, options.projection.read.overrides) == Parsed::kHelpShown) return 0;
  const std::vector<std::string> files = take_files(options.projection.read.overrides);
  const std::optional<projection::Hardware> device = device_of(options.projection);
  const std::vector<Row> rows = rows_of(options, files, launch);
  // Where no layout is legal, nothing was projected: the first reason is the answer.
  if (std::none_of(rows.begin(), rows.end(), [](const Row& row) { return row.projected.has_value(); })) {
    throw UserError(rows.front().refusal, ExitCode::kWrongInput);
  }
  if (options.projection.read.format == "json" || launch.format == Format::kJson) {
    print_json(json_of_rows(rows, device));
  } else {
    fmt::print("{}", options.projection.read.format == "csv" ? csv_of(rows) : text_of(rows, device));
  }
  return 0;
}

}  // namespace

const Command kProjectionCompare = {"projection",
                                    "compare",
                                    "FILE... [--sweep KEY=A,B]",
                                    "experiments or layouts, a row each",
                                    Starts::kNothing,
                                    Rest::kReturn,
                                    "experiment",
                                    [](CLI::App& app) {
                                      static CompareOptions unused;
                                      add_options(app, unused);
                                    },
                                    run};

}  // namespace primus::cli
