#pragma once
// Element types of kernels, for host code as well: no runtime and no torch headers.
#include <cstdint>

namespace primus::gpu {

/// bfloat16 by its bits: the vendors' own types differ in name and in what they convert to.
struct Bf16 {
  std::uint16_t bits;
};

}  // namespace primus::gpu
