#pragma once
// Layers whose tokens are mixed by something else than attention, and random sizes of it.
#include <random>

#include "nn/specs.hpp"

namespace primus::test {

/// The kinds of which a layer is built, attention apart.
inline constexpr std::array kBuiltMixers = {model::MixerKind::kShortConvolution, model::MixerKind::kGatedDelta,
                                            model::MixerKind::kKimiDelta};

/// Gives each layer one of the kinds at random, and the kinds random sizes. Attention is dense: no model has sparse
/// attention beside other mixers.
inline void randomise_mixers(model::ModelSpec& spec, std::uint64_t seed) {
  std::mt19937_64 generator(seed * 6151 + 17);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  };
  spec.short_convolution = {.kernel_size = pick(1, 5),
                            .bias = pick(0, 1) == 1 ? model::Part::kPresent : model::Part::kAbsent};
  model::GatedDeltaSpec& delta = spec.gated_delta;
  delta.num_key_heads = pick(1, 3);
  delta.num_value_heads = delta.num_key_heads * pick(1, 2);
  delta.key_head_dim = pick(2, 9);
  delta.value_head_dim = pick(2, 9);
  delta.kernel_size = pick(1, 5);
  // Draws of its own: sizes of the other kinds stay what they were.
  std::mt19937_64 for_kimi(seed * 3079 + 41);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(for_kimi);
  };
  model::GatedDeltaSpec& heads = spec.kimi_delta.heads;
  heads = {.num_key_heads = draw(1, 3), .key_head_dim = draw(2, 9), .value_head_dim = draw(2, 9)};
  heads.num_value_heads = heads.num_key_heads * draw(1, 2);
  heads.kernel_size = draw(1, 5);
  if (draw(0, 1) == 1) spec.kimi_delta.lowest_decay = draw(0, 1) == 0 ? -5.0 : -0.7;
  if (draw(0, 1) == 1) spec.kimi_delta.full_rank_gate = model::Part::kPresent;
  spec.kimi_delta.chunk_size = draw(0, 1) == 0 ? 64 : draw(1, 9);
  if (auto* mla = std::get_if<model::MlaSpec>(&spec.attention)) mla->indexer.reset();
  spec.choosing_layers.clear();
  spec.mixers.clear();
  for (std::size_t layer = 0; layer < spec.layers.size(); ++layer) {
    const auto kind = static_cast<std::size_t>(pick(0, std::ssize(kBuiltMixers)));
    spec.mixers.push_back(kind < kBuiltMixers.size() ? kBuiltMixers[kind] : model::MixerKind::kAttention);
  }
}

/// random_spec(seed) whose first layer is of this kind and whose second one is drawn.
inline model::ModelSpec mixer_spec(std::uint64_t seed, model::MixerKind kind) {
  model::ModelSpec spec = random_spec(seed);
  randomise_mixers(spec, seed);
  spec.mixers.front() = kind;
  return spec;
}

}  // namespace primus::test
