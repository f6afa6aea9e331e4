#include "cli/run_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "view/loss_curve.hpp"

namespace primus::cli {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kLevels = {{
    {"unigram_loss", "unigram model"},
    {"bigram_loss", "bigram model"},
}};

// A loss that is not a number stands as null or text in the file; the picture leaves it out.
std::optional<double> number(const Json& json, std::string_view key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

struct Curves {
  std::string run;
  view::Curve training{"training", {}};
  view::Curve held_out{"held out", {}};
  view::Curve load{"expert load", {}};
  std::vector<view::ReferenceLine> levels;
};

/// Tokens of the busiest expert over the mean, of the layer where it is largest.
std::optional<double> worst_load(const Json& json) {
  const auto loads = json.find("expert_load");
  if (loads == json.end() || !loads->is_array()) return std::nullopt;
  std::optional<double> worst;
  for (const Json& load : *loads) {
    const auto value = load.is_object() ? number(load, "max_over_mean") : std::nullopt;
    if (value) worst = std::max(worst.value_or(*value), *value);
  }
  return worst;
}

void add_line(Curves& curves, const Json& json) {
  if (!json.is_object()) return;
  for (const auto& [key, name] : kLevels) {
    const auto value = number(json, key);
    const bool is_known =
        std::any_of(curves.levels.begin(), curves.levels.end(), [&](const auto& level) { return level.name == name; });
    if (value && !is_known) curves.levels.push_back({std::string(name), *value});
  }
  const auto step = number(json, "iteration");
  if (!step) return;
  if (const auto loss = number(json, "lm_loss")) curves.training.points.push_back({*step, *loss});
  if (const auto load = worst_load(json)) curves.load.points.push_back({*step, *load});
  const bool is_test = json.value("eval_split", "valid") == "test";
  if (const auto loss = number(json, "eval_loss"); loss && !is_test) curves.held_out.points.push_back({*step, *loss});
}

Curves read_curves(const std::filesystem::path& metrics) {
  Curves curves;
  curves.run = metrics.parent_path().filename().string();
  for (const std::string& text : split(read_file(metrics), '\n')) {
    // The last line of a run that was killed may be half a line.
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_discarded()) add_line(curves, json);
  }
  return curves;
}

/// The curves of one run that are asked for, empty ones left out.
std::vector<view::Curve> wanted(const Curves& run, Drawn drawn, const std::filesystem::path& metrics) {
  std::vector<view::Curve> curves;
  const auto add = [&](const view::Curve& curve) {
    if (!curve.points.empty()) curves.push_back(curve);
  };
  if (drawn == Drawn::kLoss || drawn == Drawn::kTraining) add(run.training);
  if (drawn == Drawn::kLoss || drawn == Drawn::kHeldOut) add(run.held_out);
  if (drawn == Drawn::kExpertLoad) add(run.load);
  if (!curves.empty()) return curves;
  const char* expected = drawn == Drawn::kExpertLoad ? "iteration and expert_load (moe_per_layer_logging)"
                         : drawn == Drawn::kHeldOut  ? "iteration and eval_loss"
                                                     : "iteration and lm_loss";
  throw UserError(fmt::format("{}: holds no {} (expected lines with {})", metrics.string(),
                              drawn == Drawn::kExpertLoad ? "expert load" : "loss", expected));
}

LossSummary summary_of(const Curves& run) {
  LossSummary summary{.run = run.run, .num_points = run.training.points.size()};
  if (!run.training.points.empty()) {
    summary.first = run.training.points.front().value;
    summary.last = run.training.points.back().value;
  }
  if (!run.held_out.points.empty()) summary.last_held_out = run.held_out.points.back().value;
  if (!run.load.points.empty()) summary.last_load = run.load.points.back().value;
  return summary;
}

view::LossCurveOptions labels(const std::vector<LossSummary>& runs, Drawn drawn) {
  view::LossCurveOptions options;
  options.title = runs.size() == 1 ? runs.front().run : "";
  if (options.title.empty()) {
    options.title = drawn == Drawn::kExpertLoad ? "expert load" : drawn == Drawn::kHeldOut ? "held-out loss" : "loss";
  }
  if (drawn == Drawn::kExpertLoad) options.y_label = "busiest expert / mean";
  return options;
}

}  // namespace

std::vector<LossSummary> draw_curves(const std::vector<std::filesystem::path>& metrics, Drawn drawn,
                                     const std::filesystem::path& picture) {
  if (metrics.size() > 1 && drawn == Drawn::kLoss) drawn = Drawn::kTraining;
  std::vector<view::Curve> curves;
  std::vector<view::ReferenceLine> levels;
  std::vector<LossSummary> summaries;
  for (const std::filesystem::path& file : metrics) {
    const Curves run = read_curves(file);
    for (view::Curve& curve : wanted(run, drawn, file)) {
      if (metrics.size() > 1) curve.name = run.run;
      curves.push_back(std::move(curve));
    }
    if (levels.empty() && drawn != Drawn::kExpertLoad) levels = run.levels;
    summaries.push_back(summary_of(run));
  }
  write_file(picture, view::loss_curve_svg(curves, levels, labels(summaries, drawn)));
  return summaries;
}

}  // namespace primus::cli
