#include "view/pipeline_json.hpp"

#include <fmt/format.h>

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
      const Box& box = rank.boxes[i];
      begin_item(i);
      add("{{\"kind\": \"{}\", \"micro_batch\": {}, \"chunk\": {}, \"start\": {}, \"end\": {}{}}}", code(box.kind),
          box.micro_batch, box.chunk, box.start, box.end, box.part == RowPart::kAll ? "" : ", \"paired\": true");
    }
    add("]");
    if (!rank.held.empty()) {
      add(",\n\"held\": [");
      for (std::size_t i = 0; i < rank.held.size(); ++i) {
        add("{}[{}, {}]", i == 0 ? "" : ", ", rank.held[i].time, rank.held[i].amount);
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
    add("{{\"action\": \"{}\"", schedule::name(action.kind));
    if (schedule::is_compute(action.kind) || schedule::is_message(action.kind)) {
      add(", \"micro_batch\": {}", action.micro_batch.value);
    }
    if (action.kind != schedule::ActionKind::kOptimizerStep) add(", \"chunk\": {}", action.chunk.value);
    if (action.pairing == schedule::Pairing::kWithNext) add(", \"with_next\": true");
    if (action.kind == schedule::ActionKind::kBackward) {
      add(", \"weight_grad\": \"{}\"", weight_grad_text(action.weight_grad));
    }
    add("}}");
  }

  std::string text_;
};

}  // namespace

std::string pipeline_json(const PipelinePicture& picture, std::span<const schedule::Schedule> tables,
                          const std::string& planned) {
  return Writer().write(picture, tables, planned);
}

}  // namespace primus::view
