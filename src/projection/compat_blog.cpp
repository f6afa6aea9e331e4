#include "projection/compat_blog.hpp"

#include "base/error.hpp"

namespace primus::projection {

BlogMemory blog_memory(const MemoryInputs& inputs) {
  const model::ModelSpec& spec = inputs.spec;
  if (!spec.moe) throw UserError("the deep-dive's accounting is for models of experts", ExitCode::kWrongInput);
  constexpr double kVocabulary = 100352.0;
  const auto hidden = static_cast<double>(spec.hidden_size);
  const auto ffn = static_cast<double>(spec.moe->ffn_hidden_size);
  const auto top_k = static_cast<double>(spec.moe->router.top_k);
  const auto stages = static_cast<double>(inputs.stages.num_ranks());
  const auto chunks = static_cast<double>(inputs.stages.num_chunks());
  const auto layers = static_cast<double>(spec.num_layers());
  const auto experts =
      static_cast<double>(spec.moe->router.num_experts) / static_cast<double>(inputs.grid.sizes().expert);
  const double parameters = layers / stages * (hidden * hidden + experts * 3.0 * hidden * ffn) + kVocabulary * hidden;
  const auto replicas = static_cast<double>(inputs.grid.num_expert_data());
  const double tokens =
      static_cast<double>(inputs.micro_batch.num_tokens()) / static_cast<double>(inputs.sharding.model.context);
  // In flight: those of an interleaved schedule's first rank, each of some layers of two-byte elements.
  const double in_flight = stages * chunks + stages - 1.0;
  const double per_layer = tokens * 2.0 * (top_k * (3.0 * ffn + hidden) + 5.25 * hidden);
  return {.parameters = 2.0 * parameters,
          .gradients = 2.0 * parameters,
          .main_parameters = 2.0 * parameters / replicas,
          .moments = 8.0 * parameters / replicas,
          .activations = in_flight * layers / (stages * chunks) * per_layer + 6.0 * kVocabulary * tokens +
                         3.0 * tokens * 2.0 * hidden};
}

}  // namespace primus::projection
