#pragma once
// Orders that are found by trying: each rank takes, whenever it is free, what a rule prefers among what is ready.
#include "schedule/orders.hpp"
#include "schedule/timing.hpp"

namespace primus::schedule {

struct SearchProblem {
  Shape shape;
  WeightGrad weight_grad = WeightGrad::kApart;
  std::vector<int> max_in_flight;  // chunk activations a rank, at least V
  Durations durations;
};

struct FoundOrder {
  Order order;
  double step = 0.0;  // its length with the problem's durations
};

/// The shortest of the orders that a fixed set of rules gives, the same for the same problem. A forward of an early
/// chunk always leaves room for its later ones, so that no order can get stuck.
FoundOrder search_order(const SearchProblem& problem);

}  // namespace primus::schedule
