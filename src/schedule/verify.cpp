// The proof of a table: all ranks walk it together over channels without buffers.
#include <algorithm>
#include <deque>

#include "base/error.hpp"
#include "schedule/schedule.hpp"

namespace primus::schedule {
namespace {

std::string text(std::size_t rank, const Action& action) {
  return fmt::format("rank {}: {} of micro-batch {}, chunk {}", rank, name(action.kind), action.micro_batch.value,
                     action.chunk.value);
}

/// How far a micro-batch has come on a stage.
struct Cell {
  bool has_input = false;     // what the stage before it made is here
  bool has_gradient = false;  // what the stage behind it made is here
  bool forward = false;
  bool backward = false;
  bool awaits_weight_grad = false;
  bool sent_forward = false;
  bool sent_backward = false;
};

class Walker {
 public:
  explicit Walker(const Schedule& schedule)
      : shape_(schedule.shape),
        ranks_(schedule.ranks),
        cells_(static_cast<std::size_t>(shape_.num_stages()) * static_cast<std::size_t>(shape_.num_micro_batches)),
        places_(ranks_.size()),
        channels_(ranks_.size()) {
    for (int m = 0; m < shape_.num_micro_batches; ++m) {
      cell({0}, {m}).has_input = true;
      cell({shape_.num_stages() - 1}, {m}).has_gradient = true;
    }
  }

  void run() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) wake(rank);
    while (!queue_.empty()) {
      const std::size_t rank = queue_.front();
      queue_.pop_front();
      while (places_[rank].num_posted == 0 && places_[rank].next < ranks_[rank].size()) advance(rank);
    }
    for (const Place& place : places_) PRIMUS_CHECK(place.num_posted == 0, "deadlock: {}", where());
    check_complete();
  }

 private:
  struct Place {
    std::size_t next = 0;        // first action that has not begun
    std::size_t num_posted = 0;  // messages of the batch before it that have not met their other end
  };

  /// A message that one end has posted and the other not.
  struct Posted {
    Action action;
    Stage producer;
    bool is_forward = true;
  };

  /// What two ranks have posted for each other in one direction and not met: sends, or receives, never both.
  struct Channel {
    std::size_t peer = 0;
    std::deque<Posted> sends;
    std::deque<Posted> receives;
  };

  Cell& cell(Stage stage, MicroBatch micro_batch) {
    return cells_[static_cast<std::size_t>(stage.value) * static_cast<std::size_t>(shape_.num_micro_batches) +
                  static_cast<std::size_t>(micro_batch.value)];
  }

  void wake(std::size_t rank) { queue_.push_back(rank); }

  std::string where() const {
    std::string result;
    for (std::size_t rank = 0; rank < places_.size(); ++rank) {
      if (places_[rank].num_posted == 0) continue;
      result += fmt::format("{} waits; ", text(rank, ranks_[rank][places_[rank].next - 1]));
    }
    return result;
  }

  /// One computation, or a whole batch of messages.
  void advance(std::size_t rank) {
    const std::vector<Action>& actions = ranks_[rank];
    Place& place = places_[rank];
    if (!is_message(actions[place.next].kind)) {
      compute(rank, place.next++);
      return;
    }
    const std::size_t begin = place.next;
    while (place.next < actions.size() && is_message(actions[place.next].kind)) ++place.next;
    place.num_posted = place.next - begin;
    for (std::size_t i = begin; i < place.next; ++i) post(rank, actions[i]);
  }

  void check_range(std::size_t rank, const Action& action) const {
    PRIMUS_CHECK(action.micro_batch.value >= 0 && action.micro_batch.value < shape_.num_micro_batches &&
                     action.chunk.value >= 0 && action.chunk.value < shape_.num_chunks,
                 "{} is none of {} x {}", text(rank, action), shape_.num_micro_batches, shape_.num_chunks);
  }

  Channel& channel(std::size_t from, std::size_t to) {
    for (Channel& channel : channels_[from]) {
      if (channel.peer == to) return channel;
    }
    channels_[from].push_back({to, {}, {}});
    return channels_[from].back();
  }

  void post(std::size_t rank, const Action& action) {
    check_range(rank, action);
    const Stage here = stage_at(shape_, {{static_cast<int>(rank)}, action.chunk});
    const bool is_forward = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kReceiveForward;
    const bool is_send = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kSendBackward;
    const Stage there{here.value + (is_forward == is_send ? 1 : -1)};
    PRIMUS_CHECK(there.value >= 0 && there.value < shape_.num_stages(), "{}: there is no stage to talk to",
                 text(rank, action));
    const auto peer = static_cast<std::size_t>(place_of(shape_, there).rank.value);
    PRIMUS_CHECK(peer != rank, "{}: the other stage is on the same rank", text(rank, action));
    const Posted mine{action, is_send ? here : there, is_forward};
    if (is_send) check_made(rank, action, here, is_forward);
    Channel& between = is_send ? channel(rank, peer) : channel(peer, rank);
    std::deque<Posted>& others = is_send ? between.receives : between.sends;
    if (others.empty()) {
      (is_send ? between.sends : between.receives).push_back(mine);
      return;
    }
    const Posted other = others.front();
    others.pop_front();
    PRIMUS_CHECK(other.action.micro_batch == action.micro_batch && other.producer == mine.producer &&
                     other.is_forward == is_forward,
                 "{} meets {}: messages cross", text(rank, action), text(peer, other.action));
    arrive(is_send ? there : here, action.micro_batch, is_forward);
    release(rank);
    release(peer);
  }

  void check_made(std::size_t rank, const Action& action, Stage here, bool is_forward) {
    Cell& source = cell(here, action.micro_batch);
    PRIMUS_CHECK(is_forward ? source.forward : source.backward, "{} is sent before it is computed", text(rank, action));
    bool& sent = is_forward ? source.sent_forward : source.sent_backward;
    PRIMUS_CHECK(!sent, "{} twice", text(rank, action));
    sent = true;
  }

  void arrive(Stage stage, MicroBatch micro_batch, bool is_forward) {
    Cell& target = cell(stage, micro_batch);
    (is_forward ? target.has_input : target.has_gradient) = true;
  }

  void release(std::size_t rank) {
    if (--places_[rank].num_posted == 0) wake(rank);
  }

  void mark(bool& flag, bool is_ready, std::size_t rank, const Action& action) {
    PRIMUS_CHECK(!flag, "{} runs twice", text(rank, action));
    PRIMUS_CHECK(is_ready, "{} runs too early", text(rank, action));
    flag = true;
  }

  /// Hands a result to the stage beside this one if that is on the same rank.
  void hand_over(std::size_t rank, Stage to, MicroBatch micro_batch, bool is_forward) {
    if (to.value < 0 || to.value >= shape_.num_stages()) return;
    if (place_of(shape_, to).rank.value == static_cast<int>(rank)) arrive(to, micro_batch, is_forward);
  }

  void compute(std::size_t rank, std::size_t index) {
    const Action& action = ranks_[rank][index];
    if (!is_compute(action.kind)) return;
    check_range(rank, action);
    const Stage stage = stage_at(shape_, {{static_cast<int>(rank)}, action.chunk});
    Cell& own = cell(stage, action.micro_batch);
    switch (action.kind) {
      case ActionKind::kForward:
        if (action.pairing == Pairing::kWithNext) check_pair(rank, index);
        mark(own.forward, own.has_input, rank, action);
        hand_over(rank, {stage.value + 1}, action.micro_batch, true);
        break;
      case ActionKind::kBackward:
        mark(own.backward, own.forward && own.has_gradient, rank, action);
        own.awaits_weight_grad = action.weight_grad == WeightGrad::kApart;
        hand_over(rank, {stage.value - 1}, action.micro_batch, false);
        break;
      default:
        PRIMUS_CHECK(own.awaits_weight_grad, "{} has nothing to do", text(rank, action));
        own.awaits_weight_grad = false;
    }
  }

  /// Both halves of a pair must be able to start before either ends.
  void check_pair(std::size_t rank, std::size_t index) {
    const std::vector<Action>& actions = ranks_[rank];
    PRIMUS_CHECK(index + 1 < actions.size() && actions[index + 1].kind == ActionKind::kBackward,
                 "{} is paired with no backward", text(rank, actions[index]));
    const Action& backward = actions[index + 1];
    check_range(rank, backward);
    const Cell& own = cell(stage_at(shape_, {{static_cast<int>(rank)}, backward.chunk}), backward.micro_batch);
    PRIMUS_CHECK(own.forward && own.has_gradient, "{} is paired with a forward and runs too early",
                 text(rank, backward));
  }

  void check_complete() {
    for (int stage = 0; stage < shape_.num_stages(); ++stage) {
      for (int m = 0; m < shape_.num_micro_batches; ++m) {
        const Cell& own = cell({stage}, {m});
        const int rank = place_of(shape_, {stage}).rank.value;
        PRIMUS_CHECK(own.backward, "rank {} never runs backward of micro-batch {}", rank, m);
        PRIMUS_CHECK(!own.awaits_weight_grad, "rank {} never computes the weight gradient of micro-batch {}", rank, m);
      }
    }
  }

  const Shape& shape_;
  const Order& ranks_;
  std::vector<Cell> cells_;
  std::vector<Place> places_;
  std::vector<std::vector<Channel>> channels_;  // by sending rank
  std::deque<std::size_t> queue_;
};

/// Each chunk's gradients are reduced once, behind the last of them; its parameters are gathered at most once, before
/// they are used; the optimizer comes last.
void check_frame(std::size_t rank, const std::vector<Action>& actions, const Shape& shape) {
  PRIMUS_CHECK(!actions.empty() && actions.back().kind == ActionKind::kOptimizerStep,
               "rank {}'s step does not end with the optimizer", rank);
  const auto num_chunks = static_cast<std::size_t>(shape.num_chunks);
  std::vector<bool> is_used(num_chunks, false);
  std::vector<bool> is_gathered(num_chunks, false);
  std::vector<bool> is_reduced(num_chunks, false);
  for (std::size_t i = 0; i + 1 < actions.size(); ++i) {
    const Action& action = actions[i];
    PRIMUS_CHECK(action.chunk.value >= 0 && action.chunk.value < shape.num_chunks, "{}: no such chunk",
                 text(rank, action));
    const auto chunk = static_cast<std::size_t>(action.chunk.value);
    PRIMUS_CHECK(action.kind != ActionKind::kOptimizerStep, "rank {} steps twice", rank);
    if (action.kind == ActionKind::kReduceGradients) {
      PRIMUS_CHECK(!is_reduced[chunk], "rank {} reduces chunk {} twice", rank, chunk);
      is_reduced[chunk] = true;
    } else if (action.kind == ActionKind::kGatherParameters) {
      PRIMUS_CHECK(!is_used[chunk] && !is_gathered[chunk], "rank {} gathers chunk {} too late", rank, chunk);
      is_gathered[chunk] = true;
    } else if (is_compute(action.kind)) {
      is_used[chunk] = true;
      PRIMUS_CHECK(!is_reduced[chunk], "{} comes after the chunk's reduction", text(rank, action));
    }
  }
  for (std::size_t chunk = 0; chunk < num_chunks; ++chunk) {
    PRIMUS_CHECK(is_reduced[chunk], "rank {} never reduces the gradients of chunk {}", rank, chunk);
  }
}

}  // namespace

void verify(const Schedule& schedule) {
  const Shape& shape = schedule.shape;
  PRIMUS_CHECK(static_cast<int>(schedule.ranks.size()) == shape.num_ranks, "{} lists for {} ranks",
               schedule.ranks.size(), shape.num_ranks);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) check_frame(rank, schedule.ranks[rank], shape);
  Walker(schedule).run();
  if (schedule.max_in_flight.empty()) return;
  PRIMUS_CHECK(schedule.max_in_flight.size() == schedule.ranks.size(), "bounds for {} of {} ranks",
               schedule.max_in_flight.size(), schedule.ranks.size());
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const int peak = peak_in_flight(schedule.ranks[rank]);
    PRIMUS_CHECK(peak <= schedule.max_in_flight[rank], "rank {} holds {} activations, more than its bound {}", rank,
                 peak, schedule.max_in_flight[rank]);
  }
}

}  // namespace primus::schedule
