#pragma once
// The checksum of every stored tensor: CRC-32C (Castagnoli, RFC 3720), which finds any error of up to three bits and
// any burst of up to 32.
#include <cstddef>
#include <cstdint>
#include <span>

namespace primus::checkpoint {

/// Checksum of bytes that follow others: begin with 0, hand the last value on.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace primus::checkpoint
