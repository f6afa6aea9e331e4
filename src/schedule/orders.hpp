#pragma once
// The order in which each rank computes, one function a schedule. What is legal for which is said by algorithms.hpp.
// Legend: P ranks, M micro-batches, V chunks a rank; r a rank.
#include <optional>

#include "schedule/schedule.hpp"

namespace primus::schedule {

/// Collects one rank's order.
class RankOrder {
 public:
  void forward(int micro_batch, int chunk) { actions_.push_back({ActionKind::kForward, {micro_batch}, {chunk}}); }
  void backward(int micro_batch, int chunk, WeightGrad weight_grad) {
    actions_.push_back({ActionKind::kBackward, {micro_batch}, {chunk}, Pairing::kAlone, weight_grad});
  }
  void weight_grad(int micro_batch, int chunk) {
    actions_.push_back({ActionKind::kWeightGrad, {micro_batch}, {chunk}});
  }
  /// The forward and the backward that were added last run side by side.
  void pair_last() { actions_.at(actions_.size() - 2).pairing = Pairing::kWithNext; }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  std::vector<Action> actions_;
};

/// Warm-up min(M, P − r − 1), then pairs, then the rest.
Order order_1f1b(const Shape& shape);

/// What an interleaved schedule does beside its order of chunks.
struct Interleaved {
  int group = 1;                      // micro-batches that a chunk takes in a row, at least P
  Pairing pairing = Pairing::kAlone;  // kWithNext: a steady forward runs beside the backward behind it
  WeightGrad weight_grad = WeightGrad::kIncluded;
};

/// Megatron's: groups of micro-batches go through chunk after chunk; warm-up 2(P − r − 1) + (V − 1)·group, and one more
/// with pairs, so that the two of a pair do not need each other.
Order order_interleaved(const Shape& shape, const Interleaved& options);

/// ZB-H1: 1F1B with weight gradients r backwards late, so that every rank holds P activations.
Order order_zb1p(const Shape& shape);

/// ZB-V: two chunks in a V, weight gradients fill what 1F1B leaves empty. With fewer than 2P − 1 micro-batches, the
/// places of those that are not there are left out.
Order order_zbv(const Shape& shape);

/// How far apart the blocks of a V stand (a period of 6 units: two of each kind), and so how much is held at a time.
enum class VBlock : std::uint8_t { kHalf, kMin };

/// V-Half and V-Min: a repeated block that bounds memory, then every action moved as early as that bound allows.
Order order_v_block(const Shape& shape, VBlock block);

/// The shortest of the orders that other gaps between the block's four actions give, if it holds at most
/// `max_in_flight` chunk activations on every rank and is shorter than `bound` slots.
std::optional<Order> shorter_v_block(const Shape& shape, VBlock block, int max_in_flight, double bound);

/// DualPipe's halves on one V: forwards of one chunk beside backwards of the other. With fewer than 2P micro-batches,
/// the places of those that are not there are left out.
Order order_dualpipe_v(const Shape& shape);

/// `order` without the micro-batches from `num_micro_batches` on. What is left stays in its order, so dependencies hold
/// and no rank holds more; a pair that loses a half is one no more.
Order without_later(const Order& order, int num_micro_batches);

}  // namespace primus::schedule
