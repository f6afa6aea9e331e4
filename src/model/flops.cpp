#include "model/flops.hpp"

namespace primus::model {
namespace {

/// Weights that one token meets in a layer's projections. Megatron counts a latent norm as one more output (its "+ 1").
std::int64_t attention_weights(const ModelSpec& spec) {
  const std::int64_t hidden = spec.hidden_size;
  if (const auto* mla = std::get_if<MlaSpec>(&spec.attention)) {
    const std::int64_t query_width = mla->num_heads * mla->query_dim();
    const std::int64_t query = mla->q_lora_rank ? *mla->q_lora_rank * (hidden + query_width + 1) : hidden * query_width;
    const std::int64_t kv = mla->kv_lora_rank * (hidden + mla->num_heads * (mla->qk_head_dim + mla->v_head_dim) + 1);
    return query + kv + hidden * mla->qk_pos_emb_head_dim + mla->num_heads * mla->v_head_dim * hidden;
  }
  const GqaSpec& gqa = std::get<GqaSpec>(spec.attention);
  const std::int64_t q = gqa.num_heads * gqa.head_dim;
  const std::int64_t kv = gqa.num_query_groups * gqa.head_dim;
  return hidden * (q + 2 * kv) + q * hidden;
}

/// Sum of the query/key and value sizes of all heads: the work of one score and its weighted value.
std::int64_t attention_widths(const ModelSpec& spec) {
  if (const auto* mla = std::get_if<MlaSpec>(&spec.attention)) {
    return mla->num_heads * (mla->query_dim() + mla->v_head_dim);
  }
  const GqaSpec& gqa = std::get<GqaSpec>(spec.attention);
  return 2 * gqa.num_heads * gqa.head_dim;
}

}  // namespace

FlopsPerToken flops_per_token(const ModelSpec& spec) {
  FlopsPerToken flops;
  const std::int64_t moe_layers = spec.num_moe_layers();
  const std::int64_t dense_layers = spec.num_layers() - moe_layers;
  flops.attention_linear = 2 * spec.num_layers() * attention_weights(spec);
  flops.attention_core = spec.num_layers() * attention_widths(spec) * spec.seq_length;  // 2 · seq/2
  flops.dense_mlp = 2 * 3 * spec.hidden_size * spec.dense_ffn_hidden_size * dense_layers;
  if (spec.moe) {
    flops.experts = 2 * 3 * spec.hidden_size * spec.moe->ffn_hidden_size * spec.moe->router.top_k * moe_layers;
    flops.shared_experts = 2 * 3 * spec.hidden_size * spec.moe->shared_ffn_hidden_size * moe_layers;
  }
  flops.output = 2 * spec.hidden_size * spec.padded_vocab_size;
  return flops;
}

}  // namespace primus::model
