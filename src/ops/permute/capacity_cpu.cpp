#include "ops/permute/capacity.hpp"

#include <algorithm>
#include <cmath>

#include "ops/not_on_gpu.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

/// Choices (t·K + k) of each expert, in the order of tokens.
std::vector<std::vector<std::int32_t>> choices_by_expert(const std::int32_t* index, std::int64_t num_slots,
                                                         std::int64_t num_experts) {
  std::vector<std::vector<std::int32_t>> slots(static_cast<std::size_t>(num_experts));
  for (std::int64_t i = 0; i < num_slots; ++i) {
    PRIMUS_CHECK(index[i] >= -1 && index[i] < num_experts, "permute: expert {} is not one of {}", index[i],
                 num_experts);
    if (index[i] >= 0) slots[static_cast<std::size_t>(index[i])].push_back(static_cast<std::int32_t>(i));
  }
  return slots;
}

/// Leaves at most `capacity` of an expert's choices, in the order of tokens.
template <typename T>
void drop(const T* prob, const CapacityOptions& options, std::vector<std::int32_t>& slots) {
  const auto capacity = static_cast<std::size_t>(options.capacity);
  if (slots.size() <= capacity) return;
  if (options.drop == DropPolicy::kProbability) {
    const auto goes_first = [&](std::int32_t a, std::int32_t b) {
      return prob[a] != prob[b] ? prob[a] > prob[b] : a < b;
    };
    std::nth_element(slots.begin(), slots.begin() + options.capacity, slots.end(), goes_first);
    std::sort(slots.begin(), slots.begin() + options.capacity);
  }
  slots.resize(capacity);
}

}  // namespace

std::int64_t expert_capacity(std::int64_t tokens, std::int64_t top_k, std::int64_t experts, double factor) {
  const double share = static_cast<double>(tokens * top_k) / static_cast<double>(experts);
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(share * factor)));
}

void permute_plan_within_capacity(const Tensor& index_TK, const Tensor& prob_TK, std::int64_t num_experts,
                                  const CapacityOptions& options, Tensor& offsets, Tensor& row_of_TK,
                                  Tensor& slot_of_R) {
  const ZoneScope zone(Zone::kPermute);
  if (index_TK.is_cuda()) throw_not_on_gpu("moe_expert_capacity_factor");
  const auto is_int32 = [](const Tensor& x, std::int64_t numel) {
    return x.scalar_type() == at::kInt && x.is_contiguous() && x.numel() == numel;
  };
  const std::int64_t num_slots = index_TK.numel();
  const std::int64_t num_rows = slot_of_R.numel();
  PRIMUS_CHECK(is_int32(index_TK, num_slots) && is_int32(offsets, num_experts + 1) && is_int32(row_of_TK, num_slots) &&
                   is_int32(slot_of_R, num_rows),
               "permute: index, offsets, row_of and slot_of must be int32, contiguous, of the plan's sizes");
  PRIMUS_CHECK(prob_TK.is_contiguous() && prob_TK.numel() == num_slots, "permute: one probability a choice");
  auto slots = choices_by_expert(index_TK.data_ptr<std::int32_t>(), num_slots, num_experts);
  dispatch_floating(prob_TK.scalar_type(), "permute_plan_within_capacity", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::vector<std::int32_t>& of_expert : slots) drop(prob_TK.data_ptr<T>(), options, of_expert);
  });
  auto* offset = offsets.data_ptr<std::int32_t>();
  auto* row_of = row_of_TK.data_ptr<std::int32_t>();
  auto* slot_of = slot_of_R.data_ptr<std::int32_t>();
  std::fill_n(row_of, num_slots, -1);
  std::fill_n(slot_of, num_rows, -1);
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < num_experts; ++e) {
    const std::vector<std::int32_t>& of_expert = slots[static_cast<std::size_t>(e)];
    offset[e] = static_cast<std::int32_t>(first);
    const std::int64_t rows = options.free_rows == FreeRows::kKept ? options.capacity : std::ssize(of_expert);
    PRIMUS_CHECK(first + rows <= num_rows, "permute: {} rows are too few for the plan", num_rows);
    for (std::int64_t i = 0; i < std::ssize(of_expert); ++i) {
      const std::int32_t slot = of_expert[static_cast<std::size_t>(i)];
      row_of[slot] = static_cast<std::int32_t>(first + i);
      slot_of[first + i] = slot;
    }
    first += rows;
  }
  offset[num_experts] = static_cast<std::int32_t>(first);
}

}  // namespace primus::ops
