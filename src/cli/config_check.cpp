// config check: many experiments at once.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"
#include "cli/app.hpp"
#include "cli/config_common.hpp"
#include "cli/terminal.hpp"
#include "model/model_spec.hpp"
#include "model/parameters.hpp"

namespace primus::cli {
namespace {

struct CheckOptions {
  std::vector<std::string> files;
  std::vector<std::string> overrides;  // of every file
  bool as_train = false;
  std::string format = "text";
};

void add_options(CLI::App& app, CheckOptions& options) {
  app.add_flag("--train", options.as_train, "Planned keys are faults, as for a real train");
  add_format_option(app, options.format, {"text", "json"});
}

/// What became of one file.
struct Verdict {
  std::string file;
  std::vector<Problem> problems;
  std::optional<config::Resolution> resolution;
};

/// The files stand before any override; behind `--` all are files, whatever they begin with.
std::vector<std::string> take_files(std::vector<std::string>& words) {
  if (words.size() > 1 && words.front() == "--") {
    std::vector<std::string> files(words.begin() + 1, words.end());
    words.clear();
    return files;
  }
  const auto end = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with("-") || (word.find('=') != std::string::npos && word.find(".yaml") == std::string::npos);
  });
  std::vector<std::string> files(words.begin(), end);
  words.erase(words.begin(), end);
  if (files.empty()) {
    throw ConfigError({{.file = "command line",
                        .message = "no experiment is named",
                        .expected = "X.yaml..., before the overrides",
                        .nearest = "see primus-cli config check --help"}});
  }
  return files;
}

Verdict check(const std::string& file, const CheckOptions& options, const LaunchOptions& launch) {
  const config::Purpose purpose = options.as_train ? config::Purpose::kTrain : config::Purpose::kPlan;
  Verdict verdict{file, {}, {}};
  try {
    verdict.resolution = resolve_here({file, options.overrides, purpose, {}}, "", launch);
  } catch (const ConfigError& error) {
    verdict.problems = error.problems();
  } catch (const UserError& error) {
    verdict.problems = {{.file = file, .message = error.what()}};
  }
  return verdict;
}

std::string summary(const config::Resolution& resolution) {
  const model::ModelSpec spec = model::build_model_spec(resolution.experiment);
  const auto total = static_cast<double>(model::count_parameters(spec).total);
  std::string text = fmt::format("{} parameters, {} process{}", format_short_count(total), resolution.world.size,
                                 resolution.world.size == 1 ? "" : "es");
  const auto add = [&](std::size_t count, std::string_view what) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  };
  add(resolution.notes.size(), resolution.notes.size() == 1 ? "note" : "notes");
  add(resolution.no_effect.size(), "without effect");
  add(resolution.planned.size(), "planned (a real train refuses them)");
  return text;
}

void print_text(const std::vector<Verdict>& verdicts) {
  std::size_t num_failed = 0;
  for (const Verdict& verdict : verdicts) {
    if (verdict.resolution) {
      fmt::print("{}  {}: {}\n", coloured("ok", Colour::kGreen, stdout), visible(verdict.file),
                 summary(*verdict.resolution));
      continue;
    }
    ++num_failed;
    fmt::print("{}  {}: {}\n", coloured("FAILED", Colour::kRed, stdout), visible(verdict.file),
               counted(std::ssize(verdict.problems), "problem"));
    for (const Problem& problem : verdict.problems) fmt::print("    {}\n", to_text(problem));
  }
  if (verdicts.size() > 1) fmt::print("{} checked, {} failed\n", verdicts.size(), num_failed);
}

void print_as_json(const std::vector<Verdict>& verdicts) {
  const bool is_ok =
      std::all_of(verdicts.begin(), verdicts.end(), [](const Verdict& v) { return v.resolution.has_value(); });
  const ExitCode code = is_ok ? ExitCode::kDone : ExitCode::kWrongInput;
  Json json = {{"ok", is_ok}, {"exit_code", static_cast<int>(code)}, {"files", Json::array()}};
  for (const Verdict& verdict : verdicts) {
    Json entry = {{"file", verdict.file}, {"ok", verdict.resolution.has_value()}};
    if (verdict.resolution) {
      const model::ParameterCount count =
          model::count_parameters(model::build_model_spec(verdict.resolution->experiment));
      entry["parameters"] = {{"total", count.total}, {"active", count.active}};
      entry["world"] = verdict.resolution->world.size;
      entry["notes"] = verdict.resolution->notes.size();
      entry["no_effect"] = verdict.resolution->no_effect.size();
      entry["planned"] = verdict.resolution->planned.size();
    } else {
      entry["problems"] = Json::array();
      for (const Problem& problem : verdict.problems) entry["problems"].push_back(json_of(problem));
    }
    json["files"].push_back(std::move(entry));
  }
  print_json(json);
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  CheckOptions options;
  CLI::App app("Check experiments: a line each, with every problem of those that fail. Exit code 2 if one does.",
               "primus-cli config check");
  add_options(app, options);
  app.footer(
      "examples\n  primus-cli config check examples/megatron/configs/MI355X/*.yaml\n"
      "  primus-cli config check exp.yaml --train --format json\n"
      "  primus-cli config check a.yaml b.yaml --micro_batch_size 2");
  if (parse_options(app, words, Rest::kReturn, options.overrides) == Parsed::kHelpShown) return 0;
  options.files = take_files(options.overrides);
  std::vector<Verdict> verdicts;
  int code = 0;
  for (const std::string& file : options.files) {
    verdicts.push_back(check(file, options, launch));
    if (!verdicts.back().resolution) code = static_cast<int>(ExitCode::kWrongInput);
  }
  const bool is_json = format_of(options.format) == Format::kJson || launch.format == Format::kJson;
  is_json ? print_as_json(verdicts) : print_text(verdicts);
  return code;
}

}  // namespace

const Command kConfigCheck = {"config",
                              "check",
                              "X... [overrides for all]",
                              "many experiments, a line each",
                              Starts::kNothing,
                              Rest::kReturn,
                              "experiment",
                              [](CLI::App& app) {
                                static CheckOptions unused;
                                add_options(app, unused);
                              },
                              run};

}  // namespace primus::cli
