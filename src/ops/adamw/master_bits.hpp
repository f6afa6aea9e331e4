#pragma once
// An fp32 master value in two halves: the bf16 weight that products read and the master's low 16 bits. Together they
// are the master, bit for bit, in 4 bytes instead of 6. The weight is the master rounded to the nearest, and a tie away
// from zero: with ties to even, two masters would have the same halves. Compiled by host and device compilers.
#include <cstdint>

#include "ops/gpu/host_device.hpp"

namespace primus::ops {

/// The bits of the bf16 weight of a master.
PRIMUS_HOST_DEVICE inline std::uint16_t weight_bits(std::uint32_t master) {
  return static_cast<std::uint16_t>((master + 0x8000U) >> 16U);
}

/// The bits of the master: low bits from 0x8000 on say that the weight was rounded up.
PRIMUS_HOST_DEVICE inline std::uint32_t master_bits(std::uint16_t weight, std::uint16_t low) {
  return ((static_cast<std::uint32_t>(weight) - (low >> 15U)) << 16U) | low;
}

}  // namespace primus::ops
