#include "schedule/order_search.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>

#include "base/error.hpp"

namespace primus::schedule {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// What a free rank prefers.
struct Rules {
  enum class First : std::uint8_t { kBackward, kForward, kAlternate } first = First::kBackward;
  enum class Chunk : std::uint8_t { kLast, kOldest } forward_chunk = Chunk::kLast;
  Chunk backward_chunk = Chunk::kLast;
  double patience = 0.0;  // share of a weight gradient's time that a rank waits for something better
  enum class WarmUp : std::uint8_t { kFull, kShort } warm_up = WarmUp::kFull;  // short: as 1F1B would
};

struct Ready {
  double arrival = 0.0;
  int micro_batch = 0;
};

struct Rank {
  double free_at = 0.0;
  int held = 0;
  Action last;
  bool has_begun_backward = false;
  std::vector<std::deque<Ready>> forwards;  // by chunk
  std::vector<std::deque<Ready>> backwards;
  std::deque<Action> weight_grads;
  RankOrder order;
};

class Search {
 public:
  Search(const SearchProblem& problem, const Rules& rules)
      : problem_(problem), shape_(problem.shape), rules_(rules), ranks_(static_cast<std::size_t>(shape_.num_ranks)) {
    for (Rank& rank : ranks_) {
      rank.forwards.resize(static_cast<std::size_t>(shape_.num_chunks));
      rank.backwards.resize(static_cast<std::size_t>(shape_.num_chunks));
    }
    for (int m = 0; m < shape_.num_micro_batches; ++m) ranks_[0].forwards[0].push_back({0.0, m});
  }

  /// Nothing where an order longer than `bound` would come out.
  FoundOrder run(double bound) {
    for (int rank = 0; rank < shape_.num_ranks; ++rank) wake(0.0, rank);
    double end = 0.0;
    while (!events_.empty()) {
      const auto [moment, index] = events_.top();
      events_.pop();
      Rank& rank = ranks_[static_cast<std::size_t>(index)];
      if (rank.free_at > moment) continue;
      if (const auto action = choose(index, moment)) {
        start(index, *action, moment);
        end = std::max(end, rank.free_at);
        if (end >= bound) return {{}, kNever};
      }
    }
    FoundOrder found{{}, end};
    for (Rank& rank : ranks_) found.order.push_back(rank.order.take());
    for (const auto& actions : found.order) {
      const std::size_t kinds = problem_.weight_grad == WeightGrad::kApart ? 3 : 2;
      PRIMUS_CHECK(actions.size() == kinds * static_cast<std::size_t>(shape_.num_micro_batches * shape_.num_chunks),
                   "the search got stuck");
    }
    return found;
  }

 private:
  using Event = std::pair<double, int>;

  void wake(double moment, int rank) { events_.emplace(moment, rank); }

  std::optional<Action> best_forward(int index, double moment) const {
    const Rank& rank = ranks_[static_cast<std::size_t>(index)];
    const int room = room_of(index);
    std::optional<Action> best;
    double oldest = kNever;
    for (int chunk = shape_.num_chunks - 1; chunk >= 0; --chunk) {
      const auto& queue = rank.forwards[static_cast<std::size_t>(chunk)];
      if (queue.empty() || queue.front().arrival > moment) continue;
      if (rank.held + shape_.num_chunks - chunk > room) continue;  // leaves room for its later chunks
      if (queue.front().arrival >= oldest) continue;
      best = Action{ActionKind::kForward, {queue.front().micro_batch}, {chunk}};
      if (rules_.forward_chunk == Rules::Chunk::kLast) return best;
      oldest = queue.front().arrival;
    }
    return best;
  }

  int room_of(int index) const {
    const int limit = problem_.max_in_flight[static_cast<std::size_t>(index)];
    if (rules_.warm_up == Rules::WarmUp::kFull || ranks_[static_cast<std::size_t>(index)].has_begun_backward) {
      return limit;
    }
    const int below = shape_.placement == Placement::kV ? 0 : index;
    return std::min(limit, shape_.num_chunks * shape_.num_ranks - below);
  }

  std::optional<Action> best_backward(int index, double moment) const {
    const Rank& rank = ranks_[static_cast<std::size_t>(index)];
    std::optional<Action> best;
    double oldest = kNever;
    for (int chunk = shape_.num_chunks - 1; chunk >= 0; --chunk) {
      const auto& queue = rank.backwards[static_cast<std::size_t>(chunk)];
      if (queue.empty() || queue.front().arrival > moment || queue.front().arrival >= oldest) continue;
      best = Action{ActionKind::kBackward, {queue.front().micro_batch}, {chunk}, Pairing::kAlone, problem_.weight_grad};
      if (rules_.backward_chunk == Rules::Chunk::kLast) return best;
      oldest = queue.front().arrival;
    }
    return best;
  }

  /// When something known to come will be there; kNever if nothing is.
  double next_arrival(const Rank& rank) const {
    double next = kNever;
    for (const auto* queues : {&rank.forwards, &rank.backwards}) {
      for (const auto& queue : *queues) {
        if (!queue.empty()) next = std::min(next, queue.front().arrival);
      }
    }
    return next;
  }

  std::optional<Action> choose(int index, double moment) const {
    const Rank& rank = ranks_[static_cast<std::size_t>(index)];
    const auto forward = best_forward(index, moment);
    const auto backward = best_backward(index, moment);
    const bool forward_first = rules_.first == Rules::First::kForward ||
                               (rules_.first == Rules::First::kAlternate && rank.last.kind != ActionKind::kForward);
    if (forward && (forward_first || !backward)) return forward;
    if (backward) return backward;
    if (rank.weight_grads.empty()) return std::nullopt;
    const Action& owed = rank.weight_grads.front();
    const double wait = rules_.patience * problem_.durations.alone(owed, stage_at(shape_, {{index}, owed.chunk}));
    const double next = next_arrival(rank);
    if (next > moment && next <= moment + wait) return std::nullopt;
    return owed;
  }

  void start(int index, const Action& action, double moment) {
    Rank& rank = ranks_[static_cast<std::size_t>(index)];
    const Stage stage = stage_at(shape_, {{index}, action.chunk});
    const int m = action.micro_batch.value;
    const int chunk = action.chunk.value;
    rank.free_at = moment + problem_.durations.alone(action, stage);
    rank.last = action;
    if (action.kind == ActionKind::kForward) {
      rank.forwards[static_cast<std::size_t>(chunk)].pop_front();
      rank.order.forward(m, chunk);
      ++rank.held;
      if (stage.value + 1 < shape_.num_stages()) {
        deliver(stage, {stage.value + 1}, m, rank.free_at, &Rank::forwards);
      } else {
        rank.backwards[static_cast<std::size_t>(chunk)].push_back({rank.free_at, m});
      }
    } else if (action.kind == ActionKind::kBackward) {
      rank.backwards[static_cast<std::size_t>(chunk)].pop_front();
      rank.order.backward(m, chunk, action.weight_grad);
      rank.has_begun_backward = true;
      if (stage.value > 0) deliver(stage, {stage.value - 1}, m, rank.free_at, &Rank::backwards);
      if (action.weight_grad == WeightGrad::kApart) {
        rank.weight_grads.push_back({ActionKind::kWeightGrad, action.micro_batch, action.chunk});
      } else {
        --rank.held;
      }
    } else {
      rank.weight_grads.pop_front();
      rank.order.weight_grad(m, chunk);
      --rank.held;
    }
    wake(rank.free_at, index);
  }

  void deliver(Stage from, Stage to, int micro_batch, double moment, std::vector<std::deque<Ready>> Rank::*queues) {
    const Place place = place_of(shape_, to);
    const bool is_near = place.rank == place_of(shape_, from).rank;
    const double arrival = moment + (is_near ? 0.0 : problem_.durations.message);
    (ranks_[static_cast<std::size_t>(place.rank.value)].*queues)[static_cast<std::size_t>(place.chunk.value)].push_back(
        {arrival, micro_batch});
    wake(arrival, place.rank.value);
  }

  const SearchProblem& problem_;
  const Shape& shape_;
  Rules rules_;
  std::vector<Rank> ranks_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

std::vector<Rules> all_rules(const SearchProblem& problem) {
  using First = Rules::First;
  using Chunk = Rules::Chunk;
  const bool has_chunks = problem.shape.num_chunks > 1;
  const bool splits = problem.weight_grad == WeightGrad::kApart;
  std::vector<Rules> all;
  for (const First first : {First::kBackward, First::kForward, First::kAlternate}) {
    for (const Chunk forward : has_chunks ? std::vector{Chunk::kLast, Chunk::kOldest} : std::vector{Chunk::kLast}) {
      for (const Chunk backward : has_chunks ? std::vector{Chunk::kLast, Chunk::kOldest} : std::vector{Chunk::kLast}) {
        for (const double patience : splits ? std::vector{0.0, 0.5, 0.99} : std::vector{0.0}) {
          for (const auto warm_up : {Rules::WarmUp::kFull, Rules::WarmUp::kShort}) {
            all.push_back({first, forward, backward, patience, warm_up});
          }
        }
      }
    }
  }
  return all;
}

}  // namespace

FoundOrder search_order(const SearchProblem& problem) {
  PRIMUS_CHECK(problem.max_in_flight.size() == static_cast<std::size_t>(problem.shape.num_ranks));
  for (const int limit : problem.max_in_flight) PRIMUS_CHECK(limit >= problem.shape.num_chunks, "room for {}", limit);
  FoundOrder best{{}, kNever};
  for (const Rules& rules : all_rules(problem)) {
    FoundOrder found = Search(problem, rules).run(best.step);
    if (found.step < best.step) best = std::move(found);
  }
  return best;
}

}  // namespace primus::schedule
