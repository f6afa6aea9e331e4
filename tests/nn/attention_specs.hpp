#pragma once
// Random choices of everything that attention can have, and packed documents to read.
#include <array>
#include <bit>
#include <random>

#include "nn/reference.hpp"
#include "nn/specs.hpp"

namespace primus::test {

/// A choice: how many values it can take, and the value taken.
struct Choice {
  int options = 2;
  int taken = 0;
};

enum AttentionChoice : int {
  kKind,  // latent with and without a query rank, multi-query, grouped, multi-head
  kNorms,
  kQkvBias,
  kLinearBias,
  kGate,
  kWindow,
  kSink,
  kSoftcap,
  kRope,
  kPairs,
  kRotated,  // whole heads, or the first part of each
  kPlainLayers,
  kDocuments,
  kSparse,  // dense, or keys picked: not taught, taught on all keys, taught on the picked ones
  kNumChoices
};
using AttentionChoices = std::array<Choice, kNumChoices>;

/// Each value of each choice with the same probability.
inline AttentionChoices attention_choices(std::uint64_t seed) {
  constexpr std::array<int, kNumChoices> kOptions = {5, 3, 2, 2, 2, 3, 3, 2, 4, 2, 2, 3, 3, 4};
  std::mt19937_64 generator(seed * 65537 + 11);
  AttentionChoices choices;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    choices[i] = {kOptions[i], std::uniform_int_distribution<int>(0, kOptions[i] - 1)(generator)};
  }
  return choices;
}

/// random_spec(seed) with this attention. Options that the kind of attention does not have are left out.
inline model::ModelSpec attention_spec(std::uint64_t seed, const AttentionChoices& choices) {
  std::mt19937_64 generator(seed * 31 + 5);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  };
  const auto taken = [&](AttentionChoice choice) { return choices[choice].taken; };
  const auto part = [](bool is_present) { return is_present ? model::Part::kPresent : model::Part::kAbsent; };
  model::ModelSpec spec = random_spec(seed);
  std::int64_t head_dim = 0;
  if (taken(kKind) < 2) {
    model::MlaSpec mla{.num_heads = pick(1, 4),
                       .q_lora_rank = {},
                       .kv_lora_rank = pick(2, 9),
                       .qk_head_dim = pick(1, 9),
                       .qk_pos_emb_head_dim = 2 * pick(1, 4),
                       .v_head_dim = pick(1, 9),
                       .latent_norms = part(taken(kNorms) > 0),
                       .output_gate = part(taken(kGate) == 1)};
    if (taken(kKind) == 1) mla.q_lora_rank = pick(2, 9);
    head_dim = mla.qk_pos_emb_head_dim;
    if (taken(kSparse) > 0) {
      model::IndexerSpec indexer{.num_heads = pick(1, 5), .head_dim = head_dim + pick(0, 5), .top_k = pick(1, 12)};
      if (std::has_single_bit(static_cast<std::uint64_t>(indexer.head_dim)) && pick(0, 2) == 0) ++indexer.head_dim;
      indexer.hadamard = part(std::has_single_bit(static_cast<std::uint64_t>(indexer.head_dim)));
      indexer.rectified = part(pick(0, 2) > 0);
      indexer.pairs = pick(0, 1) == 0 ? model::RopePairs::kHalves : model::RopePairs::kNeighbours;
      if (taken(kSparse) > 1) indexer.loss_coefficient = 0.7;
      indexer.sparse_loss = part(taken(kSparse) == 3);
      mla.indexer = indexer;
    }
    spec.attention = mla;
  } else {
    model::GqaSpec gqa;
    gqa.num_query_groups = taken(kKind) == 2 ? 1 : pick(2, 3);
    gqa.num_heads = gqa.num_query_groups * (taken(kKind) == 4 ? 1 : pick(2, 3));
    gqa.head_dim = 2 * pick(2, 5);
    gqa.qk_norms = part(taken(kNorms) == 1);
    gqa.qk_unit_norms = part(taken(kNorms) == 2);
    gqa.qkv_bias = part(taken(kQkvBias) == 1);
    gqa.output_gate = part(taken(kGate) == 1);
    head_dim = gqa.head_dim;
    spec.attention = gqa;
  }
  spec.linear_bias = part(taken(kLinearBias) == 1);
  if (taken(kWindow) == 1) spec.windows = {pick(1, 6), 0};
  if (taken(kWindow) == 2) spec.windows = {0, pick(3, 40)};
  spec.zero_sink = part(taken(kSink) == 1);
  spec.sinks = part(taken(kSink) == 2);
  spec.attention_softcap = taken(kSoftcap) == 1 ? 1.5 : 0.0;
  constexpr std::array kTypes = {model::RopeType::kNone, model::RopeType::kRope, model::RopeType::kLlama3,
                                 model::RopeType::kYarn};
  spec.rope = {.type = kTypes.at(static_cast<std::size_t>(taken(kRope))),
               .rotary_dim = head_dim,
               .base = 500.0,
               .scaling_factor = 8.0,
               .original_max_position = 24,
               .mscale = 0.707,
               .mscale_all_dim = pick(0, 1) == 0 ? 0.0 : 0.9,
               .rounded_range = part(pick(0, 1) == 1),
               .interpolation = pick(0, 1) == 0 ? 1.0 : 3.0,
               .pairs = taken(kPairs) == 0 ? model::RopePairs::kHalves : model::RopePairs::kNeighbours};
  if (taken(kRotated) == 1 && taken(kKind) >= 2) spec.rope.rotary_dim = 2 * pick(1, head_dim / 2);
  if (taken(kPlainLayers) == 1) spec.rotated_layers = {model::Part::kAbsent, model::Part::kPresent};
  if (taken(kPlainLayers) == 2) spec.rotated_layers = {model::Part::kPresent, model::Part::kAbsent};
  if (spec.rope.type == model::RopeType::kNone) spec.num_learned_positions = 40;
  return spec;
}

/// Documents of random lengths side by side: none, packed ones, or packed ones whose positions begin anew.
inline PackedDocuments packed_documents(int choice, model::BatchShape batch, std::mt19937_64& generator) {
  if (choice == 0) return {};
  Tensor position = at::empty({batch.num_sequences, batch.seq_length}, at::kLong);
  Tensor first = at::empty({batch.num_sequences, batch.seq_length}, at::kInt);
  for (std::int64_t b = 0; b < batch.num_sequences; ++b) {
    std::int32_t begin = 0;
    for (std::int64_t s = 0; s < batch.seq_length; ++s) {
      if (std::uniform_int_distribution<int>(0, 4)(generator) == 0) begin = static_cast<std::int32_t>(s);
      first[b][s] = begin;
      position[b][s] = s - begin;
    }
  }
  return {choice == 2 ? position : Tensor(), first};
}

}  // namespace primus::test
