#include "projection/passes.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "config/rules.hpp"

namespace primus::projection {
namespace {

using schedule::Action;
using schedule::ActionKind;

void add(std::vector<Action>& actions, ActionKind kind, int micro_batch, int chunk) {
  actions.push_back({kind, {micro_batch}, {chunk}});
}

/// Megatron's order of forwards: groups of micro-batches go through chunk after chunk.
std::vector<Action> forwards(const Pipeline& pipeline) {
  std::vector<Action> actions;
  for (int first = 0; first < pipeline.num_micro_batches; first += pipeline.group) {
    const int end = std::min(first + pipeline.group, pipeline.num_micro_batches);
    for (int chunk = 0; chunk < pipeline.num_chunks; ++chunk) {
      for (int micro_batch = first; micro_batch < end; ++micro_batch) {
        add(actions, ActionKind::kForward, micro_batch, chunk);
      }
    }
  }
  return actions;
}

/// Forwards before the first backward (semantics.md section 7).
int warm_up(const Pipeline& pipeline, int rank) {
  const int behind = pipeline.num_ranks - rank - 1;
  if (pipeline.num_ranks == 1) return 0;
  if (pipeline.num_chunks == 1) return behind;
  const int more = pipeline.overlap == Overlap::kOn ? 1 : 0;
  return 2 * behind + (pipeline.num_chunks - 1) * pipeline.group + more;
}

/// One forward, one backward, with as many forwards ahead as `lead` says.
std::vector<Action> one_by_one(const Pipeline& pipeline, int lead) {
  const std::vector<Action> forward = forwards(pipeline);
  const std::size_t ahead = std::min(static_cast<std::size_t>(lead), forward.size());
  std::vector<Action> actions(forward.begin(), forward.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (std::size_t i = 0; i < forward.size(); ++i) {
    if (i + ahead < forward.size()) actions.push_back(forward[i + ahead]);
    // Backwards go through the chunks the other way.
    add(actions, ActionKind::kBackward, forward[i].micro_batch.value, pipeline.num_chunks - 1 - forward[i].chunk.value);
  }
  return actions;
}

/// Chunk activations that the schedules with bounded memory let a rank hold (a micro-batch of one chunk is half of a
/// rank's): zero bubble and ZB-V as 1F1B's first rank, V-half about half of it, V-min a third.
int bound(const Pipeline& pipeline) {
  const int ranks = pipeline.num_ranks;
  switch (pipeline.algorithm) {
    case Algorithm::kZeroBubble:
      return ranks;
    case Algorithm::kZbv:
      return 2 * ranks;
    case Algorithm::kVHalf:
      return ranks + 2;
    case Algorithm::kVMin:
      return 2 * ranks / 3 + 4;
    case Algorithm::k1F1B:
    case Algorithm::kInterleaved:
      break;
  }
  PRIMUS_CHECK(false, "{} bounds no activations", name(pipeline.algorithm));
}

Algorithm algorithm_of(const config::Experiment& experiment, const layout::StageLayout& stages) {
  if (stages.num_ranks() == 1) return Algorithm::k1F1B;
  if (experiment.get_bool("patch_zero_bubble")) {
    return config::is_v_shaped(experiment) ? Algorithm::kZbv : Algorithm::kZeroBubble;
  }
  const std::string text = experiment.get_bool("patch_primus_pipeline") ? experiment.get_string("pp_algorithm") : "";
  if (text == "zero-bubble" || text == "zero-bubble-heuristic") return Algorithm::kZeroBubble;
  if (text == "zbv-formatted") return Algorithm::kZbv;
  if (text == "v-half") return Algorithm::kVHalf;
  if (text == "v-min") return Algorithm::kVMin;
  return stages.num_chunks() > 1 ? Algorithm::kInterleaved : Algorithm::k1F1B;
}

}  // namespace

std::string_view name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::k1F1B:
      return "1F1B";
    case Algorithm::kInterleaved:
      return "interleaved 1F1B";
    case Algorithm::kZeroBubble:
      return "zero-bubble";
    case Algorithm::kZbv:
      return "ZB-V";
    case Algorithm::kVHalf:
      return "V-half";
    case Algorithm::kVMin:
      return "V-min";
  }
  return "?";
}

Pipeline pipeline_of(const config::Experiment& experiment, const layout::StageLayout& stages,
                     std::int64_t num_micro_batches) {
  const std::int64_t group = std::max<std::int64_t>(
      experiment.get_optional_int("microbatch_group_size_per_vp_stage").value_or(stages.num_ranks()), 1);
  // From the warm-up on, groups repeat: more of them change nothing about what is in flight.
  const std::int64_t enough = group * (4 + (2 * stages.num_ranks() + group - 1) / group);
  return {.algorithm = algorithm_of(experiment, stages),
          .num_ranks = stages.num_ranks(),
          .num_chunks = stages.num_chunks(),
          .num_micro_batches = static_cast<int>(std::min(num_micro_batches, enough)),
          .group = static_cast<int>(group),
          .overlap = experiment.get_bool("overlap_moe_expert_parallel_comm") ? Overlap::kOn : Overlap::kOff};
}

std::vector<Action> passes(const Pipeline& pipeline, int rank) {
  PRIMUS_CHECK(rank >= 0 && rank < pipeline.num_ranks && pipeline.num_micro_batches >= 1, "rank {}", rank);
  const bool is_bounded = pipeline.algorithm != Algorithm::k1F1B && pipeline.algorithm != Algorithm::kInterleaved;
  return one_by_one(pipeline, is_bounded ? bound(pipeline) - 1 : warm_up(pipeline, rank));
}

}  // namespace primus::projection
