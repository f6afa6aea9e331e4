#pragma once
// A dense model's weights as those of a model with experts, Megatron's rules (arXiv 2410.07524), with the options of
// noise and of partial re-initialisation (arXiv 2502.19261).
#include "checkpoint/weights.hpp"

namespace primus::checkpoint {

struct UpcycleOptions {
  std::uint64_t seed = 1234;
  double noise_std = 0.0;      // of noise on the experts, relative to the standard deviation of the dense matrix
  double drop_fraction = 0.0;  // of each expert's units that are drawn anew
};

/// How experts follow from the dense MLP: `granularity` shards of it, each of them `copies` times.
struct UpcycleShape {
  std::int64_t granularity = 1;
  std::int64_t copies = 1;
  double weight_scale = 1.0;  // on both matrices, so that the step-0 output keeps its size
};

/// Throws ConfigError where the sizes do not fit: the dense MLP's width must be a multiple of the experts', their
/// number a multiple of that quotient, and (with a quotient above 1) top_k, too.
UpcycleShape upcycle_shape(const model::ModelSpec& dense, const model::ModelSpec& experts, const std::string& where);

/// The weights of `spec`, made from a dense model when they are asked for. Layers that stay dense, attention, norms and
/// embeddings are taken over. Expert r·granularity + g is shard g; routers are drawn anew, one row a copy.
/// Throws ConfigError for a parameter that has nothing to come from. The dense model must outlive the result.
std::unique_ptr<Weights> upcycle(const StoredModel& dense, const model::ModelSpec& spec, const UpcycleOptions& options);

}  // namespace primus::checkpoint
