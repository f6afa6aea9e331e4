#pragma once
// Which rank is in which group. Dense layers see the ranks of one stage as TP x CP x DP, experts see the same ranks as
// ETP x EP x expert-DP; only the pipeline is common to both (semantics.md 1.2, 2.1).
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "config/experiment.hpp"

namespace primus::layout {

enum class GroupKind {
  kTensor,
  kContext,
  kData,
  kDataContext,    // sums a dense parameter's gradient, shares its optimizer state
  kTensorContext,  // holds one sequence
  kTensorData,     // tensor and data ranks of one context rank
  kModel,          // tensor and pipeline ranks: one copy of the dense parameters
  kPipeline,
  kExpertTensor,
  kExpert,  // exchanges tokens
  kExpertTensorExpert,
  kExpertData,   // sums an expert parameter's gradient, shares its optimizer state
  kExpertModel,  // expert tensor, expert and pipeline ranks: one copy of the experts
};
inline constexpr int kNumGroupKinds = 13;
std::string_view name(GroupKind kind);

struct GridSizes {
  std::int64_t world = 1;
  std::int64_t tensor = 1;
  std::int64_t context = 1;
  std::int64_t pipeline = 1;
  std::int64_t expert = 1;
  std::int64_t expert_tensor = 1;
};

/// Which of two axes changes faster with the rank: Megatron's usual order, or that of use_tp_pp_dp_mapping.
enum class RankOrder { kDataBeforePipeline, kPipelineBeforeData };

/// A rank's index in every axis, in both foldings.
struct RankPlace {
  std::int64_t tensor = 0;
  std::int64_t context = 0;
  std::int64_t data = 0;
  std::int64_t pipeline = 0;
  std::int64_t expert_tensor = 0;
  std::int64_t expert = 0;
  std::int64_t expert_data = 0;
};

class RankGrid {
 public:
  /// Throws UserError (wrong input) for sizes below 1, products beyond 2^63 and sizes that do not divide the world.
  explicit RankGrid(const GridSizes& sizes, RankOrder order = RankOrder::kDataBeforePipeline);

  const GridSizes& sizes() const { return sizes_; }
  std::int64_t num_data() const { return data_.size; }
  std::int64_t num_expert_data() const { return expert_data_.size; }

  RankPlace place(std::int64_t rank) const;
  std::int64_t group_size(GroupKind kind) const;
  /// The ranks of one group in its own order, `rank` among them.
  std::vector<std::int64_t> group(GroupKind kind, std::int64_t rank) const;
  /// Every group of a kind, by its first rank.
  std::vector<std::vector<std::int64_t>> groups(GroupKind kind) const;
  /// A rank of pipeline stage `pipeline`; the other indices are zero.
  std::int64_t first_rank_of_stage(std::int64_t pipeline) const { return pipeline * pipeline_.stride; }
  /// The members of the rank's pipeline group at these pipeline indices, such as those that hold the embedding.
  std::vector<std::int64_t> pipeline_members(std::int64_t rank, std::span<const int> pipeline_indices) const;

 private:
  struct Axis {
    std::int64_t size = 1;
    std::int64_t stride = 1;
    std::int64_t index(std::int64_t rank) const { return rank / stride % size; }
  };
  std::vector<Axis> axes_of(GroupKind kind) const;
  void check_rank(std::int64_t rank) const;

  GridSizes sizes_;
  Axis tensor_, context_, data_, pipeline_;
  Axis expert_tensor_, expert_, expert_data_;
};

/// The grid of an experiment on a world that the rules have accepted.
RankGrid rank_grid(const config::Experiment& experiment, std::int64_t world_size);

}  // namespace primus::layout
