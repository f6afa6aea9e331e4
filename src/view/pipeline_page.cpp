#include "view/pipeline_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "view/pipeline_colours.hpp"
#include "view/pipeline_labels.hpp"
#include "view/pipeline_page_parts.hpp"
#include "view/svg.hpp"

namespace primus::view {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxShades = 8;  // in the legend

int most_chunks(const PipelinePicture& picture) {
  int most = 1;
  for (const PipelineChart& chart : picture.charts) most = std::max(most, chart.num_chunks);
  return most;
}

double largest_held(const PipelineChart& chart) {
  double largest = 0.0;
  for (const ChartRank& rank : chart.ranks) {
    for (const schedule::Held& held : rank.held) largest = std::max(largest, held.amount);
  }
  return largest;
}

Json chart_data(const PipelineChart& chart) {
  const double largest = largest_held(chart);
  Json json = {{"step", chart.step},
               {"chunks", chart.num_chunks},
               {"largest", largest},
               {"hasMemory", chart.peak_memory().has_value()},
               {"ranks", Json::array()}};
  for (const ChartRank& rank : chart.ranks) {
    Json row = {{"bubble", chart.bubble(rank)}, {"boxes", packed_boxes(rank, chart.step)}};
    if (rank.memory) row["memory"] = *rank.memory;
    if (!rank.held.empty()) row["curve"] = packed_curve(rank, chart.step, largest);
    json["ranks"].push_back(std::move(row));
  }
  return json;
}

Json page_data(const PipelinePicture& picture, ColourBy colour_by) {
  Json json = {{"timeUnit", picture.time_unit},
               {"memoryUnit", picture.memory_unit},
               {"colourBy", colour_by == ColourBy::kPass ? "pass" : "micro-batch"},
               {"ticks", kPackedTicks},
               {"levels", kPackedLevels},
               {"passColours", Json::array()},
               {"microBatchColours", Json::array()},
               {"charts", Json::array()}};
  for (int kind = 0; kind < kNumBoxKinds; ++kind) {
    Json shades = Json::array();
    for (int chunk = 0; chunk < most_chunks(picture); ++chunk) {
      shades.push_back(pass_colour(static_cast<BoxKind>(kind), chunk, most_chunks(picture)).hex());
    }
    json["passColours"].push_back(std::move(shades));
  }
  for (int m = 0; m < kNumMicroBatchColours; ++m) json["microBatchColours"].push_back(micro_batch_colour(m).hex());
  for (const PipelineChart& chart : picture.charts) json["charts"].push_back(chart_data(chart));
  return json;
}

std::string legend(const PipelinePicture& picture) {
  std::string text;
  const int num_chunks = most_chunks(picture);
  for (const BoxKind kind : {BoxKind::kForward, BoxKind::kBackward, BoxKind::kWeightGrad}) {
    text += "<span class=\"key\">";
    for (int chunk = 0; chunk < std::min(num_chunks, kMaxShades); ++chunk) {
      text += fmt::format("<i style=\"background:{}\" title=\"chunk {}\"></i>",
                          pass_colour(kind, chunk, num_chunks).hex(), chunk);
    }
    text += fmt::format("{}</span>", name(kind));
  }
  if (num_chunks > 1) text += "<span class=\"key\">lighter: later chunks</span>";
  const bool has_curves = std::any_of(picture.charts.begin(), picture.charts.end(),
                                      [](const PipelineChart& chart) { return largest_held(chart) > 0.0; });
  if (has_curves) {
    text += fmt::format("<span class=\"key\"><i style=\"background:var(--held)\"></i>held beneath, {}</span>",
                        escaped(picture.memory_unit));
  }
  return text;
}

std::string rank_table(const PipelineChart& chart, const PipelinePicture& picture) {
  std::string text = fmt::format(
      "<details><summary>sums of every rank, in {}</summary><table><tr><th>rank</th><th>forward</th><th>backward</th>"
      "<th>weight gradient</th><th>bubble %</th><th>peak {}</th></tr>",
      escaped(picture.time_unit), escaped(picture.memory_unit));
  for (std::size_t rank = 0; rank < chart.ranks.size(); ++rank) {
    const ChartRank& row = chart.ranks[rank];
    fmt::format_to(std::back_inserter(text),
                   "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2f}</td><td>{}</td></tr>\n", rank,
                   figure(row.forward), figure(row.backward), figure(row.weight_grad), 100.0 * chart.bubble(row),
                   row.memory ? memory_figure(*row.memory, picture.memory_unit) : "");
  }
  return text + "</table></details>\n";
}

/// JSON inside a script element: no text of a user can end it.
std::string script_safe(std::string json) {
  std::string safe;
  safe.reserve(json.size());
  for (const char c : json) safe += c == '<' ? "\\u003c" : std::string(1, c);
  return safe;
}

constexpr std::string_view kTools =
    "<span class=\"tool\"><button id=\"out\" title=\"- key\">zoom out</button> <button id=\"in\" title=\"+ key\">zoom "
    "in</button> <button id=\"fit\" title=\"0 key\">fit</button></span>\n"
    "<label class=\"tool\">colour by <select id=\"colour\"><option value=\"pass\">pass</option><option "
    "value=\"micro-batch\">micro-batch</option></select></label>\n"
    "<label class=\"tool\">row height <input id=\"height\" type=\"range\" min=\"0.4\" max=\"4\" step=\"0.1\" "
    "value=\"1\"></label>\n"
    "<label class=\"tool\">only micro-batch <input id=\"pick\" type=\"number\" min=\"0\"></label>\n";

}  // namespace

std::string pipeline_page(const PipelinePicture& picture, ColourBy colour_by) {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n"
      "<h1>{0}</h1>\n<div class=\"bar\">{2}<span id=\"passes\">{3}</span></div>\n"
      "<p>{4} <span class=\"tool\">Ctrl + wheel zooms, dragging moves, a double click shows all.</span></p>\n",
      escaped(picture.title), kPipelinePageStyle, kTools, legend(picture), escaped(picture.basis));
  for (std::size_t i = 0; i < picture.charts.size(); ++i) {
    const PipelineChart& chart = picture.charts[i];
    const std::string facts = escaped(chart_facts(chart, picture));
    fmt::format_to(std::back_inserter(page),
                   "<h2>{}</h2>\n<p>{}</p>\n<div class=\"chart\" id=\"chart{}\"><canvas role=\"img\" "
                   "aria-label=\"{}\"></canvas><canvas aria-hidden=\"true\"></canvas></div>\n{}",
                   escaped(chart.name), facts, i, facts, rank_table(chart, picture));
  }
  page += "<div id=\"tip\"></div>\n<noscript><p>The timelines are drawn by the script in this page.</p></noscript>\n";
  page += "<script type=\"application/json\" id=\"data\">" +
          script_safe(page_data(picture, colour_by).dump(-1, ' ', false, Json::error_handler_t::replace)) +
          "</script>\n<script>";
  page += kPipelinePageScript;
  page += "</script>\n</body>\n</html>\n";
  return page;
}

}  // namespace primus::view
