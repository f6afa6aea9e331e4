#include "view/pipeline_json.hpp"

#include <nlohmann/json.hpp>

namespace primus::view {
namespace {

using Json = nlohmann::ordered_json;

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

Json rank_json(const PipelineChart& chart, std::size_t index) {
  const ChartRank& rank = chart.ranks[index];
  Json json = {
      {"rank", index},     {"forward", rank.forward}, {"backward", rank.backward},   {"weight_grad", rank.weight_grad},
      {"busy", rank.busy}, {"end", rank.end},         {"bubble", chart.bubble(rank)}};
  if (rank.memory) json["memory"] = *rank.memory;
  json["boxes"] = Json::array();
  for (const Box& box : rank.boxes) {
    Json entry = {{"kind", code(box.kind)}, {"micro_batch", box.micro_batch}, {"chunk", box.chunk}};
    entry["start"] = box.start;
    entry["end"] = box.end;
    if (box.part != RowPart::kAll) entry["paired"] = true;
    json["boxes"].push_back(std::move(entry));
  }
  if (rank.held.empty()) return json;
  json["held"] = Json::array();
  for (const schedule::Held& held : rank.held) json["held"].push_back({held.time, held.amount});
  return json;
}

}  // namespace

Json pipeline_json(const PipelinePicture& picture) {
  Json json = {{"title", picture.title},
               {"basis", picture.basis},
               {"time_unit", picture.time_unit},
               {"memory_unit", picture.memory_unit},
               {"charts", Json::array()}};
  for (const PipelineChart& chart : picture.charts) {
    Json entry = {{"name", chart.name},         {"note", chart.note},
                  {"step", chart.step},         {"mean_bubble", chart.mean_bubble()},
                  {"chunks", chart.num_chunks}, {"micro_batches", chart.num_micro_batches}};
    if (chart.formula_bubble) entry["formula_bubble"] = *chart.formula_bubble;
    if (const auto peak = chart.peak_memory()) entry["peak_memory"] = *peak;
    entry["ranks"] = Json::array();
    for (std::size_t rank = 0; rank < chart.ranks.size(); ++rank) entry["ranks"].push_back(rank_json(chart, rank));
    json["charts"].push_back(std::move(entry));
  }
  return json;
}

Json actions_json(const schedule::Schedule& schedule) {
  Json ranks = Json::array();
  for (const std::vector<schedule::Action>& actions : schedule.ranks) {
    Json list = Json::array();
    for (const schedule::Action& action : actions) {
      Json entry = {{"action", schedule::name(action.kind)}};
      if (schedule::is_compute(action.kind) || schedule::is_message(action.kind)) {
        entry["micro_batch"] = action.micro_batch.value;
      }
      if (action.kind != schedule::ActionKind::kOptimizerStep) entry["chunk"] = action.chunk.value;
      if (action.pairing == schedule::Pairing::kWithNext) entry["with_next"] = true;
      if (action.kind == schedule::ActionKind::kBackward) {
        entry["weight_grad"] = action.weight_grad == schedule::WeightGrad::kApart  ? "apart"
                               : action.weight_grad == schedule::WeightGrad::kLate ? "late"
                                                                                   : "included";
      }
      list.push_back(std::move(entry));
    }
    ranks.push_back(std::move(list));
  }
  return ranks;
}

}  // namespace primus::view
