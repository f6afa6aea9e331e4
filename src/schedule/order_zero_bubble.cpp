// Schedules whose weight gradients fill the gaps: ZB-H1, ZB-V, DualPipe-V.
#include <algorithm>
#include <array>
#include <deque>

#include "schedule/orders.hpp"

namespace primus::schedule {
namespace {

/// A rank of a V: next micro-batch of each kind and chunk, and the weight gradients that it owes.
class VRank {
 public:
  void forward(int chunk) { order_.forward(next(forwards_, chunk), chunk); }
  void whole_backward(int chunk) { order_.backward(next(backwards_, chunk), chunk, WeightGrad::kIncluded); }
  void backward(int chunk) {
    owed_.push_back({next(backwards_, chunk), chunk});
    order_.backward(owed_.back().micro_batch, chunk, WeightGrad::kApart);
  }
  /// The oldest weight gradient of a chunk; nothing if it owes none.
  void weight_grad(int chunk) {
    pay(std::find_if(owed_.begin(), owed_.end(), [chunk](const Owed& owed) { return owed.chunk == chunk; }));
  }
  void oldest_weight_grad() { pay(owed_.begin()); }
  void pair_last() { order_.pair_last(); }
  bool owes_weight_grad() const { return !owed_.empty(); }
  bool owes_weight_grad(int chunk) const {
    return std::any_of(owed_.begin(), owed_.end(), [chunk](const Owed& owed) { return owed.chunk == chunk; });
  }
  int num_forwards(int chunk) const { return forwards_[static_cast<std::size_t>(chunk)]; }
  std::vector<Action> take() { return order_.take(); }

 private:
  struct Owed {
    int micro_batch = 0;
    int chunk = 0;
  };

  static int next(std::array<int, 2>& counts, int chunk) { return counts[static_cast<std::size_t>(chunk)]++; }

  void pay(std::deque<Owed>::iterator owed) {
    if (owed == owed_.end()) return;
    order_.weight_grad(owed->micro_batch, owed->chunk);
    owed_.erase(owed);
  }

  RankOrder order_;
  std::array<int, 2> forwards_{};
  std::array<int, 2> backwards_{};
  std::deque<Owed> owed_;
};

std::vector<Action> zbv_rank(int num_ranks, int rank, int num_micro_batches) {
  VRank order;
  for (int i = 0; i < 2 * (num_ranks - rank) - 1; ++i) order.forward(0);
  for (int i = 0; i < rank; ++i) {
    order.forward(1);
    order.forward(0);
  }
  const auto round = [&order](int chunk) {
    order.backward(chunk);
    order.weight_grad(chunk);
  };
  for (int i = 0; i < num_ranks - rank; ++i) {
    order.forward(1);
    round(1);
  }
  while (order.num_forwards(1) < num_micro_batches) {
    if (order.num_forwards(0) < num_micro_batches) order.forward(0);
    round(0);
    order.forward(1);
    round(1);
  }
  for (int i = 0; i < rank; ++i) {
    order.backward(0);
    order.backward(1);
  }
  for (int i = 0; i < num_ranks - rank; ++i) round(0);
  while (order.owes_weight_grad()) order.weight_grad(order.owes_weight_grad(1) ? 1 : 0);
  return order.take();
}

std::vector<Action> dualpipe_v_rank(int num_ranks, int rank, int num_micro_batches) {
  const int below = num_ranks - rank - 1;
  VRank order;
  const auto pair = [&order](int chunk) {
    order.forward(chunk);
    order.whole_backward(1 - chunk);
    order.pair_last();
  };
  for (int i = 0; i < 2 * below; ++i) order.forward(0);
  for (int i = 0; i <= rank; ++i) {
    order.forward(0);
    order.forward(1);
  }
  for (int i = 0; i < below; ++i) {
    order.backward(1);
    order.weight_grad(1);
    order.forward(1);
  }
  for (int i = 0; i < num_micro_batches - 2 * num_ranks + rank + 1; ++i) {
    if (i == 0 && below == 0) {  // the turn of the V: this backward needs the forward just before it
      order.forward(0);
      order.whole_backward(1);
    } else {
      pair(0);
    }
    pair(1);
  }
  for (int i = 0; i < below; ++i) {
    order.whole_backward(1);
    pair(1);
  }
  // From the middle on, what the neighbours wait for goes first and weight gradients wait.
  for (int i = 0; i <= rank; ++i) {
    const bool is_late = 2 * i > rank;
    for (const int chunk : {1, 0}) {
      const bool waits = is_late || (chunk == 0 && 2 * i == rank);
      waits ? order.backward(chunk) : order.whole_backward(chunk);
    }
  }
  for (int i = 0; i < below; ++i) {
    order.oldest_weight_grad();
    order.backward(0);
  }
  while (order.owes_weight_grad()) order.oldest_weight_grad();
  return order.take();
}

}  // namespace

Order order_zb1p(const Shape& shape) {
  Order ranks;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    const int warm_up = std::min(shape.num_micro_batches, shape.num_ranks - rank - 1);
    RankOrder order;
    const auto backward = [&](int m) {
      order.backward(m, 0, WeightGrad::kApart);
      if (m >= rank) order.weight_grad(m - rank, 0);
    };
    for (int m = 0; m < shape.num_micro_batches; ++m) {
      order.forward(m, 0);
      if (m >= warm_up) backward(m - warm_up);
    }
    for (int m = shape.num_micro_batches - warm_up; m < shape.num_micro_batches; ++m) backward(m);
    for (int m = std::max(0, shape.num_micro_batches - rank); m < shape.num_micro_batches; ++m) order.weight_grad(m, 0);
    ranks.push_back(order.take());
  }
  return ranks;
}

Order order_zbv(const Shape& shape) {
  const int padded = std::max(shape.num_micro_batches, 2 * shape.num_ranks - 1);
  Order ranks;
  for (int rank = 0; rank < shape.num_ranks; ++rank) ranks.push_back(zbv_rank(shape.num_ranks, rank, padded));
  return without_later(ranks, shape.num_micro_batches);
}

Order order_dualpipe_v(const Shape& shape) {
  const int padded = std::max(shape.num_micro_batches, 2 * shape.num_ranks);
  Order ranks;
  for (int rank = 0; rank < shape.num_ranks; ++rank) ranks.push_back(dualpipe_v_rank(shape.num_ranks, rank, padded));
  return without_later(ranks, shape.num_micro_batches);
}

Order without_later(const Order& order, int num_micro_batches) {
  Order result;
  for (const std::vector<Action>& actions : order) {
    std::vector<Action>& kept = result.emplace_back();
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].micro_batch.value >= num_micro_batches) continue;
      kept.push_back(actions[i]);
      const bool is_pair = actions[i].pairing == Pairing::kWithNext;
      if (is_pair && actions[i + 1].micro_batch.value >= num_micro_batches) kept.back().pairing = Pairing::kAlone;
    }
  }
  return result;
}

}  // namespace primus::schedule
