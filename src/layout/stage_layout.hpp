#pragma once
// Which layer lives on which pipeline rank, in which chunk: what the schedule, the projection, the viewer and the
// trainer place their work by.
#include <vector>

#include "config/pipeline_layout.hpp"
#include "model/stage_content.hpp"

namespace primus::layout {

/// kRoundRobin: stage i on rank i mod P. kV: down the ranks with the first chunks and up again with the second ones.
enum class StagePlacement { kRoundRobin, kV };

struct StagePlace {
  int rank = 0;
  int chunk = 0;
  bool operator==(const StagePlace&) const = default;
};

class StageLayout {
 public:
  /// `layout` has been accepted by the rules: its stages divide over the ranks, embedding first and loss last. Throws
  /// UserError (wrong input) where they do not, or where V-shaped ranks would not hold two chunks.
  StageLayout(const config::PipelineLayout& layout, int num_ranks, StagePlacement placement);

  int num_ranks() const { return num_ranks_; }
  int num_chunks() const { return num_stages() / num_ranks_; }
  int num_stages() const { return static_cast<int>(stages_.size()); }
  StagePlacement placement() const { return placement_; }

  /// In the order of the layers.
  const model::StageContent& stage(int index) const { return stages_.at(static_cast<std::size_t>(index)); }
  StagePlace place(int stage) const;
  int stage_at(StagePlace place) const;
  /// The chunks of a rank.
  std::vector<model::StageContent> on_rank(int rank) const;
  /// Where a decoder layer lives.
  StagePlace place_of_layer(int layer) const;
  /// Layers of each stage, in order: recomputation counts them from each stage's first.
  std::vector<int> layers_by_stage() const;

  /// Pipeline ranks that hold the word embedding: the first stage's, and those that read it again, for prediction
  /// depths or as a tied output weight. Ascending, each once.
  std::vector<int> embedding_ranks(model::OutputWeight output_weight) const;

 private:
  std::vector<model::StageContent> stages_;
  int num_ranks_;
  StagePlacement placement_;
};

/// The stages of an experiment that the rules have accepted: the layout or the older list that it writes, or an even
/// split with the first and last counts and the accounting for embedding and loss.
config::PipelineLayout pipeline_layout(const config::Experiment& experiment);

StageLayout stage_layout(const config::Experiment& experiment);

}  // namespace primus::layout
