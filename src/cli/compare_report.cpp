#include "cli/compare_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "base/visible.hpp"
#include "cli/projection_compat.hpp"
#include "cli/projection_report.hpp"
#include "cli/records_csv.hpp"
#include "projection/verdict.hpp"
#include "view/picture_page.hpp"
#include "view/stacked_bars.hpp"

namespace primus::cli {
namespace {

using projection::Category;
using projection::RankMemory;

/// A column for people; the last one is the total.
struct Column {
  std::string title;
  std::string text;
};

std::vector<Column> own_columns(const Projected& projected) {
  const RankMemory& rank = projected.memory.worst();
  const auto bytes = [&](Category category) { return gib_text(rank.bytes(category)); };
  return {{"ranks", std::to_string(projected.inputs.grid.sizes().world)},
          {"stage", std::to_string(rank.pipeline_rank)},
          {"weights", bytes(Category::kParameters)},
          {"gradients", bytes(Category::kGradients)},
          {"optimizer", bytes(Category::kOptimizer)},
          {"activations", bytes(Category::kActivations)},
          {"transient", gib_text(rank.transient())},
          {"framework", bytes(Category::kFramework)},
          {"total", gib_text(rank.total())}};
}

std::vector<Figure> figures_of(const Projected& projected, const std::string& accounting) {
  return accounting == "blog" ? blog_figures(projected) : primus_figures(projected);
}

std::vector<Column> columns_of(const Projected& projected, const std::string& accounting) {
  if (accounting == "ours") return own_columns(projected);
  std::vector<Column> columns = {{"ranks", std::to_string(projected.inputs.grid.sizes().world)}};
  for (const Figure& figure : figures_of(projected, accounting)) columns.push_back({figure.title, figure.text});
  return columns;
}

std::string verdict_of(const Projected& projected, const Comparison& comparison) {
  if (!comparison.device) return "";
  const std::int64_t memory = comparison.device->memory_bytes;
  if (comparison.accounting == "ours")
    return std::string(projection::name(projection::fit_of(projected.memory.worst(), memory)));
  const double total = figures_of(projected, comparison.accounting).back().value;
  return std::string(
      projection::name(total <= static_cast<double>(memory) ? projection::Fit::kFits : projection::Fit::kNot));
}

/// The columns' titles, by the first layout that is legal.
std::vector<std::string> titles_of(const Comparison& comparison) {
  std::vector<std::string> titles;
  for (const CompareRow& row : comparison.rows) {
    if (!row.projected) continue;
    for (const Column& column : columns_of(*row.projected, comparison.accounting)) titles.push_back(column.title);
    break;
  }
  return titles;
}

std::string unit_of(const Comparison& comparison) {
  return comparison.accounting == "blog" ? "10^9 bytes" : "GiB";
}

std::string footnote(const Comparison& comparison) {
  if (comparison.accounting == "blog") return "as the deep-dive's figures count the first rank: docs/projection.md";
  const std::string stage = "each layout's largest pipeline rank (stage)";
  return comparison.accounting == "ours" ? stage
                                         : stage + " as the original's projection counts it: docs/projection.md";
}

std::string bars_of(const Comparison& comparison) {
  view::BarChart chart{.title = "Projected memory by layout",
                       .subtitle = "each layout's largest pipeline rank",
                       .unit = "GiB",
                       .series = {},
                       .bars = {},
                       .limit = {}};
  const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 0x1p30; };
  for (int i = 0; i < projection::kNumCategories; ++i)
    chart.series.emplace_back(projection::name(static_cast<Category>(i)));
  for (const CompareRow& row : comparison.rows) {
    if (!row.projected) continue;
    view::StackedBar bar{row.label, {}};
    for (int i = 0; i < projection::kNumCategories; ++i)
      bar.values.push_back(gib(row.projected->memory.worst().bytes(static_cast<Category>(i))));
    chart.bars.push_back(std::move(bar));
  }
  if (comparison.device) chart.limit = view::BarLimit{comparison.device->name, gib(comparison.device->memory_bytes)};
  return view::stacked_bars_svg(chart);
}

}  // namespace

std::string compare_text(const Comparison& comparison) {
  const std::string heading = fmt::format("layout ({})", unit_of(comparison));
  std::size_t width = heading.size();
  for (const CompareRow& row : comparison.rows) width = std::max(width, row.label.size());
  width = std::min<std::size_t>(width, 60);
  const std::vector<std::string> titles = titles_of(comparison);
  const auto cell = [&](std::string_view text, std::size_t column) {
    return fmt::format(" {:>{}}", text, std::max<std::size_t>(titles[column].size(), 7));
  };
  std::string text = fmt::format("{:<{}}", heading, width);
  for (std::size_t i = 0; i < titles.size(); ++i) text += cell(titles[i], i);
  text += comparison.device ? "  on " + comparison.device->name + "\n" : "\n";
  for (const CompareRow& row : comparison.rows) {
    text += fmt::format("{:<{}}", row.label, width);
    if (!row.projected) {
      text += fmt::format(" not legal: {}\n", visible(row.refusal));
      continue;
    }
    const std::vector<Column> columns = columns_of(*row.projected, comparison.accounting);
    for (std::size_t i = 0; i < columns.size(); ++i) text += cell(columns[i].text, i);
    text += comparison.device ? "  " + verdict_of(*row.projected, comparison) + "\n" : "\n";
  }
  return text + footnote(comparison) + "\n";
}

Json compare_json(const Comparison& comparison) {
  Json json = {{"ok", true}, {"accounting", comparison.accounting}, {"layouts", Json::array()}};
  for (const CompareRow& row : comparison.rows) {
    Json entry = {{"layout", row.label}, {"legal", row.projected.has_value()}};
    if (!row.projected) {
      entry["problem"] = row.refusal;
      json["layouts"].push_back(std::move(entry));
      continue;
    }
    entry["world_size"] = row.projected->inputs.grid.sizes().world;
    if (comparison.accounting == "ours") {
      const RankMemory& rank = row.projected->memory.worst();
      entry["largest"] = rank_json(rank);
      if (comparison.device) entry["fits"] = rank.total() <= comparison.device->memory_bytes;
    } else {
      const std::vector<Figure> figures = figures_of(*row.projected, comparison.accounting);
      for (const Figure& figure : figures) entry[figure.field] = figure.value;
      if (comparison.device)
        entry["fits"] = figures.back().value <= static_cast<double>(comparison.device->memory_bytes);
    }
    json["layouts"].push_back(std::move(entry));
  }
  return json;
}

std::string compare_csv(const Comparison& comparison) {
  const bool is_own = comparison.accounting == "ours";
  std::vector<std::string> fields;
  for (const CompareRow& row : comparison.rows) {
    if (is_own || !row.projected) continue;
    for (const Figure& figure : figures_of(*row.projected, comparison.accounting)) fields.push_back(figure.field);
    break;
  }
  if (is_own) {
    fields = {"pipeline_rank", "parameters"};
    for (int i = 0; i < projection::kNumCategories; ++i)
      fields.push_back(category_name(static_cast<Category>(i)) + "_bytes");
    fields.emplace_back("total_bytes");
  }
  std::string text = "layout,legal,world_size";
  for (const std::string& field : fields) text += "," + field;
  text += ",problem\n";
  for (const CompareRow& row : comparison.rows) {
    text += csv_field(row.label);
    if (!row.projected) {
      text += ",no," + std::string(fields.size(), ',') + "," + csv_field(row.refusal) + "\n";
      continue;
    }
    text += fmt::format(",yes,{}", row.projected->inputs.grid.sizes().world);
    if (is_own) {
      const RankMemory& rank = row.projected->memory.worst();
      text += fmt::format(",{},{}", rank.pipeline_rank, rank.num_parameters());
      for (int i = 0; i < projection::kNumCategories; ++i)
        text += fmt::format(",{}", rank.bytes(static_cast<Category>(i)));
      text += fmt::format(",{},\n", rank.total());
      continue;
    }
    for (const Figure& figure : figures_of(*row.projected, comparison.accounting))
      text += fmt::format(",{}", figure.value);
    text += ",\n";
  }
  return text;
}

std::string compare_page(const Comparison& comparison) {
  view::PicturePage page;
  page.title = "Layouts compared";
  page.facts.emplace_back("accounting", comparison.accounting + ": " + footnote(comparison));
  if (comparison.device) {
    page.facts.emplace_back(
        "device", fmt::format("{}, {} GiB", comparison.device->name, gib_text(comparison.device->memory_bytes)));
  }
  if (comparison.accounting == "ours") page.pictures.push_back(bars_of(comparison));
  const std::vector<std::string> titles = titles_of(comparison);
  view::PageTable table{.title = fmt::format("By layout ({})", unit_of(comparison)), .head = {"layout"}, .rows = {}};
  table.head.insert(table.head.end(), titles.begin(), titles.end());
  table.text_from = table.head.size();
  if (comparison.device) table.head.emplace_back("verdict");
  view::PageTable refused{.title = "Not legal", .head = {"layout", "why"}, .rows = {}, .text_from = 1};
  for (const CompareRow& row : comparison.rows) {
    if (!row.projected) {
      refused.rows.push_back({row.label, row.refusal});
      continue;
    }
    std::vector<std::string> cells = {row.label};
    for (const Column& column : columns_of(*row.projected, comparison.accounting)) cells.push_back(column.text);
    if (comparison.device) cells.push_back(verdict_of(*row.projected, comparison));
    table.rows.push_back(std::move(cells));
  }
  page.tables.push_back(std::move(table));
  if (!refused.rows.empty()) page.tables.push_back(std::move(refused));
  return view::picture_page(page);
}

}  // namespace primus::cli
