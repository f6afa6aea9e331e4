#include "view/pipeline_json.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace primus::view {
namespace {

std::string_view code(BoxKind kind) {
  switch (kind) {
    case BoxKind::kForward:
      return "F";
    case BoxKind::kBackward:
      return "B";
    case BoxKind::kWholeBackward:
      return "BW";
    case BoxKind::kWeightGrad:
      return "W";
  }
  return "?";
}

std::string_view weight_grad_text(schedule::WeightGrad weight_grad) {
  switch (weight_grad) {
    case schedule::WeightGrad::kApart:
      return "apart";
    case schedule::WeightGrad::kLate:
      return "late";
    default:
      return "included";
  }
}

class Writer {
 public:
  std::string write(const PipelinePicture& picture, std::span<const schedule::Schedule> tables,
                    const std::string& planned) {
    PRIMUS_CHECK(tables.empty() || tables.size() == picture.charts.size(), "{} tables of {} charts", tables.size(),
                 picture.charts.size());
    text_.reserve(expected_size(picture, tables));
    add("{{\n\"ok\": true,\n\"title\": {},\n\"basis\": {},\n\"time_unit\": {},\n\"memory_unit\": {},\n",
        quoted(picture.title), quoted(picture.basis), quoted(picture.time_unit), quoted(picture.memory_unit));
    if (!planned.empty()) add("\"planned\": {},\n", quoted(planned));
    add("\"charts\": [");
    for (std::size_t i = 0; i < picture.charts.size(); ++i) {
      begin_item(i);
      write_chart(picture.charts[i], tables.empty() ? nullptr : &tables[i]);
    }
    add("\n]\n}}");
    return std::move(text_);
  }

 private:
  /// About as much as will be written: growing would copy megabytes again and again.
  static std::size_t expected_size(const PipelinePicture& picture, std::span<const schedule::Schedule> tables) {
    constexpr std::size_t kBox = 110;
    constexpr std::size_t kHeld = 44;
    constexpr std::size_t kAction = 72;
    std::size_t size = 4096;
    for (const PipelineChart& chart : picture.charts) {
      for (const ChartRank& rank : chart.ranks) size += 400 + kBox * rank.boxes.size() + kHeld * rank.held.size();
    }
    for (const schedule::Schedule& table : tables) {
      for (const auto& actions : table.ranks) size += kAction * actions.size();
    }
    return size;
  }

  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  static std::string quoted(const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  void begin_item(std::size_t index) { text_ += index == 0 ? "\n" : ",\n"; }

  void write_chart(const PipelineChart& chart, const schedule::Schedule* table) {
    add("{{\"name\": {}, \"note\": {}, \"step\": {}, \"mean_bubble\": {}, \"chunks\": {}, \"micro_batches\": {}",
        quoted(chart.name), quoted(chart.note), chart.step, chart.mean_bubble(), chart.num_chunks,
        chart.num_micro_batches);
    if (chart.formula_bubble) add(", \"formula_bubble\": {}", *chart.formula_bubble);
    if (const auto peak = chart.peak_memory()) add(", \"peak_memory\": {}", *peak);
    add(",\n\"ranks\": [");
    for (std::size_t rank = 0; rank < chart.ranks.size(); ++rank) {
      begin_item(rank);
      write_rank(chart, rank);
    }
    add("\n]");
    if (table != nullptr) write_actions(*table);
    add("}}");
  }

  void write_rank(const PipelineChart& chart, std::size_t index) {
    const ChartRank& rank = chart.ranks[index];
    add("{{\"rank\": {}, \"forward\": {}, \"backward\": {}, \"weight_grad\": {}, \"busy\": {}, \"end\": {}, "
        "\"bubble\": {}",
        index, rank.forward, rank.backward, rank.weight_grad, rank.busy, rank.end, chart.bubble(rank));
    if (rank.memory) add(", \"memory\": {}", *rank.memory);
    add(",\n\"boxes\": [");
    for (std::size_t i = 0; i < rank.boxes.size(); ++i) {
      begin_item(i);
      write_box(rank.boxes[i]);
    }
    add("]");
    if (!rank.held.empty()) {
      add(",\n\"held\": [");
      for (std::size_t i = 0; i < rank.held.size(); ++i) {
        put(i == 0 ? "[" : ", [", rank.held[i].time);
        put(", ", rank.held[i].amount);
        text_ += ']';
      }
      add("]");
    }
    add("}}");
  }

  void write_actions(const schedule::Schedule& table) {
    add(",\n\"actions\": [");
    for (std::size_t rank = 0; rank < table.ranks.size(); ++rank) {
      begin_item(rank);
      add("[");
      const std::vector<schedule::Action>& actions = table.ranks[rank];
      for (std::size_t i = 0; i < actions.size(); ++i) {
        begin_item(i);
        write_action(actions[i]);
      }
      add("]");
    }
    add("\n]");
  }

  void write_action(const schedule::Action& action) {
    text_ += "{\"action\": \"";
    text_ += schedule::name(action.kind);
    text_ += '"';
    if (schedule::is_compute(action.kind) || schedule::is_message(action.kind)) {
      put(", \"micro_batch\": ", action.micro_batch.value);
    }
    if (action.kind != schedule::ActionKind::kOptimizerStep) put(", \"chunk\": ", action.chunk.value);
    if (action.pairing == schedule::Pairing::kWithNext) text_ += ", \"with_next\": true";
    if (action.kind == schedule::ActionKind::kBackward) {
      text_ += ", \"weight_grad\": \"";
      text_ += weight_grad_text(action.weight_grad);
      text_ += '"';
    }
    text_ += '}';
  }

  void write_box(const Box& box) {
    text_ += "{\"kind\": \"";
    text_ += code(box.kind);
    put("\", \"micro_batch\": ", box.micro_batch);
    put(", \"chunk\": ", box.chunk);
    put(", \"start\": ", box.start);
    put(", \"end\": ", box.end);
    text_ += box.part == RowPart::kAll ? "}" : ", \"paired\": true}";
  }

  /// A label and a number; there are so many that a format string for each would take half of the time.
  template <typename Number>
  void put(std::string_view label, Number number) {
    std::array<char, 32> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    text_ += label;
    text_.append(digits.data(), end);
  }

  std::string text_;
};

}  // namespace

std::string pipeline_json(const PipelinePicture& picture, std::span<const schedule::Schedule> tables,
                          const std::string& planned) {
  return Writer().write(picture, tables, planned);
}

}  // namespace primus::view
