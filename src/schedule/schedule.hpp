#pragma once
// A training step as a table of actions, one list a rank. The trainer walks it, the simulator times it, the viewer
// draws it.
#include <compare>
#include <cstdint>
#include <string_view>
#include <vector>

namespace primus::schedule {

/// Number of a pipeline rank; not interchangeable with other numbers.
struct PipelineRank {
  int value = 0;
  auto operator<=>(const PipelineRank&) const = default;
};

struct MicroBatch {
  int value = 0;
  auto operator<=>(const MicroBatch&) const = default;
};

/// Virtual stage on a rank.
struct Chunk {
  int value = 0;
  auto operator<=>(const Chunk&) const = default;
};

enum class ActionKind {
  kForward,
  kBackward,  // input gradient; and the weight gradient too unless the table has kWeightGrad for this micro-batch
  kWeightGrad,
  kReceiveForward,  // from the previous stage
  kSendForward,
  kReceiveBackward,  // from the next stage
  kSendBackward,
  kReduceGradients,
  kOptimizerStep,
};
std::string_view name(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::kForward;
  MicroBatch micro_batch;  // without meaning for kReduceGradients and kOptimizerStep
  Chunk chunk;
  bool operator==(const Action&) const = default;
};

struct Shape {
  int num_ranks = 1;
  int num_micro_batches = 1;
};

/// Every rank's actions in order. Sends and receives that stand side by side are posted together, as one batch: in
/// 1F1B, a stage sends forward while it receives backward, or two neighbours would wait for each other.
struct Schedule {
  Shape shape;
  std::vector<std::vector<Action>> ranks;

  const std::vector<Action>& actions(PipelineRank rank) const { return ranks.at(static_cast<std::size_t>(rank.value)); }
};

/// One forward, one backward (semantics.md section 7): warm-up min(M, P − rank − 1), then pairs, then the rest.
/// Throws InternalError unless P >= 1 and M >= 1.
Schedule one_forward_one_backward(Shape shape);

/// Check a table: every micro-batch forward once and backward once after it, dependencies between ranks satisfied when
/// sends and receives meet unbuffered, and each step closed by reduction and optimizer. Throws InternalError saying
/// where.
void verify(const Schedule& schedule);

}  // namespace primus::schedule
