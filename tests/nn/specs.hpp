#pragma once
// Small random model descriptions for the layer tests.
#include <random>

#include "model/model_spec.hpp"
#include "model/saved_tensors.hpp"

namespace primus::test {

/// A model of one dense and one MoE layer whose sizes divide nothing; the seed chooses sizes and options.
inline model::ModelSpec random_spec(std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  };
  model::ModelSpec spec;
  spec.hidden_size = pick(5, 23);
  spec.seq_length = 1;
  spec.vocab_size = pick(11, 40);
  spec.padded_vocab_size = spec.vocab_size + pick(0, 9);
  spec.dense_ffn_hidden_size = pick(3, 17);
  spec.layers = {model::LayerKind::kDense, model::LayerKind::kMoe};
  spec.norm_epsilon = 1e-5;
  spec.init_std = 0.3;  // large enough that every path matters
  spec.output_weight = pick(0, 1) == 0 ? model::OutputWeight::kOwn : model::OutputWeight::kTiedToEmbedding;
  if (pick(0, 2) > 0) {
    model::MlaSpec mla;
    mla.num_heads = pick(1, 4);
    if (pick(0, 1) == 1) mla.q_lora_rank = pick(2, 9);
    mla.kv_lora_rank = pick(2, 9);
    mla.qk_head_dim = pick(1, 9);
    mla.qk_pos_emb_head_dim = 2 * pick(1, 4);
    mla.v_head_dim = pick(1, 9);
    spec.attention = mla;
    spec.rope = {.type = model::RopeType::kYarn,
                 .rotary_dim = mla.qk_pos_emb_head_dim,
                 .scaling_factor = 40.0,
                 .original_max_position = 64,
                 .mscale = 0.707,
                 .mscale_all_dim = pick(0, 1) == 1 ? 0.707 : 1.0};
  } else {
    model::GqaSpec gqa;
    gqa.num_query_groups = pick(1, 3);
    gqa.num_heads = gqa.num_query_groups * pick(1, 3);
    gqa.head_dim = 2 * pick(1, 5);
    spec.attention = gqa;
    spec.rope = {.type = model::RopeType::kRope, .rotary_dim = gqa.head_dim};
  }
  model::MoeSpec moe;
  moe.router.num_experts = pick(1, 9);
  moe.router.top_k = pick(1, std::min<std::int64_t>(4, moe.router.num_experts));
  moe.router.softmax_order = pick(0, 1) == 0 ? model::SoftmaxOrder::kPre : model::SoftmaxOrder::kPost;
  moe.router.scaling_factor = pick(0, 1) == 0 ? 1.0 : 2.5;
  moe.router.load_balancing = std::array{model::LoadBalancing::kNone, model::LoadBalancing::kAuxLoss,
                                         model::LoadBalancing::kSeqAuxLoss}[static_cast<std::size_t>(pick(0, 2))];
  moe.router.aux_loss_coefficient = moe.router.load_balancing == model::LoadBalancing::kNone ? 0.0 : 0.5;
  moe.ffn_hidden_size = pick(1, 13);
  moe.shared_ffn_hidden_size = pick(0, 1) == 0 ? 0 : pick(1, 9);
  spec.moe = moe;
  return spec;
}

/// Batch sizes with one token, one sequence, and odd ones.
inline model::BatchShape random_batch(std::uint64_t seed) {
  std::mt19937_64 generator(seed * 7919 + 1);
  if (seed % 5 == 0) return {1, 1};
  return {std::uniform_int_distribution<std::int64_t>(1, 3)(generator),
          std::uniform_int_distribution<std::int64_t>(1, 19)(generator)};
}

}  // namespace primus::test
