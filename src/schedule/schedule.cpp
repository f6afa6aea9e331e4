#include "schedule/schedule.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace primus::schedule {
namespace {

/// Appends one rank's actions, with the communication that its place in the pipeline needs.
class RankBuilder {
 public:
  RankBuilder(PipelineRank rank, Shape shape)
      : is_first_(rank.value == 0), is_last_(rank.value == shape.num_ranks - 1) {}

  void receive_forward(MicroBatch micro_batch) {
    if (!is_first_) add(ActionKind::kReceiveForward, micro_batch);
  }
  void send_forward(MicroBatch micro_batch) {
    if (!is_last_) add(ActionKind::kSendForward, micro_batch);
  }
  void receive_backward(MicroBatch micro_batch) {
    if (!is_last_) add(ActionKind::kReceiveBackward, micro_batch);
  }
  void send_backward(MicroBatch micro_batch) {
    if (!is_first_) add(ActionKind::kSendBackward, micro_batch);
  }
  void add(ActionKind kind, MicroBatch micro_batch = {}) { actions_.push_back({kind, micro_batch, Chunk{}}); }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  bool is_first_;
  bool is_last_;
  std::vector<Action> actions_;
};

std::vector<Action> rank_actions(PipelineRank rank, Shape shape) {
  RankBuilder builder(rank, shape);
  const int warm_up = std::min(shape.num_micro_batches, shape.num_ranks - rank.value - 1);
  const int steady = shape.num_micro_batches - warm_up;
  for (int m = 0; m < warm_up; ++m) {
    builder.receive_forward({m});
    builder.add(ActionKind::kForward, {m});
    builder.send_forward({m});
  }
  for (int i = 0; i < steady; ++i) {
    const MicroBatch forward{warm_up + i};
    const MicroBatch backward{i};
    builder.receive_forward(forward);
    builder.add(ActionKind::kForward, forward);
    builder.send_forward(forward);
    builder.receive_backward(backward);
    builder.add(ActionKind::kBackward, backward);
    builder.send_backward(backward);
  }
  for (int m = steady; m < shape.num_micro_batches; ++m) {
    builder.receive_backward({m});
    builder.add(ActionKind::kBackward, {m});
    builder.send_backward({m});
  }
  builder.add(ActionKind::kReduceGradients);
  builder.add(ActionKind::kOptimizerStep);
  return builder.take();
}

/// How far each micro-batch has come on one rank.
struct Progress {
  std::vector<bool> input;     // arrived from the previous stage
  std::vector<bool> gradient;  // arrived from the next stage
  std::vector<bool> forward;
  std::vector<bool> backward;
};

bool is_communication(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kReceiveForward || kind == ActionKind::kSendBackward ||
         kind == ActionKind::kReceiveBackward;
}

/// Walks all ranks together over unbuffered channels: a send completes only with its receive in the neighbour's batch.
class Walker {
 public:
  explicit Walker(const Schedule& schedule) : schedule_(schedule) {
    const auto micro_batches = static_cast<std::size_t>(schedule.shape.num_micro_batches);
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      const std::vector<bool> none(micro_batches, false);
      const std::vector<bool> all(micro_batches, true);
      progress_.push_back({rank == 0 ? all : none, rank + 1 == schedule.ranks.size() ? all : none, none, none});
      places_.push_back({0, std::vector<bool>(schedule.ranks[rank].size(), false)});
    }
  }

  void run() {
    while (!done()) {
      bool moved = false;
      for (std::size_t rank = 0; rank < places_.size(); ++rank) moved = advance(rank) || moved;
      PRIMUS_CHECK(moved, "deadlock: {}", where());
    }
    for (std::size_t rank = 0; rank < progress_.size(); ++rank) {
      for (std::size_t m = 0; m < progress_[rank].backward.size(); ++m) {
        PRIMUS_CHECK(progress_[rank].backward[m], "rank {} never runs backward of micro-batch {}", rank, m);
      }
    }
  }

 private:
  /// The first action that is not done, and which later ones of its batch are.
  struct Place {
    std::size_t next = 0;
    std::vector<bool> is_done;
  };

  bool done() const {
    for (std::size_t rank = 0; rank < places_.size(); ++rank) {
      if (places_[rank].next < schedule_.ranks[rank].size()) return false;
    }
    return true;
  }

  std::string where() const {
    std::string text;
    for (std::size_t rank = 0; rank < places_.size(); ++rank) {
      const std::vector<Action>& actions = schedule_.ranks[rank];
      if (places_[rank].next >= actions.size()) continue;
      const Action& action = actions[places_[rank].next];
      text += fmt::format("rank {} waits at {} of micro-batch {}; ", rank, name(action.kind), action.micro_batch.value);
    }
    return text;
  }

  void finish(std::size_t rank, std::size_t index) {
    Place& place = places_[rank];
    place.is_done[index] = true;
    while (place.next < place.is_done.size() && place.is_done[place.next]) ++place.next;
  }

  /// The neighbour's posted receive that answers a send; npos if it has not come to it.
  std::size_t posted(std::size_t rank, ActionKind kind, MicroBatch micro_batch) const {
    const std::vector<Action>& actions = schedule_.ranks[rank];
    for (std::size_t i = places_[rank].next; i < actions.size() && is_communication(actions[i].kind); ++i) {
      if (!places_[rank].is_done[i] && actions[i].kind == kind && actions[i].micro_batch == micro_batch) return i;
    }
    return std::string::npos;
  }

  bool meet(std::size_t sender, std::size_t index, std::size_t receiver, ActionKind receive, std::vector<bool>& arrived,
            const std::vector<bool>& ready) {
    const MicroBatch micro_batch = schedule_.ranks[sender][index].micro_batch;
    const std::size_t partner = posted(receiver, receive, micro_batch);
    if (partner == std::string::npos) return false;
    const auto m = static_cast<std::size_t>(micro_batch.value);
    PRIMUS_CHECK(ready[m], "rank {} sends micro-batch {} before it is computed", sender, m);
    arrived[m] = true;
    finish(sender, index);
    finish(receiver, partner);
    return true;
  }

  /// Completes what it can of the batch that a rank has posted.
  bool communicate(std::size_t rank) {
    const std::vector<Action>& actions = schedule_.ranks[rank];
    Progress& mine = progress_[rank];
    for (std::size_t i = places_[rank].next; i < actions.size() && is_communication(actions[i].kind); ++i) {
      if (places_[rank].is_done[i]) continue;
      bool met = false;
      if (actions[i].kind == ActionKind::kSendForward) {
        PRIMUS_CHECK(rank + 1 < places_.size(), "the last rank sends forward");
        met = meet(rank, i, rank + 1, ActionKind::kReceiveForward, progress_[rank + 1].input, mine.forward);
      } else if (actions[i].kind == ActionKind::kSendBackward) {
        PRIMUS_CHECK(rank > 0, "the first rank sends backward");
        met = meet(rank, i, rank - 1, ActionKind::kReceiveBackward, progress_[rank - 1].gradient, mine.backward);
      }
      if (met) return true;
    }
    return false;
  }

  void mark(std::vector<bool>& flags, std::size_t m, std::size_t rank, ActionKind kind) {
    PRIMUS_CHECK(!flags[m], "rank {} runs {} of micro-batch {} twice", rank, name(kind), m);
    flags[m] = true;
  }

  bool advance(std::size_t rank) {
    const std::size_t next = places_[rank].next;
    if (next >= schedule_.ranks[rank].size()) return false;
    const Action& action = schedule_.ranks[rank][next];
    if (is_communication(action.kind)) return communicate(rank);
    const auto m = static_cast<std::size_t>(action.micro_batch.value);
    Progress& mine = progress_[rank];
    if (action.kind == ActionKind::kForward) {
      PRIMUS_CHECK(mine.input[m], "rank {} runs forward of micro-batch {} without its input", rank, m);
      mark(mine.forward, m, rank, action.kind);
    } else if (action.kind == ActionKind::kBackward) {
      PRIMUS_CHECK(mine.forward[m] && mine.gradient[m], "rank {} runs backward of micro-batch {} too early", rank, m);
      mark(mine.backward, m, rank, action.kind);
    } else if (action.kind == ActionKind::kWeightGrad) {
      PRIMUS_CHECK(mine.backward[m], "rank {} runs the weight gradient of micro-batch {} too early", rank, m);
    }
    finish(rank, next);
    return true;
  }

  const Schedule& schedule_;
  std::vector<Place> places_;
  std::vector<Progress> progress_;
};

}  // namespace

std::string_view name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kWeightGrad:
      return "weight_grad";
    case ActionKind::kReceiveForward:
      return "receive_forward";
    case ActionKind::kSendForward:
      return "send_forward";
    case ActionKind::kReceiveBackward:
      return "receive_backward";
    case ActionKind::kSendBackward:
      return "send_backward";
    case ActionKind::kReduceGradients:
      return "reduce_gradients";
    case ActionKind::kOptimizerStep:
      return "optimizer_step";
  }
  return "?";
}

Schedule one_forward_one_backward(Shape shape) {
  PRIMUS_CHECK(shape.num_ranks >= 1 && shape.num_micro_batches >= 1, "{} ranks, {} micro-batches", shape.num_ranks,
               shape.num_micro_batches);
  Schedule schedule{shape, {}};
  for (int rank = 0; rank < shape.num_ranks; ++rank) schedule.ranks.push_back(rank_actions({rank}, shape));
  return schedule;
}

void verify(const Schedule& schedule) {
  PRIMUS_CHECK(static_cast<int>(schedule.ranks.size()) == schedule.shape.num_ranks, "{} lists for {} ranks",
               schedule.ranks.size(), schedule.shape.num_ranks);
  for (const std::vector<Action>& actions : schedule.ranks) {
    PRIMUS_CHECK(actions.size() >= 2 && actions.back().kind == ActionKind::kOptimizerStep &&
                     actions[actions.size() - 2].kind == ActionKind::kReduceGradients,
                 "a rank's step does not end with reduction and optimizer");
  }
  Walker(schedule).run();
}

}  // namespace primus::schedule
