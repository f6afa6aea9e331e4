#pragma once
// From the order of computation to the whole table: messages, gathering, reduction, the optimizer's step.
#include "schedule/schedule.hpp"

namespace primus::schedule {

/// Whether a chunk's parameters are gathered before its first forward (a distributed optimizer keeps parts of them).
enum class ParameterGather : std::uint8_t { kAbsent, kPresent };

/// Adds what stands between computations. A message takes the moment in which it is made (all actions as long as each
/// other) as its place in the lists of both ranks: so all messages have one order that every list follows, and no two
/// ranks can wait for each other.
Schedule with_messages(const Shape& shape, const Order& order, ParameterGather gather);

}  // namespace primus::schedule
