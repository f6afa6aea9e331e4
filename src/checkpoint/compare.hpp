#pragma once
// Two checkpoints, tensor by tensor: what is in one alone, and how far values lie apart.
#include "checkpoint/import.hpp"

namespace primus::checkpoint {

/// A tensor that is not the same on both sides.
struct TensorDifference {
  enum class Kind { kOnlyInFirst, kOnlyInSecond, kOtherShape, kOtherType, kOtherValues };

  Kind kind = Kind::kOtherValues;
  std::string name;
  std::string part;           // kWeight, or the kind of state
  std::string first, second;  // type and shape; empty where it is not there
  std::int64_t num_elements = 0;
  std::int64_t num_different = 0;
  double largest = 0.0;            // of |first - second|; NaN where one side alone is no number
  std::optional<double> relative;  // norm of the difference over the second's norm; absent for bytes without a number
};

/// A number or setting of training that is not the same.
struct FieldDifference {
  std::string name;
  std::string first, second;
};

struct Comparison {
  std::vector<TensorDifference> tensors;
  std::vector<FieldDifference> fields;
  std::int64_t num_equal = 0;
  bool is_equal() const { return tensors.empty() && fields.empty(); }
};

/// Weights of two models under our names, whatever they are stored as; of two training checkpoints the optimizer's
/// state and the numbers that a run goes on from as well. One block is held, and of the state one tensor a side.
/// Throws DamagedError where a checksum does not fit.
Comparison compare(const StoredModel& first, const StoredModel& second, const Progress& progress);

}  // namespace primus::checkpoint
