#pragma once
// Element types into each other, rounded once, to the nearest and to even at a tie.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.hpp"

namespace primus::checkpoint {

/// Finite values that became infinite because the new type does not reach so far.
struct Converted {
  std::int64_t num_overflowed = 0;
};

/// Fill `out` with the values of `in`; both hold the same number of elements. Floating types only, unless both are the
/// same: then the bytes are copied. NaN stays NaN, infinities and signed zeros stay as they are.
Converted convert(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out);

}  // namespace primus::checkpoint
