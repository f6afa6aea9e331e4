// V-Half and V-Min. Time is counted in slots, one action of a chunk each.
#include <algorithm>
#include <array>
#include <deque>
#include <tuple>

#include "base/error.hpp"
#include "schedule/orders.hpp"

namespace primus::schedule {
namespace {

constexpr int kPeriod = 6;

/// Slots of a micro-batch's actions on a rank; micro-batch m comes m periods later.
struct Offsets {
  int forward_down = 0;   // chunk 0
  int forward_up = 0;     // chunk 1
  int backward_down = 0;  // chunk 1: gradients go the same way, first down the V's second arm
  int backward_up = 0;
};

/// Slots from one arm's end to the next arm's beginning.
struct Gaps {
  int forward_turn = 1;  // on the last rank
  int loss = 1;          // on rank 0
  int backward_turn = 1;
};

/// From rank to rank the four actions come this many slots later.
struct Strides {
  int forward_down = 1;
  int forward_up = 1;
  int backward_down = 1;
  int backward_up = 1;
};

Strides strides_of(VBlock block) {
  return block == VBlock::kHalf ? Strides{2, 1, 2, 1} : Strides{};
}

/// The published gaps: shifted where a rank's four actions would else meet in one slot of the period.
Gaps gaps_of(VBlock block, int num_ranks) {
  if (block == VBlock::kHalf) return {1, num_ranks % 2 == 0 ? 4 : 1, 2};
  return {1, num_ranks % 3 == 0 ? 3 : 1, 1};
}

Offsets offsets_of(VBlock block, const Gaps& gaps, int num_ranks, int rank) {
  const Strides strides = strides_of(block);
  const int above = num_ranks - 1 - rank;
  Offsets at;
  at.forward_down = strides.forward_down * rank;
  const int turn = strides.forward_down * (num_ranks - 1) + gaps.forward_turn;
  at.forward_up = turn + strides.forward_up * above;
  const int loss = turn + strides.forward_up * (num_ranks - 1) + gaps.loss;
  at.backward_down = loss + strides.backward_down * rank;
  at.backward_up = loss + strides.backward_down * (num_ranks - 1) + gaps.backward_turn + strides.backward_up * above;
  return at;
}

bool meet(const Offsets& at) {
  const std::array slots = {at.forward_down % kPeriod, at.forward_up % kPeriod, at.backward_down % kPeriod,
                            at.backward_up % kPeriod};
  for (std::size_t i = 0; i < slots.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (slots[i] == slots[j]) return true;
    }
  }
  return false;
}

bool fits(VBlock block, const Gaps& gaps, int num_ranks) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (meet(offsets_of(block, gaps, num_ranks, rank))) return false;
  }
  return true;
}

/// One rank's slots and how many activations it holds from each on.
class SlotRow {
 public:
  bool is_free(int slot) const {
    return slot >= static_cast<int>(slots_.size()) || slots_[static_cast<std::size_t>(slot)].first == kEmpty;
  }

  int next_free(int slot) const {
    while (!is_free(slot)) ++slot;
    return slot;
  }

  /// The first free slot from `slot` on behind which fewer than `limit` activations are held for ever.
  int next_with_room(int slot, int limit) const {
    if (tail_ >= limit) return kNowhere;
    for (int i = static_cast<int>(held_.size()) - 1; i >= slot; --i) {
      if (held_[static_cast<std::size_t>(i)] >= limit) return next_free(i + 1);
    }
    return next_free(slot);
  }

  void put(int slot, const Action& action) {
    const auto at = static_cast<std::size_t>(slot);
    if (at >= slots_.size()) {
      slots_.resize(at + 1, {kEmpty, {}});
      held_.resize(at + 1, tail_);
    }
    slots_[at] = {kTaken, action};
    const int change = action.kind == ActionKind::kForward ? 1 : action.kind == ActionKind::kWeightGrad ? -1 : 0;
    if (change == 0) return;
    for (std::size_t i = at; i < held_.size(); ++i) held_[i] += change;
    tail_ += change;
  }

  int peak() const { return held_.empty() ? 0 : *std::max_element(held_.begin(), held_.end()); }
  int size() const { return static_cast<int>(slots_.size()); }
  const Action& at(int slot) const { return slots_[static_cast<std::size_t>(slot)].second; }

  std::vector<Action> actions() const {
    std::vector<Action> actions;
    for (const auto& [state, action] : slots_) {
      if (state == kTaken) actions.push_back(action);
    }
    return actions;
  }

  static constexpr int kNowhere = -1;

 private:
  enum State : std::uint8_t { kEmpty, kTaken };
  std::vector<std::pair<State, Action>> slots_;
  std::vector<int> held_;
  int tail_ = 0;
};

using Grid = std::vector<SlotRow>;

struct Node {
  int slot = 0;
  int rank = 0;
  Action action;
};

/// When each action's result is there, by kind, stage and micro-batch.
class Finished {
 public:
  explicit Finished(const Shape& shape) : shape_(shape) {
    for (std::vector<int>& ends : ends_) {
      ends.assign(static_cast<std::size_t>(shape.num_stages()) * static_cast<std::size_t>(shape.num_micro_batches), 0);
    }
  }

  void set(const Node& node, int slot) { at(node.action.kind, stage(node), node.action.micro_batch.value) = slot + 1; }

  /// The first slot at which everything that the action reads is there.
  int ready(const Node& node) const {
    const int s = stage(node);
    const int m = node.action.micro_batch.value;
    switch (node.action.kind) {
      case ActionKind::kForward:
        return s == 0 ? 0 : at(ActionKind::kForward, s - 1, m);
      case ActionKind::kBackward: {
        const int own = at(ActionKind::kForward, s, m);
        return s + 1 == shape_.num_stages() ? own : std::max(own, at(ActionKind::kBackward, s + 1, m));
      }
      default:
        return at(ActionKind::kBackward, s, m);
    }
  }

 private:
  int stage(const Node& node) const { return stage_at(shape_, {{node.rank}, node.action.chunk}).value; }
  std::size_t cell(int stage, int m) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(shape_.num_micro_batches) +
           static_cast<std::size_t>(m);
  }
  int& at(ActionKind kind, int stage, int m) { return ends_[static_cast<std::size_t>(kind)][cell(stage, m)]; }
  int at(ActionKind kind, int stage, int m) const { return ends_[static_cast<std::size_t>(kind)][cell(stage, m)]; }

  const Shape& shape_;
  std::array<std::vector<int>, 3> ends_;
};

/// The block, repeated; weight gradients take the free slots behind their backwards, first come, first served.
SlotRow repeated_block(const Shape& shape, const Offsets& at) {
  SlotRow row;
  for (int m = 0; m < shape.num_micro_batches; ++m) {
    const int shift = kPeriod * m;
    row.put(shift + at.forward_down, {ActionKind::kForward, {m}, {0}});
    row.put(shift + at.forward_up, {ActionKind::kForward, {m}, {1}});
    row.put(shift + at.backward_down, {ActionKind::kBackward, {m}, {1}, Pairing::kAlone, WeightGrad::kApart});
    row.put(shift + at.backward_up, {ActionKind::kBackward, {m}, {0}, Pairing::kAlone, WeightGrad::kApart});
  }
  std::deque<Action> waiting;
  int num_to_come = 2 * shape.num_micro_batches;
  for (int slot = 0; num_to_come > 0 || !waiting.empty(); ++slot) {
    if (row.is_free(slot)) {
      if (waiting.empty()) continue;
      row.put(slot, waiting.front());
      waiting.pop_front();
    } else if (const Action& action = row.at(slot); action.kind == ActionKind::kBackward) {
      waiting.push_back({ActionKind::kWeightGrad, action.micro_batch, action.chunk});
      --num_to_come;
    }
  }
  return row;
}

std::vector<Node> in_order_of_time(const Grid& grid) {
  std::vector<Node> nodes;
  for (std::size_t rank = 0; rank < grid.size(); ++rank) {
    for (int slot = 0; slot < grid[rank].size(); ++slot) {
      if (!grid[rank].is_free(slot)) nodes.push_back({slot, static_cast<int>(rank), grid[rank].at(slot)});
    }
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const Node& a, const Node& b) { return std::tie(a.slot, a.rank) < std::tie(b.slot, b.rank); });
  return nodes;
}

/// Moves every action as early as what it reads allows, with no rank above `limit` activations.
Grid squeezed(const Shape& shape, const Grid& grid, int limit) {
  Grid result(grid.size());
  Finished finished(shape);
  for (const Node& node : in_order_of_time(grid)) {
    SlotRow& row = result[static_cast<std::size_t>(node.rank)];
    const int ready = finished.ready(node);
    const int slot = node.action.kind == ActionKind::kForward ? row.next_with_room(ready, limit) : row.next_free(ready);
    PRIMUS_CHECK(slot != SlotRow::kNowhere, "rank {} has no room for micro-batch {}", node.rank,
                 node.action.micro_batch.value);
    row.put(slot, node.action);
    finished.set(node, slot);
  }
  return result;
}

/// Behind a rank's last forward backwards go first, because neighbours wait for them, and weight gradients fill up.
Grid drained(const Shape& shape, const Grid& grid) {
  std::vector<int> last_forward(grid.size(), 0);
  for (std::size_t rank = 0; rank < grid.size(); ++rank) {
    for (int slot = 0; slot < grid[rank].size(); ++slot) {
      if (!grid[rank].is_free(slot) && grid[rank].at(slot).kind == ActionKind::kForward) last_forward[rank] = slot;
    }
  }
  Grid result(grid.size());
  Finished finished(shape);
  std::vector<std::deque<Action>> waiting(grid.size());
  const std::vector<Node> nodes = in_order_of_time(grid);
  for (const Node& node : nodes) {
    const auto rank = static_cast<std::size_t>(node.rank);
    const bool is_late = node.slot > last_forward[rank];
    if (is_late && node.action.kind == ActionKind::kWeightGrad) continue;
    const int slot =
        is_late ? result[rank].next_free(std::max(finished.ready(node), last_forward[rank] + 1)) : node.slot;
    result[rank].put(slot, node.action);
    finished.set(node, slot);
  }
  std::vector<Node> late;
  for (const Node& node : nodes) {
    if (node.action.kind == ActionKind::kWeightGrad && node.slot > last_forward[static_cast<std::size_t>(node.rank)]) {
      late.push_back({finished.ready(node), node.rank, node.action});
    }
  }
  std::stable_sort(late.begin(), late.end(), [](const Node& a, const Node& b) { return a.slot < b.slot; });
  for (const Node& node : late) {
    SlotRow& row = result[static_cast<std::size_t>(node.rank)];
    row.put(row.next_free(std::max(node.slot, last_forward[static_cast<std::size_t>(node.rank)] + 1)), node.action);
  }
  return result;
}

struct Block {
  Grid grid;
  int peak = 0;
};

Block repeated_blocks(const Shape& shape, VBlock block, const Gaps& gaps) {
  Block result;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    result.grid.push_back(repeated_block(shape, offsets_of(block, gaps, shape.num_ranks, rank)));
    result.peak = std::max(result.peak, result.grid.back().peak());
  }
  return result;
}

Grid finished_grid(const Shape& shape, const Block& block, int limit) {
  return drained(shape, squeezed(shape, block.grid, limit));
}

Order order_of(const Grid& grid) {
  Order ranks;
  for (const SlotRow& row : grid) ranks.push_back(row.actions());
  return ranks;
}

}  // namespace

Order order_v_block(const Shape& shape, VBlock block) {
  const Block repeated = repeated_blocks(shape, block, gaps_of(block, shape.num_ranks));
  return order_of(finished_grid(shape, repeated, repeated.peak));
}

std::optional<Order> shorter_v_block(const Shape& shape, VBlock block, int max_in_flight, double bound) {
  std::optional<Order> best;
  for (int i = 0; i < kPeriod * kPeriod * kPeriod; ++i) {
    const Gaps gaps{1 + i % kPeriod, 1 + i / kPeriod % kPeriod, 1 + i / (kPeriod * kPeriod)};
    if (!fits(block, gaps, shape.num_ranks)) continue;
    const Block repeated = repeated_blocks(shape, block, gaps);
    if (repeated.peak > max_in_flight) continue;
    const Grid grid = finished_grid(shape, repeated, max_in_flight);
    int length = 0;
    for (const SlotRow& row : grid) length = std::max(length, row.size());
    if (length >= bound) continue;
    best = order_of(grid);
    bound = length;
  }
  return best;
}

}  // namespace primus::schedule
