#pragma once
// What the declarations of saved tensors share.
#include "model/saved_tensors.hpp"

namespace primus::model {

/// Statistics that `rows` rows of a norm leave: rstd, and a LayerNorm's means behind it.
inline std::int64_t statistics_of(const ModelSpec& spec, std::int64_t rows) {
  return spec.norm == NormKind::kLayer ? 2 * rows : rows;
}

/// Tokens that a rank sees inside mixers and MLPs, and between them.
struct LocalTokens {
  std::int64_t inside = 0;
  std::int64_t between = 0;
};

inline LocalTokens local_tokens(BatchShape batch, const Sharding& sharding) {
  const std::int64_t inside = share(batch.num_tokens(), sharding.context);
  return {inside, share(inside, sharding.sequence_parts())};
}

}  // namespace primus::model
