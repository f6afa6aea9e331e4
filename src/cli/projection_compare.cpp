// projection compare: several experiments, or one in many layouts, a row each.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/arguments.hpp"
#include "cli/compare_report.hpp"
#include "cli/run_files.hpp"
#include "config/key_table.hpp"
#include "config/overrides.hpp"
#include "projection/sweep.hpp"

namespace primus::cli {
namespace {

struct CompareOptions {
  ProjectionOptions projection;
  std::vector<std::string> axes;
  std::string accounting = "ours";
  AnswerOptions answer;
};

using Row = CompareRow;

const std::vector<std::string> kFormats = {"text", "json", "csv", "html"};

void add_options(CLI::App& app, CompareOptions& options) {
  add_projection_options(app, options.projection);
  app.add_option("--sweep", options.axes, "Every value of a setting: cp=1,2,4; several --sweep: every combination")
      ->type_name("KEY=A,B")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_choice(app, "--accounting", options.accounting, "Whose way of counting; primus is the original's",
             {"ours", "primus", "blog"});
  add_answer_options(app, options.answer, kFormats);
}

/// The files stand before any override.
std::vector<std::string> take_files(std::vector<std::string>& words) {
  const auto end = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with("-") || word.find('=') != std::string::npos;
  });
  std::vector<std::string> files(words.begin(), end);
  words.erase(words.begin(), end);
  if (files.empty()) {
    const auto option = std::find(words.begin(), words.end(), "--config");
    const bool has_option = option != words.end() && option + 1 != words.end();
    throw ConfigError({{.file = "command line",
                        .message = "no experiment is named",
                        .expected = "one or more files before the overrides",
                        .nearest = has_option ? fmt::format("files stand without an option: compare {}", *(option + 1))
                                              : "see primus-cli projection compare --help"}});
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

/// A file that is not there is no layout that is not legal.
void refuse_missing(const std::vector<std::string>& files) {
  std::vector<Problem> problems;
  for (const std::string& file : files) {
    std::error_code error;
    if (std::filesystem::exists(file, error)) continue;
    problems.push_back({.file = file, .message = fmt::format("file '{}' does not exist", file)});
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

/// An override of a key that is swept would be replaced in every row.
void refuse_swept_overrides(const CompareOptions& options) {
  const std::vector<std::string> swept = projection::swept_keys(options.axes);
  std::vector<Problem> ignored;
  for (const config::Override& item : config::parse_overrides(options.projection.read.overrides, ignored)) {
    const config::Key* key = config::find_key(item.key);
    if (!key || std::find(swept.begin(), swept.end(), key->name) == swept.end()) continue;
    throw ConfigError({{.file = "command line",
                        .key = item.written,
                        .message = "is swept, so that no row would have this value",
                        .expected = "it among the values of --sweep, or not at all",
                        .found = config::found_text(item.value)}});
  }
}

std::string answer(const Comparison& comparison, const std::string& format) {
  if (format == "json") return compare_json(comparison).dump(2) + "\n";
  if (format == "csv") return compare_csv(comparison);
  return format == "html" ? compare_page(comparison) : compare_text(comparison);
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
  const std::string format = chosen_format(app, options.answer, kFormats, launch);
  std::vector<RunFile> read;
  for (const std::string& file : files) read.push_back({file, "the experiment"});
  refuse_writing_over(options.answer.out, "--out", read);
  refuse_ours_only(app, options.accounting);
  refuse_missing(files);
  refuse_swept_overrides(options);
  Comparison comparison{.rows = {}, .device = device_of(options.projection), .accounting = options.accounting};
  comparison.rows = rows_of(options, files, launch);
  const std::vector<Row>& rows = comparison.rows;
  // Where no layout is legal, nothing was projected: the first reason is the answer.
  if (std::none_of(rows.begin(), rows.end(), [](const Row& row) { return row.projected.has_value(); })) {
    throw UserError(rows.front().refusal, ExitCode::kWrongInput);
  }
  write_answer(answer(comparison, format), options.answer, format, launch);
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
