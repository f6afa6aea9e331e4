#include "ops/permute/permute.hpp"

#include <cstring>
#include <limits>
#include <utility>

#include "ops/cuda_ops.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kBytesPerTask = 64 * 1024;
constexpr std::int64_t kValuesPerTask = 16 * 1024;
constexpr std::int64_t kPlanBlock = 8192;   // choices whose experts are counted, then placed, by one task
constexpr std::int64_t kColumnBlock = 512;  // accumulators of unpermute_sum: 2 or 4 KiB, in the L1 cache

void check_int32(const Tensor& x, std::int64_t numel, const char* name) {
  PRIMUS_CHECK(x.scalar_type() == at::kInt && x.is_contiguous(), "permute: {} must be int32, contiguous", name);
  PRIMUS_CHECK(x.numel() == numel, "permute: {} holds {} values, not {}", name, x.numel(), numel);
}

/// sum = from, or sum + from.
template <typename T, typename Acc>
void add_row(const T* from, std::int64_t n, Write write, Acc* sum) {
  if (write == Write::kOverwrite) {
    for (std::int64_t h = 0; h < n; ++h) sum[h] = static_cast<Acc>(from[h]);
  } else {
    for (std::int64_t h = 0; h < n; ++h) sum[h] += static_cast<Acc>(from[h]);
  }
}

template <typename T, typename Acc>
void store_row(const Acc* sum, std::int64_t n, T* to) {
  for (std::int64_t h = 0; h < n; ++h) to[h] = to_storage<T>(sum[h]);
}

struct Shape {
  std::int64_t tokens, top_k, width;
};

/// Checks rows [R, H], row_of [T, K] and tokens [T, H].
Shape checked_shape(const Tensor& rows_RH, const Tensor& row_of_TK, const Tensor& tokens_TH) {
  PRIMUS_CHECK(row_of_TK.dim() == 2, "permute: row_of_TK must be [T, K]");
  const Shape shape{row_of_TK.size(0), row_of_TK.size(1), tokens_TH.size(1)};
  check_int32(row_of_TK, shape.tokens * shape.top_k, "row_of_TK");
  PRIMUS_CHECK(shape.top_k >= 1, "permute: top_k is {}", shape.top_k);
  PRIMUS_CHECK(rows_RH.is_contiguous() && tokens_TH.is_contiguous() &&
                   rows_RH.scalar_type() == tokens_TH.scalar_type() && rows_RH.size(1) == shape.width &&
                   tokens_TH.size(0) == shape.tokens,
               "permute: rows do not agree");
  return shape;
}

std::int64_t tokens_per_task(std::int64_t token_bytes) {
  return std::max<std::int64_t>(1, kBytesPerTask / std::max<std::int64_t>(1, token_bytes));
}

void check_values(const Tensor& values, const Tensor& position, const Tensor& out) {
  check_int32(position, out.numel(), "the index");
  PRIMUS_CHECK(values.is_contiguous() && out.is_contiguous() && values.scalar_type() == out.scalar_type(),
               "permute: values do not agree");
  PRIMUS_CHECK(!values.is_cuda() || values.numel() == out.numel(), "permute: values do not agree in number");
}

/// out[i] = values[position[i]], 0 where there is no position.
void gather_values(const Tensor& values, const Tensor& position, Tensor& out) {
  const auto* index = position.data_ptr<std::int32_t>();
  dispatch_floating(values.scalar_type(), "permute_values", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* source = values.data_ptr<T>();
    T* target = out.data_ptr<T>();
    at::parallel_for(0, out.numel(), kValuesPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) target[i] = index[i] >= 0 ? source[index[i]] : T(0);
    });
  });
}

}  // namespace

void permute_plan(const Tensor& index_TK, std::int64_t num_experts, Tensor& offsets, Tensor& row_of_TK,
                  Tensor& slot_of_R) {
  const ZoneScope zone(Zone::kPermute);
  const std::int64_t num_slots = index_TK.numel();
  PRIMUS_CHECK(num_slots <= std::numeric_limits<std::int32_t>::max(), "permute: {} rows do not fit into int32",
               num_slots);
  check_int32(index_TK, num_slots, "index");
  check_int32(offsets, num_experts + 1, "offsets");
  check_int32(row_of_TK, num_slots, "row_of_TK");
  check_int32(slot_of_R, num_slots, "slot_of_R");
  if (index_TK.is_cuda()) return cuda_ops().permute_plan(index_TK, num_experts, offsets, row_of_TK, slot_of_R);
  const auto* expert = index_TK.data_ptr<std::int32_t>();
  auto* offset = offsets.data_ptr<std::int32_t>();
  auto* row = row_of_TK.data_ptr<std::int32_t>();
  auto* slot = slot_of_R.data_ptr<std::int32_t>();

  // A counting sort in three steps: each block counts its experts, the counts become each block's first row of every
  // expert, each block places its choices. Stable for any number of blocks and threads.
  const std::int64_t num_blocks = (num_slots + kPlanBlock - 1) / kPlanBlock;
  std::vector<std::int32_t> next_row(static_cast<std::size_t>(num_blocks * num_experts), 0);
  const auto for_each_block = [&](const auto& body) {
    at::parallel_for(0, num_blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        body(next_row.data() + b * num_experts, b * kPlanBlock, std::min(num_slots, (b + 1) * kPlanBlock));
      }
    });
  };
  for_each_block([&](std::int32_t* count, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      PRIMUS_CHECK(expert[i] >= -1 && expert[i] < num_experts, "permute: expert {} is not one of {}", expert[i],
                   num_experts);
      if (expert[i] >= 0) ++count[expert[i]];
    }
  });
  std::int32_t running = 0;
  for (std::int64_t e = 0; e < num_experts; ++e) {
    offset[e] = running;
    for (std::int64_t b = 0; b < num_blocks; ++b) {
      const std::int32_t count = std::exchange(next_row[static_cast<std::size_t>(b * num_experts + e)], running);
      running += count;
    }
  }
  offset[num_experts] = running;
  std::fill(slot + running, slot + num_slots, -1);
  for_each_block([&](std::int32_t* next, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      if (expert[i] < 0) {
        row[i] = -1;
        continue;
      }
      const std::int32_t r = next[expert[i]]++;
      row[i] = r;
      slot[r] = static_cast<std::int32_t>(i);
    }
  });
}

void permute_rows(const Tensor& x_TH, const Tensor& row_of_TK, Tensor& x_RH) {
  const ZoneScope zone(Zone::kPermute);
  const Shape shape = checked_shape(x_RH, row_of_TK, x_TH);
  if (x_TH.is_cuda()) return cuda_ops().permute_rows(x_TH, row_of_TK, x_RH);
  const auto* row_of = row_of_TK.data_ptr<std::int32_t>();
  const std::int64_t row_bytes = shape.width * static_cast<std::int64_t>(x_TH.element_size());
  const auto* source = static_cast<const char*>(x_TH.data_ptr());
  auto* target = static_cast<char*>(x_RH.data_ptr());
  at::parallel_for(
      0, shape.tokens, tokens_per_task(shape.top_k * row_bytes), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin * shape.top_k; i < end * shape.top_k; ++i) {
          PRIMUS_DCHECK(row_of[i] < x_RH.size(0), "permute: choice {} has row {} of {}", i, row_of[i], x_RH.size(0));
          if (row_of[i] < 0) continue;
          std::memcpy(target + row_of[i] * row_bytes, source + i / shape.top_k * row_bytes,
                      static_cast<std::size_t>(row_bytes));
        }
      });
}

void permute_values(const Tensor& prob_TK, const Tensor& slot_of_R, Tensor& prob_R) {
  const ZoneScope zone(Zone::kPermute);
  check_values(prob_TK, slot_of_R, prob_R);
  if (prob_TK.is_cuda()) return cuda_ops().permute_values(prob_TK, slot_of_R, prob_R);
  gather_values(prob_TK, slot_of_R, prob_R);
}

void unpermute_values(const Tensor& prob_R, const Tensor& row_of_TK, Tensor& prob_TK) {
  const ZoneScope zone(Zone::kPermute);
  check_values(prob_R, row_of_TK, prob_TK);
  if (prob_R.is_cuda()) return cuda_ops().unpermute_values(prob_R, row_of_TK, prob_TK);
  gather_values(prob_R, row_of_TK, prob_TK);
}

void unpermute_sum(const Tensor& y_RH, const Tensor& row_of_TK, Tensor& y_TH, Write write) {
  const ZoneScope zone(Zone::kPermute);
  const auto [num_tokens, top_k, width] = checked_shape(y_RH, row_of_TK, y_TH);
  if (y_RH.is_cuda()) return cuda_ops().unpermute_sum(y_RH, row_of_TK, y_TH, write);
  const auto* row_of = row_of_TK.data_ptr<std::int32_t>();
  dispatch_floating(y_TH.scalar_type(), "unpermute_sum", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const T* source = y_RH.data_ptr<T>();
    T* target = y_TH.data_ptr<T>();
    const std::int64_t token_bytes = top_k * width * static_cast<std::int64_t>(sizeof(T));
    at::parallel_for(0, num_tokens, tokens_per_task(token_bytes),
                     [&, top_k = top_k, width = width](std::int64_t begin, std::int64_t end) {
                       std::array<Acc, kColumnBlock> sum;
                       for (std::int64_t t = begin; t < end; ++t) {
                         for (std::int64_t column = 0; column < width; column += kColumnBlock) {
                           const std::int64_t block = std::min(kColumnBlock, width - column);
                           Write next = Write::kOverwrite;
                           for (std::int64_t k = 0; k < top_k; ++k) {
                             const std::int64_t r = row_of[t * top_k + k];
                             PRIMUS_DCHECK(r < y_RH.size(0), "permute: token {} asks for row {} of {}", t, r,
                                           y_RH.size(0));
                             if (r < 0) continue;
                             add_row(source + r * width + column, block, next, sum.data());
                             next = Write::kAccumulate;
                           }
                           if (next == Write::kOverwrite) std::fill_n(sum.begin(), block, Acc(0));
                           T* to = target + t * width + column;
                           if (write == Write::kAccumulate) add_row(to, block, write, sum.data());
                           store_row(sum.data(), block, to);
                         }
                       }
                     });
  });
}

}  // namespace primus::ops
