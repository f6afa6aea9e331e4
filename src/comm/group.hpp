#pragma once
// Groups of processes. Layers and engine ask a group for their collectives wherever a split model would need one;
// today every group has one member, for which they cost nothing.
#include "ops/dtype.hpp"

namespace primus::comm {

/// Number of a process within a group.
struct GroupRank {
  int value = 0;
};

/// A set of processes that enter each collective together, in the order that the plan fixes (D5).
class Group {
 public:
  virtual ~Group() = default;
  virtual GroupRank rank() const = 0;
  virtual int size() const = 0;
  /// In place, element-wise, over all members.
  virtual void all_reduce_sum(at::Tensor& values) = 0;
};

/// The group of one.
class SingleGroup final : public Group {
 public:
  GroupRank rank() const override { return {0}; }
  int size() const override { return 1; }
  void all_reduce_sum(at::Tensor&) override {}
};

/// The groups of one process, by what is split or replicated over them.
struct Groups {
  Group& tensor;
  Group& data;         // DP × CP: saw other tokens
  Group& expert_data;  // holds the same experts
  Group& pipeline;

  /// Every dimension of size one.
  static Groups single() {
    static SingleGroup one;
    return {one, one, one, one};
  }
};

}  // namespace primus::comm
