#include "schedule/messages.hpp"

#include <algorithm>
#include <tuple>

#include "schedule/timing.hpp"

namespace primus::schedule {
namespace {

/// What stands at one moment: messages made by then first, then what closes or opens a chunk, then computation.
enum class Turn : std::uint8_t { kMessage, kReduce, kGather, kCompute };

struct Entry {
  double moment = 0.0;
  Turn turn = Turn::kCompute;
  int sequence = 0;  // among messages: one number for both ends; else the place in the rank's order
  Action action;

  bool operator<(const Entry& other) const {
    return std::tie(moment, turn, sequence) < std::tie(other.moment, other.turn, other.sequence);
  }
};

class TableWriter {
 public:
  TableWriter(const Shape& shape, const Order& order, ParameterGather gather)
      : shape_(shape), order_(order), gather_(gather), entries_(order.size()) {}

  Schedule write() {
    const std::vector<std::vector<Span>> spans = timed(shape_, order_, unit_durations());
    for (std::size_t rank = 0; rank < order_.size(); ++rank) {
      for (std::size_t i = 0; i < order_[rank].size(); ++i) add(rank, i, spans[rank][i]);
      add_chunk_actions(rank, spans[rank]);
    }
    Schedule schedule{shape_, Order(order_.size())};
    for (std::size_t rank = 0; rank < order_.size(); ++rank) {
      std::sort(entries_[rank].begin(), entries_[rank].end());
      schedule.ranks[rank].reserve(entries_[rank].size() + 1);
      for (const Entry& entry : entries_[rank]) schedule.ranks[rank].push_back(entry.action);
      schedule.ranks[rank].push_back({ActionKind::kOptimizerStep, {}, {}});
    }
    return schedule;
  }

 private:
  void add(std::size_t rank, std::size_t index, Span span) {
    const Action& action = order_[rank][index];
    entries_[rank].push_back({span.start, Turn::kCompute, static_cast<int>(index), action});
    const Stage stage = stage_at(shape_, {{static_cast<int>(rank)}, action.chunk});
    if (action.kind == ActionKind::kForward && stage.value + 1 < shape_.num_stages()) {
      send(action, stage, {stage.value + 1}, ActionKind::kSendForward, ActionKind::kReceiveForward, span.end);
    } else if (action.kind == ActionKind::kBackward && stage.value > 0) {
      send(action, stage, {stage.value - 1}, ActionKind::kSendBackward, ActionKind::kReceiveBackward, span.end);
    }
  }

  void send(const Action& action, Stage from, Stage to, ActionKind sending, ActionKind receiving, double moment) {
    const Place sender = place_of(shape_, from);
    const Place receiver = place_of(shape_, to);
    if (sender.rank == receiver.rank) return;  // the turn of a V, or one rank that holds all: nothing travels
    const int direction = sending == ActionKind::kSendForward ? 0 : 1;
    const int sequence = (action.micro_batch.value * shape_.num_stages() + from.value) * 2 + direction;
    entries(sender.rank).push_back({moment, Turn::kMessage, sequence, {sending, action.micro_batch, sender.chunk}});
    entries(receiver.rank)
        .push_back({moment, Turn::kMessage, sequence, {receiving, action.micro_batch, receiver.chunk}});
  }

  void add_chunk_actions(std::size_t rank, const std::vector<Span>& spans) {
    std::vector<double> first(static_cast<std::size_t>(shape_.num_chunks), -1.0);
    std::vector<double> last(first);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const auto chunk = static_cast<std::size_t>(order_[rank][i].chunk.value);
      if (first[chunk] < 0.0) first[chunk] = spans[i].start;
      last[chunk] = spans[i].end;
    }
    for (int chunk = 0; chunk < shape_.num_chunks; ++chunk) {
      const auto c = static_cast<std::size_t>(chunk);
      if (gather_ == ParameterGather::kPresent) {
        entries_[rank].push_back({first[c], Turn::kGather, chunk, {ActionKind::kGatherParameters, {}, {chunk}}});
      }
      entries_[rank].push_back({last[c], Turn::kReduce, chunk, {ActionKind::kReduceGradients, {}, {chunk}}});
    }
  }

  std::vector<Entry>& entries(PipelineRank rank) { return entries_[static_cast<std::size_t>(rank.value)]; }

  const Shape& shape_;
  const Order& order_;
  ParameterGather gather_;
  std::vector<std::vector<Entry>> entries_;
};

}  // namespace

Schedule with_messages(const Shape& shape, const Order& order, ParameterGather gather) {
  return TableWriter(shape, order, gather).write();
}

}  // namespace primus::schedule
