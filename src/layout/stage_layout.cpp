#include "layout/stage_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "config/rules.hpp"

namespace primus::layout {
namespace {

using config::Experiment;
using config::PipelineLayout;

[[noreturn]] void refuse(const std::string& message) {
  throw UserError(message, ExitCode::kWrongInput);
}

}  // namespace

StageLayout::StageLayout(const PipelineLayout& layout, int num_ranks, StagePlacement placement)
    : num_ranks_(num_ranks), placement_(placement) {
  const std::int64_t num_stages = layout.num_stages();
  if (num_ranks < 1 || num_stages < 1 || num_stages % num_ranks != 0) {
    refuse(fmt::format("{} pipeline stages do not divide over {} ranks", num_stages, num_ranks));
  }
  if (placement == StagePlacement::kV && num_stages != 2 * std::int64_t{num_ranks}) {
    refuse(fmt::format("a V-shaped schedule has two stages on each of {} ranks, found {}", num_ranks, num_stages));
  }
  int layer = 0;
  for (const config::PipelineStage& stage : layout.stages) {
    if (stage.num_layers < 0) refuse(fmt::format("a stage of {} layers", stage.num_layers));
    stages_.push_back({.embedding = stage.num_embeddings > 0 ? model::Part::kPresent : model::Part::kAbsent,
                       .first_layer = layer,
                       .num_layers = static_cast<int>(stage.num_layers),
                       .num_mtp_layers = static_cast<int>(stage.num_mtp_layers),
                       .output = stage.num_losses > 0 ? model::Part::kPresent : model::Part::kAbsent});
    layer += static_cast<int>(stage.num_layers);
  }
}

StagePlace StageLayout::place(int stage) const {
  PRIMUS_CHECK(stage >= 0 && stage < num_stages(), "stage {} of {}", stage, num_stages());
  const int chunk = stage / num_ranks_;
  const int offset = stage % num_ranks_;
  const bool goes_up = placement_ == StagePlacement::kV && chunk == 1;
  return {.rank = goes_up ? num_ranks_ - 1 - offset : offset, .chunk = chunk};
}

int StageLayout::stage_at(StagePlace place) const {
  PRIMUS_CHECK(place.rank >= 0 && place.rank < num_ranks_ && place.chunk >= 0 && place.chunk < num_chunks(),
               "chunk {} of rank {}", place.chunk, place.rank);
  const bool goes_up = placement_ == StagePlacement::kV && place.chunk == 1;
  return place.chunk * num_ranks_ + (goes_up ? num_ranks_ - 1 - place.rank : place.rank);
}

std::vector<model::StageContent> StageLayout::on_rank(int rank) const {
  std::vector<model::StageContent> chunks;
  for (int chunk = 0; chunk < num_chunks(); ++chunk) chunks.push_back(stage(stage_at({rank, chunk})));
  return chunks;
}

StagePlace StageLayout::place_of_layer(int layer) const {
  for (int index = 0; index < num_stages(); ++index) {
    const model::StageContent& content = stage(index);
    if (layer >= content.first_layer && layer < content.first_layer + content.num_layers) return place(index);
  }
  PRIMUS_CHECK(false, "layer {} lives on no stage", layer);
}

std::vector<int> StageLayout::layers_by_stage() const {
  std::vector<int> counts;
  for (const model::StageContent& content : stages_) counts.push_back(content.num_layers);
  return counts;
}

std::vector<int> StageLayout::embedding_ranks(model::OutputWeight output_weight) const {
  std::set<int> ranks;
  for (int index = 0; index < num_stages(); ++index) {
    const model::StageContent& content = stage(index);
    const bool is_tied_output =
        content.output == model::Part::kPresent && output_weight == model::OutputWeight::kTiedToEmbedding;
    if (content.embedding == model::Part::kPresent || content.num_mtp_layers > 0 || is_tied_output) {
      ranks.insert(place(index).rank);
    }
  }
  return {ranks.begin(), ranks.end()};
}

PipelineLayout pipeline_layout(const Experiment& experiment) {
  auto layout = config::stages_of(experiment);
  PRIMUS_CHECK(layout.has_value(), "layers that do not divide over the pipeline passed validation");
  return *std::move(layout);
}

StageLayout stage_layout(const Experiment& experiment) {
  const std::int64_t num_ranks = experiment.get_int("pipeline_model_parallel_size");
  const bool is_v = num_ranks > 1 && config::is_v_shaped(experiment);
  return {pipeline_layout(experiment), static_cast<int>(num_ranks),
          is_v ? StagePlacement::kV : StagePlacement::kRoundRobin};
}

}  // namespace primus::layout
