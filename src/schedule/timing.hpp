#pragma once
// When each action of a table runs, if every rank works through its list in order and messages travel beside the work:
// a receive is waited for only by the action that reads it.
#include <functional>
#include <vector>

#include "schedule/schedule.hpp"

namespace primus::schedule {

struct Span {
  double start = 0.0;
  double end = 0.0;
};

/// How long things take, in any unit.
struct Durations {
  std::function<double(const Action& action, Stage stage)> alone;  // of every action but messages
  /// A forward and a backward side by side; never called for tables without pairs.
  std::function<double(const Action& forward, Stage forward_stage, const Action& backward, Stage backward_stage)> pair;
  double message = 0.0;  // between two ranks, from the end of one action to where the next one may start
};

/// Spans of every action, rank by rank; messages have none of their own and stand at the time of their rank. Throws
/// InternalError where the ranks wait for each other for ever.
std::vector<std::vector<Span>> timed(const Shape& shape, const Order& ranks, const Durations& durations);

/// Forward, input gradient and weight gradient as long as each other (1): what tables are built with.
Durations unit_durations();

}  // namespace primus::schedule
