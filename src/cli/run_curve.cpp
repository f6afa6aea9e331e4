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
  view::Curve training{"training", {}};
  view::Curve held_out{"held out", {}};
  std::vector<view::ReferenceLine> levels;
};

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
  const bool is_test = json.value("eval_split", "valid") == "test";
  if (const auto loss = number(json, "eval_loss"); loss && !is_test) curves.held_out.points.push_back({*step, *loss});
}

}  // namespace

LossSummary draw_loss_curve(const std::filesystem::path& metrics, const std::filesystem::path& picture) {
  Curves curves;
  for (const std::string& text : split(read_file(metrics), '\n')) {
    // The last line of a run that was killed may be half a line.
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_discarded()) add_line(curves, json);
  }
  if (curves.training.points.empty() && curves.held_out.points.empty()) {
    throw UserError(fmt::format("{}: holds no loss (expected lines with iteration and lm_loss)", metrics.string()));
  }
  std::vector<view::Curve> drawn;
  for (view::Curve* curve : {&curves.training, &curves.held_out}) {
    if (!curve->points.empty()) drawn.push_back(*curve);
  }
  const std::string run = metrics.parent_path().filename().string();
  write_file(picture, view::loss_curve_svg(drawn, curves.levels, {.title = run.empty() ? "loss" : run}));
  LossSummary summary;
  summary.num_points = curves.training.points.size();
  if (!curves.training.points.empty()) {
    summary.first = curves.training.points.front().value;
    summary.last = curves.training.points.back().value;
  }
  if (!curves.held_out.points.empty()) summary.last_held_out = curves.held_out.points.back().value;
  return summary;
}

}  // namespace primus::cli
