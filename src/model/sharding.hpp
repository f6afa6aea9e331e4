#pragma once
// How one rank's share of the model and of a micro-batch is cut. Everything that is declared for a whole model is
// declared for a rank's share of it by the same functions.
#include <cmath>
#include <cstdint>

#include "base/error.hpp"
#include "model/parameters.hpp"

namespace primus::model {

struct Sharding {
  std::int64_t tensor = 1;
  std::int64_t context = 1;
  std::int64_t expert = 1;
  std::int64_t expert_tensor = 1;
  /// kByTensor: between attention and MLP, each tensor rank holds its part of the sequence alone.
  enum class Sequence { kWhole, kByTensor } sequence = Sequence::kWhole;
  /// Rows that the busiest rank's experts get, over the balanced number.
  double imbalance = 1.0;

  std::int64_t size(ShardGroup group) const {
    if (group == ShardGroup::kTensor) return tensor;
    return group == ShardGroup::kExpert ? expert : expert_tensor;
  }
  std::int64_t sequence_parts() const { return sequence == Sequence::kByTensor ? tensor : 1; }
  bool exchanges_rows() const { return expert * expert_tensor > 1; }
};

/// whole / parts, which must divide.
inline std::int64_t share(std::int64_t whole, std::int64_t parts) {
  PRIMUS_CHECK(parts > 0 && whole % parts == 0, "{} in {} parts", whole, parts);
  return whole / parts;
}

/// A parameter's shape on one rank, and its elements there.
std::vector<std::int64_t> local_shape(const ParameterDescriptor& parameter, const Sharding& sharding);
std::int64_t local_elements(const ParameterDescriptor& parameter, const Sharding& sharding);

}  // namespace primus::model
