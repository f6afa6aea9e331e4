#include "view/pipeline_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "view/pipeline_labels.hpp"

namespace primus::view {
namespace {

constexpr int kNarrowest = 60;
constexpr std::size_t kMaxBars = 64;  // beyond that some ranks are left out, evenly

struct Cell {
  char letter = '.';
  std::int8_t paint = -1;  // index of a colour; -1: none
};

/// Backgrounds that 256-colour terminals have, for forward, backward, weight gradient, two shades each.
constexpr std::array<int, 6> kBackgrounds = {25, 74, 172, 222, 29, 115};

int paint_of(const Box& box) {
  const int pass = box.kind == BoxKind::kForward ? 0 : box.kind == BoxKind::kWeightGrad ? 2 : 1;
  return 2 * pass + box.chunk % 2;
}

constexpr std::array<char, 6> kLetters = {'F', 'f', 'B', 'b', 'W', 'w'};

char letter_of(const Box& box) {
  return kLetters[static_cast<std::size_t>(paint_of(box))];
}

class Bar {
 public:
  Bar(const ChartRank& rank, double step, int width) : cells_(static_cast<std::size_t>(width)) {
    if (step <= 0.0) return;
    const double scale = width / step;
    std::vector<Shares> shares(cells_.size());
    for (const Box& box : rank.boxes) {
      const double from = box.start * scale;
      const double to = box.end * scale;
      const double height = box.part == RowPart::kAll ? 1.0 : 0.5;
      for (auto i = static_cast<std::size_t>(from); i < cells_.size() && static_cast<double>(i) < to; ++i) {
        const auto left = static_cast<double>(i);
        shares[i][static_cast<std::size_t>(paint_of(box))] +=
            height * (std::min(to, left + 1.0) - std::max(from, left));
      }
    }
    fill(shares);
    for (const Box& box : rank.boxes) {
      if (box.part != RowPart::kLower) label(box, box.start * scale, box.end * scale);
    }
  }

  std::string text(Paint paint) const {
    std::string result;
    int current = -1;
    for (const Cell& cell : cells_) {
      if (paint == Paint::kColoured && cell.paint != current) {
        current = cell.paint;
        result += current < 0 ? "\x1b[0m"
                              : fmt::format("\x1b[38;5;16;48;5;{}m", kBackgrounds[static_cast<std::size_t>(current)]);
      }
      result += cell.letter;
    }
    if (current >= 0) result += "\x1b[0m";
    return result;
  }

 private:
  using Shares = std::array<double, kBackgrounds.size()>;  // of a column, by colour

  /// One letter a column, so that over a few columns each kind, and idle time, has its share of them.
  void fill(const std::vector<Shares>& shares) {
    Shares owed{};
    double owed_idle = 0.0;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      owed_idle += 1.0;
      for (std::size_t kind = 0; kind < owed.size(); ++kind) {
        owed[kind] += shares[i][kind];
        owed_idle -= shares[i][kind];
      }
      const auto most = static_cast<std::size_t>(std::max_element(owed.begin(), owed.end()) - owed.begin());
      if (owed[most] <= owed_idle) {
        owed_idle -= 1.0;
        continue;
      }
      owed[most] -= 1.0;
      cells_[i] = {kLetters[most], static_cast<std::int8_t>(most)};
    }
  }

  /// "F12---": the letter stays, the number follows it, and dashes show how far the box goes.
  void label(const Box& box, double from, double to) {
    const std::string number = std::to_string(box.micro_batch);
    const auto begin = static_cast<std::size_t>(std::lround(from));
    const auto end = std::min(cells_.size(), static_cast<std::size_t>(std::lround(to)));
    if (end < begin + 1 + number.size()) return;
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t place = i - begin;
      const char letter = place == 0 ? letter_of(box) : place <= number.size() ? number[place - 1] : '-';
      cells_[i] = {letter, static_cast<std::int8_t>(paint_of(box))};
    }
  }

  std::vector<Cell> cells_;
};

std::string table(const PipelineChart& chart, const PipelinePicture& picture) {
  const bool has_memory = chart.peak_memory().has_value();
  std::string text = fmt::format("{:>5} {:>10} {:>10} {:>10} {:>10} {:>7} {:>7} {:>7} {:>7}", "rank", "F", "B", "W",
                                 "F+B+W", "F %", "B %", "W %", "bubble");
  if (has_memory) text += fmt::format(" {:>10}", picture.memory_unit.substr(0, 10));
  text += '\n';
  const auto share = [&](double time) { return chart.step > 0.0 ? 100.0 * time / chart.step : 0.0; };
  for (std::size_t rank = 0; rank < chart.ranks.size(); ++rank) {
    const ChartRank& row = chart.ranks[rank];
    text += fmt::format("{:>5} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>7.2f} {:>7.2f} {:>7.2f} {:>7.2f}", rank,
                        row.forward, row.backward, row.weight_grad, row.forward + row.backward + row.weight_grad,
                        share(row.forward), share(row.backward), share(row.weight_grad), 100.0 * chart.bubble(row));
    if (row.memory) text += fmt::format(" {:>10.2f}", *row.memory);
    text += '\n';
  }
  return text;
}

}  // namespace

std::string pipeline_text(const PipelinePicture& picture, int width, Paint paint) {
  constexpr int kLabel = 6;    // "rank" and a space
  constexpr int kFigures = 9;  // " 17.95 %"
  const int bar_width = std::max(width, kNarrowest) - kLabel - kFigures;
  const double longest = picture.longest_step();
  std::string text = fmt::format("{}\n{}\n", picture.title, picture.basis);
  for (const PipelineChart& chart : picture.charts) {
    text += fmt::format("\n{}\n{}\n", chart.name, chart_facts(chart, picture));
    const std::size_t every = (chart.ranks.size() + kMaxBars - 1) / kMaxBars;
    for (std::size_t rank = 0; rank < chart.ranks.size(); rank += every) {
      text += fmt::format("{:>5} {} {:>6.2f} %\n", rank, Bar(chart.ranks[rank], longest, bar_width).text(paint),
                          100.0 * chart.bubble(chart.ranks[rank]));
    }
    text += fmt::format("\ntimes in {}\n{}", picture.time_unit, table(chart, picture));
  }
  return text;
}

}  // namespace primus::view
