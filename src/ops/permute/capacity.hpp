#pragma once
// The plan of a permutation whose experts take a bounded number of tokens. Legend as in permute.hpp; C capacity.
#include "ops/dtype.hpp"

namespace primus::ops {

/// Which choices an expert that more than C tokens chose keeps: those of the highest probability (ties: the earlier
/// token), or the first ones.
enum class DropPolicy { kProbability, kPosition };

/// Rows that an expert leaves free: not there at all, or there and without a choice, so that every expert has C rows.
enum class FreeRows { kLeftOut, kKept };

struct CapacityOptions {
  std::int64_t capacity = 0;
  DropPolicy drop = DropPolicy::kProbability;
  FreeRows free_rows = FreeRows::kLeftOut;
};

/// ceil(T·K/E · factor), at most T: no expert is chosen by more.
std::int64_t expert_capacity(std::int64_t tokens, std::int64_t top_k, std::int64_t experts, double factor);

/// As permute_plan, where a choice that was dropped has row_of −1 and a row without a choice slot_of −1. Of slot_of's
/// rows, the last ones past offsets[E] have no expert. prob_TK: what the choices compete with.
void permute_plan_within_capacity(const Tensor& index_TK, const Tensor& prob_TK, std::int64_t num_experts,
                                  const CapacityOptions& options, Tensor& offsets, Tensor& row_of_TK,
                                  Tensor& slot_of_R);

}  // namespace primus::ops
