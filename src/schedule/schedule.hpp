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

/// Number of a virtual stage in the order of the layers.
struct Stage {
  int value = 0;
  auto operator<=>(const Stage&) const = default;
};

enum class ActionKind : std::uint8_t {
  kForward,
  kBackward,  // input gradient, and the weight gradient unless that is an action of its own
  kWeightGrad,
  kReceiveForward,  // what the chunk reads, from the stage before it
  kSendForward,     // what the chunk made, to the stage behind it
  kReceiveBackward,
  kSendBackward,
  kGatherParameters,  // of the chunk, before its first forward
  kReduceGradients,   // of the chunk, behind its last gradient
  kOptimizerStep,
};
std::string_view name(ActionKind kind);

/// kWithNext: a forward that runs side by side with the backward behind it, so that the one's token exchange hides
/// beneath the other's arithmetic (phases.hpp). Who cannot overlap runs the two in order.
enum class Pairing : std::uint8_t { kAlone, kWithNext };

/// Where a backward's weight gradient is computed. kLate: by the same action, behind all that others wait for; in a
/// pair it fills the time beneath an exchange. kApart: by an action of its own.
enum class WeightGrad : std::uint8_t { kIncluded, kLate, kApart };

struct Action {
  ActionKind kind = ActionKind::kForward;
  MicroBatch micro_batch;  // without meaning for kGatherParameters, kReduceGradients and kOptimizerStep
  Chunk chunk;
  Pairing pairing = Pairing::kAlone;               // of a forward
  WeightGrad weight_grad = WeightGrad::kIncluded;  // of a backward
  bool operator==(const Action&) const = default;
};

bool is_compute(ActionKind kind);
bool is_message(ActionKind kind);
/// The last action that reads what its forward kept.
bool ends_activation(const Action& action);

/// Where stages live. kLoop: stage s is chunk s / P of rank s mod P. kV: down the ranks and up again, two chunks a
/// rank, so that the first and the last stage share rank 0.
enum class Placement : std::uint8_t { kLoop, kV };

struct Shape {
  int num_ranks = 1;
  int num_micro_batches = 1;
  int num_chunks = 1;
  Placement placement = Placement::kLoop;

  int num_stages() const { return num_ranks * num_chunks; }
  bool operator==(const Shape&) const = default;
};

struct Place {
  PipelineRank rank;
  Chunk chunk;
  bool operator==(const Place&) const = default;
};

Stage stage_at(const Shape& shape, Place place);
Place place_of(const Shape& shape, Stage stage);

/// Forwards, backwards and weight gradients in the order in which each rank runs them.
using Order = std::vector<std::vector<Action>>;

/// Every rank's actions in order. Sends and receives that stand side by side are posted together, as one batch: in
/// 1F1B, a stage sends forward while it receives backward, or two neighbours would wait for each other.
struct Schedule {
  Shape shape;
  Order ranks;
  std::vector<int> max_in_flight = {};  // chunk activations that a rank may hold; empty: no bound is promised

  const std::vector<Action>& actions(PipelineRank rank) const { return ranks.at(static_cast<std::size_t>(rank.value)); }
};

/// Chunk activations that a rank holds at most: each from its forward to its weight gradient, wherever that is made.
int peak_in_flight(const std::vector<Action>& actions);

/// Check a table: every micro-batch of every stage forward once, backward once after it, weight gradients that stand
/// apart once after that; dependencies between stages satisfied when sends and receives meet unbuffered and in order;
/// no rank above its bound; each chunk's gradients reduced once behind the last of them, and the optimizer's step at
/// the end. Throws InternalError saying where.
void verify(const Schedule& schedule);

}  // namespace primus::schedule
