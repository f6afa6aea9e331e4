#pragma once
// How many tokens' logits the fused loss holds at once: the trainer cuts by it, the projection counts by it.
#include <algorithm>
#include <cstdint>

namespace primus::model {

/// Whole tiles of a product's rows whose logits, of `row_bytes` a token, take about 800 MiB; one tile at least. Each
/// chunk reads and writes the whole main gradient once, so they are as large as the memory that a step may take: a step
/// of many layers is fullest at the end of its backward, when all gradients are there, not in the loss.
inline std::int64_t device_logit_chunk(std::int64_t row_bytes) {
  constexpr std::int64_t kChunkBytes = std::int64_t{800} << 20;
  constexpr std::int64_t kTile = 128;
  return std::max(kTile, kChunkBytes / std::max<std::int64_t>(row_bytes, 1) / kTile * kTile);
}

/// On a CPU the logits take about 8 MiB, so that the three passes over them come from the cache, yet enough rows for
/// the matrix products.
inline std::int64_t host_logit_chunk(std::int64_t row_bytes) {
  constexpr std::int64_t kChunkBytes = std::int64_t{8} << 20;
  constexpr std::int64_t kFewestTokens = 64;
  return std::max(kFewestTokens, kChunkBytes / std::max<std::int64_t>(row_bytes, 1));
}

}  // namespace primus::model
