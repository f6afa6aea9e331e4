// 1F1B and its interleaved form.
#include <algorithm>

#include "base/error.hpp"
#include "schedule/orders.hpp"

namespace primus::schedule {
namespace {

struct Virtual {
  int micro_batch = 0;
  int chunk = 0;
};

/// Forwards in the order of every rank: a group goes through all chunks before the next one begins.
std::vector<Virtual> forward_order(const Shape& shape, int group) {
  std::vector<Virtual> order;
  order.reserve(static_cast<std::size_t>(shape.num_micro_batches) * static_cast<std::size_t>(shape.num_chunks));
  for (int begin = 0; begin < shape.num_micro_batches; begin += group) {
    const int end = std::min(begin + group, shape.num_micro_batches);
    for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
      for (int m = begin; m < end; ++m) order.push_back({m, chunk});
    }
  }
  return order;
}

std::vector<Action> interleaved_rank(const Shape& shape, int rank, const Interleaved& options,
                                     const std::vector<Virtual>& forwards) {
  const int total = static_cast<int>(forwards.size());
  const int extra = options.pairing == Pairing::kWithNext ? 1 : 0;
  const int warm_up =
      std::min(total, 2 * (shape.num_ranks - rank - 1) + (shape.num_chunks - 1) * options.group + extra);
  RankOrder order;
  const auto backward = [&](int i) {
    const Virtual& at = forwards[static_cast<std::size_t>(i)];
    order.backward(at.micro_batch, shape.num_chunks - 1 - at.chunk, options.weight_grad);
  };
  const auto weight_grad = [&](int i) {
    if (options.weight_grad != WeightGrad::kApart) return;
    const Virtual& at = forwards[static_cast<std::size_t>(i)];
    order.weight_grad(at.micro_batch, shape.num_chunks - 1 - at.chunk);
  };
  for (int i = 0; i < total; ++i) {
    order.forward(forwards[static_cast<std::size_t>(i)].micro_batch, forwards[static_cast<std::size_t>(i)].chunk);
    if (i < warm_up) continue;
    backward(i - warm_up);
    if (options.pairing == Pairing::kWithNext) order.pair_last();
    weight_grad(i - warm_up);
  }
  for (int i = total - warm_up; i < total; ++i) {
    backward(i);
    weight_grad(i);
  }
  return order.take();
}

}  // namespace

Order order_1f1b(const Shape& shape) {
  Order ranks;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    const int warm_up = std::min(shape.num_micro_batches, shape.num_ranks - rank - 1);
    RankOrder order;
    for (int m = 0; m < shape.num_micro_batches; ++m) {
      order.forward(m, 0);
      if (m >= warm_up) order.backward(m - warm_up, 0, WeightGrad::kIncluded);
    }
    for (int m = shape.num_micro_batches - warm_up; m < shape.num_micro_batches; ++m) {
      order.backward(m, 0, WeightGrad::kIncluded);
    }
    ranks.push_back(order.take());
  }
  return ranks;
}

Order order_interleaved(const Shape& shape, const Interleaved& options) {
  PRIMUS_CHECK(options.group >= shape.num_ranks, "groups of {} on {} ranks", options.group, shape.num_ranks);
  const std::vector<Virtual> forwards = forward_order(shape, options.group);
  Order ranks;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    ranks.push_back(interleaved_rank(shape, rank, options, forwards));
  }
  return ranks;
}

}  // namespace primus::schedule
