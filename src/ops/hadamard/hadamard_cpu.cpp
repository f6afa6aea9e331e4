#include "ops/hadamard/hadamard.hpp"

#include <bit>
#include <cmath>

#include "ops/not_on_gpu.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

/// One row, butterflies of growing distance.
template <typename Acc>
void rotate_row(Acc* row, std::int64_t width, Acc factor) {
  for (std::int64_t half = 1; half < width; half *= 2) {
    for (std::int64_t first = 0; first < width; first += 2 * half) {
      Acc* low = row + first;
      Acc* high = low + half;
#pragma omp simd
      for (std::int64_t i = 0; i < half; ++i) {
        const Acc sum = low[i] + high[i];
        high[i] = low[i] - high[i];
        low[i] = sum;
      }
    }
  }
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) row[i] *= factor;
}

}  // namespace

void hadamard_rotate(Tensor& x_RD) {
  const ZoneScope zone(Zone::kRope);
  PRIMUS_CHECK(x_RD.dim() == 2 && x_RD.is_contiguous(), "hadamard: x must be [R, D] and contiguous");
  const std::int64_t width = x_RD.size(1);
  PRIMUS_CHECK(std::has_single_bit(static_cast<std::uint64_t>(width)), "hadamard: a width of {}", width);
  if (x_RD.is_cuda()) throw_not_on_gpu("experimental_attention_variant");
  dispatch_floating(x_RD.scalar_type(), "hadamard_rotate", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    T* const x = x_RD.data_ptr<T>();
    const Acc factor = Acc{1} / std::sqrt(static_cast<Acc>(width));
    constexpr std::int64_t kElementsPerTask = 1 << 14;
    at::parallel_for(0, x_RD.size(0), std::max<std::int64_t>(1, kElementsPerTask / width),
                     [&](std::int64_t begin, std::int64_t end) {
                       std::vector<Acc> row(static_cast<std::size_t>(width));
                       for (std::int64_t r = begin; r < end; ++r) {
                         T* const values = x + r * width;
                         for (std::int64_t i = 0; i < width; ++i)
                           row[static_cast<std::size_t>(i)] = static_cast<Acc>(values[i]);
                         rotate_row(row.data(), width, factor);
                         for (std::int64_t i = 0; i < width; ++i)
                           values[i] = static_cast<T>(row[static_cast<std::size_t>(i)]);
                       }
                     });
  });
}

}  // namespace primus::ops
