// checkpoint diff: two folders of weights, tensor by tensor.
#include <fmt/format.h>

#include <cmath>

#include "base/text.hpp"
#include "checkpoint/compare.hpp"
#include "cli/app.hpp"
#include "cli/checkpoint_common.hpp"
#include "cli/config_common.hpp"
#include "cli/terminal.hpp"

namespace primus::cli {
namespace {

using checkpoint::TensorDifference;
using Kind = TensorDifference::Kind;

constexpr int kDifferent = 1;
constexpr std::size_t kMostShown = 20;

struct DiffWords {
  std::string first;
  std::string second;
  double tolerance = 0.0;
  std::string format = "text";
  bool all = false;  // CLI11 fills flags
};

void add_options(CLI::App& app, DiffWords& read) {
  app.add_option("X", read.first, "A checkpoint, a run's folder of them, or a Hugging Face model")
      ->required()
      ->type_name("DIR");
  app.add_option("Y", read.second, "Another one")->required()->type_name("DIR");
  app.add_option("--tolerance", read.tolerance, "Relative difference (2-norm) up to which a tensor counts as equal")
      ->type_name("R")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--all", read.all, fmt::format("Name every tensor that differs, not only the first {}", kMostShown));
  add_format_option(app, read.format, {"text", "json"});
}

std::string_view word(Kind kind) {
  switch (kind) {
    case Kind::kOnlyInFirst:
      return "only in x";
    case Kind::kOnlyInSecond:
      return "only in y";
    case Kind::kOtherShape:
      return "other shape";
    case Kind::kOtherType:
      return "other type";
    case Kind::kOtherValues:
      return "other values";
  }
  return "";
}

/// Values that lie near enough count as equal, whatever they are stored as.
void forgive(checkpoint::Comparison& comparison, double tolerance) {
  const auto is_near = [&](const TensorDifference& difference) {
    const bool has_values = difference.kind == Kind::kOtherValues || difference.kind == Kind::kOtherType;
    return has_values && (difference.num_different == 0 || (difference.relative && *difference.relative <= tolerance));
  };
  if (tolerance > 0.0) comparison.num_equal += static_cast<std::int64_t>(std::erase_if(comparison.tensors, is_near));
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json to_json(const TensorDifference& difference) {
  Json json = {{"name", difference.name}, {"part", difference.part}, {"difference", word(difference.kind)}};
  json["x"] = difference.first.empty() ? Json(nullptr) : Json(difference.first);
  json["y"] = difference.second.empty() ? Json(nullptr) : Json(difference.second);
  if (difference.kind != Kind::kOtherValues && difference.kind != Kind::kOtherType) return json;
  json["elements"] = difference.num_elements;
  json["different"] = difference.num_different;
  json["largest"] = number(difference.largest);
  json["relative"] = difference.relative ? number(*difference.relative) : Json(nullptr);
  return json;
}

void print_as_json(const checkpoint::Comparison& comparison, const DiffWords& read) {
  Json json = {{"ok", true}, {"x", read.first}, {"y", read.second}, {"equal", comparison.is_equal()}};
  json["equal_tensors"] = comparison.num_equal;
  json["tensors"] = Json::array();
  for (const TensorDifference& difference : comparison.tensors) json["tensors"].push_back(to_json(difference));
  json["training"] = Json::array();
  for (const checkpoint::FieldDifference& field : comparison.fields)
    json["training"].push_back({{"name", field.name}, {"x", field.first}, {"y", field.second}});
  print_json(json);
}

std::string values_text(const TensorDifference& difference) {
  std::string text =
      fmt::format("{} of {} differ", format_count(difference.num_different), format_count(difference.num_elements));
  if (difference.num_different == 0) return "the same values";
  if (!std::isnan(difference.largest)) text += fmt::format(", by {:.3g} at most", difference.largest);
  if (difference.relative) text += fmt::format(", relative {:.3g}", *difference.relative);
  return text;
}

void print_tensor(const TensorDifference& difference) {
  const std::string name =
      difference.part == checkpoint::kWeight ? difference.name : difference.part + " of " + difference.name;
  switch (difference.kind) {
    case Kind::kOnlyInFirst:
      fmt::print("  {}\n", coloured(fmt::format("- {} ({})", name, difference.first), Colour::kRed, stdout));
      return;
    case Kind::kOnlyInSecond:
      fmt::print("  {}\n", coloured(fmt::format("+ {} ({})", name, difference.second), Colour::kGreen, stdout));
      return;
    case Kind::kOtherShape:
      fmt::print("  {}: {} and {}\n", name, difference.first, difference.second);
      return;
    case Kind::kOtherType:
      fmt::print("  {}: {} and {}, {}\n", name, difference.first, difference.second, values_text(difference));
      return;
    case Kind::kOtherValues:
      fmt::print("  {}: {}\n", name, values_text(difference));
      return;
  }
}

void print_text(const checkpoint::Comparison& comparison, const DiffWords& read) {
  if (comparison.is_equal()) {
    fmt::print("{} and {} are equal: {}\n", read.first, read.second, counted(comparison.num_equal, "tensor"));
    return;
  }
  fmt::print("{}\n{}\n", coloured("- " + read.first, Colour::kRed, stdout),
             coloured("+ " + read.second, Colour::kGreen, stdout));
  const std::size_t shown = read.all ? comparison.tensors.size() : std::min(kMostShown, comparison.tensors.size());
  for (std::size_t i = 0; i < shown; ++i) print_tensor(comparison.tensors[i]);
  if (shown < comparison.tensors.size()) fmt::print("  and {} more (--all)\n", comparison.tensors.size() - shown);
  for (const checkpoint::FieldDifference& field : comparison.fields) {
    const auto side = [](const std::string& value) { return value.empty() ? std::string("nothing") : value; };
    fmt::print("  {}: {} and {}\n", field.name, side(field.first), side(field.second));
  }
  fmt::print("{} equal, {} not\n", counted(comparison.num_equal, "tensor"), comparison.tensors.size());
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  DiffWords read;
  CLI::App app("Compare two folders of weights by our names. Exit code 1: they differ.", "primus-cli checkpoint diff");
  add_options(app, read);
  app.footer(
      "Of two training checkpoints the optimizer's state, position and schedule are compared as well.\n"
      "largest and relative: of the values in fp64, relative to the 2-norm of Y.\n"
      "examples\n  primus-cli checkpoint diff ckpt/mixtral hf/Mixtral-8x7B-v0.1\n"
      "  primus-cli checkpoint diff checkpoints/iter_0000100 checkpoints/iter_0000200 --all");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const checkpoint::StoredModel first = checkpoint::open_model(read.first);
  const checkpoint::StoredModel second = checkpoint::open_model(read.second);
  checkpoint::Comparison comparison;
  {
    ProgressBar bar("diff", Unit::kThings);
    comparison = compare(first, second, [&](std::int64_t done, std::int64_t all) { bar.show(done, all); });
  }
  forgive(comparison, read.tolerance);
  const bool is_json = format_of(read.format) == Format::kJson || launch.format == Format::kJson;
  is_json ? print_as_json(comparison, read) : print_text(comparison, read);
  return comparison.is_equal() ? 0 : kDifferent;
}

}  // namespace

const Command kCheckpointDiff = {"checkpoint",
                                 "diff",
                                 "X Y",
                                 "two of them, tensor by tensor",
                                 Starts::kNothing,
                                 Rest::kRefuse,
                                 "folder",
                                 [](CLI::App& app) {
                                   static DiffWords unused;
                                   add_options(app, unused);
                                 },
                                 run};

}  // namespace primus::cli
