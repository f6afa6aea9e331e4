#pragma once
// What the tests of whole steps on a GPU share.
#include "nn/rig.hpp"
#include "support/cuda.hpp"

namespace primus::test {

/// Sizes that tensor cores take, so that no op falls back to a plain path.
inline model::ModelSpec aligned_spec(std::uint64_t seed) {
  model::ModelSpec spec = random_spec(seed);
  spec.hidden_size = 64;
  spec.vocab_size = 100;
  spec.padded_vocab_size = 128;
  spec.dense_ffn_hidden_size = 96;
  spec.init_std = 0.1;
  model::MlaSpec mla;
  mla.num_heads = 2;
  mla.kv_lora_rank = 32;
  mla.qk_head_dim = 128;
  mla.qk_pos_emb_head_dim = 64;
  mla.v_head_dim = 128;
  spec.attention = mla;
  spec.rope = {.type = model::RopeType::kRope, .rotary_dim = 64};
  spec.moe->router.num_experts = 8;
  spec.moe->router.top_k = 2;
  spec.moe->ffn_hidden_size = 32;
  spec.moe->shared_ffn_hidden_size = 64;
  // Where rounding differs, a learnt choice may fall to another expert, and gradients are then another model's.
  spec.moe->router.balance = model::RouterSpec::Balance::kForced;
  return spec;
}

/// Steps that are recorded once and then replayed.
inline engine::StepSettings recorded_settings(const model::NumericPolicy& policy, model::BatchShape batch) {
  return {.policy = policy,
          .micro_batch = batch,
          .clip_grad = 1.0,
          .recompute = {},
          .loss_scale = {},
          .launch = engine::Launch::kRecorded};
}

}  // namespace primus::test
