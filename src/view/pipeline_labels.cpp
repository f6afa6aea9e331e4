#include "view/pipeline_labels.hpp"

#include <fmt/format.h>

#include <cmath>

#include "base/text.hpp"

namespace primus::view {
namespace {

/// "1 activation", "11.5 activations", "3.2 GB".
std::string amount(double value, const std::string& unit) {
  const std::string text = memory_figure(value, unit);
  const bool is_one = text == "1" && unit.ends_with("s");
  return fmt::format("{} {}", text, is_one ? unit.substr(0, unit.size() - 1) : unit);
}

}  // namespace

std::string figure(double value) {
  const double size = std::abs(value);
  if (size >= 1e15) return fmt::format("{:.4g}", value);
  if (size >= 1000.0) return format_count(std::llround(value));
  std::string text = fmt::format("{:.{}f}", value, size >= 100.0 ? 1 : size >= 10.0 ? 2 : 3);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string memory_figure(double amount, const std::string& unit) {
  return unit.ends_with("B") ? fmt::format("{:.2f}", amount) : figure(amount);
}

std::string chart_facts(const PipelineChart& chart, const PipelinePicture& picture) {
  std::string text = counted(std::ssize(chart.ranks), "rank");
  if (chart.num_chunks > 1) text += fmt::format(", {} chunks each", chart.num_chunks);
  text += fmt::format(", {}; step {} {}; mean bubble {:.2f} %", counted(chart.num_micro_batches, "micro-batch"),
                      figure(chart.step), picture.time_unit, 100.0 * chart.mean_bubble());
  if (chart.formula_bubble) text += fmt::format(" (formula {:.2f} %)", 100.0 * *chart.formula_bubble);
  if (const auto peak = chart.peak_memory()) text += "; peak " + amount(*peak, picture.memory_unit);
  if (!chart.note.empty()) text += "; " + chart.note;
  return text;
}

std::string rank_facts(const PipelineChart& chart, std::size_t rank, const PipelinePicture& picture) {
  const ChartRank& row = chart.ranks[rank];
  std::string text = fmt::format("rank {}: forward {}, backward {}", rank, figure(row.forward), figure(row.backward));
  if (row.weight_grad > 0.0) text += fmt::format(", weight gradients {}", figure(row.weight_grad));
  text += fmt::format(" {}; bubble {:.2f} %", picture.time_unit, 100.0 * chart.bubble(row));
  if (row.memory) text += "; peak " + amount(*row.memory, picture.memory_unit);
  return text;
}

}  // namespace primus::view
