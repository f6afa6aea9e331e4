// What the mixers of a layer keep.
#include "base/error.hpp"
#include "model/saved_parts.hpp"

namespace primus::model {
namespace {

SavedDeclaration attention_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, int layer,
                                 const Sharding& sharding) {
  const auto [inside, between] = local_tokens(batch, sharding);
  const std::int64_t positions = share(batch.seq_length, sharding.context);
  const auto category = SavedCategory::kAttention;
  if (const auto* mla = std::get_if<MlaSpec>(&spec.attention)) {
    const std::int64_t heads = share(mla->num_heads, sharding.tensor);
    const std::int64_t q_rank = mla->q_lora_rank.value_or(0);
    const std::int64_t q_rows = mla->q_lora_rank ? between : 0;
    const bool has_norms = mla->latent_norms == Part::kPresent;
    const std::int64_t gated = mla->output_gate == Part::kPresent ? inside : 0;
    const std::int64_t choosing = spec.picks_keys(layer) ? positions : 0;
    constexpr std::int64_t kKeysPerWord = 32;
    const std::int64_t words = (batch.seq_length + kKeysPerWord - 1) / kKeysPerWord;
    return {{{"query_down", {q_rows, q_rank}, policy.activations, category},
             {"query_down_rstd", {statistics_of(spec, has_norms ? q_rows : 0)}, policy.statistics, category},
             {"kv_down", {between, mla->kv_lora_rank + mla->qk_pos_emb_head_dim}, policy.activations, category},
             {"kv_down_rstd", {statistics_of(spec, has_norms ? between : 0)}, policy.statistics, category},
             {"query", {inside, heads, mla->query_dim()}, policy.activations, category},
             {"key", {inside, heads, mla->query_dim()}, policy.activations, category},
             {"value", {inside, heads, mla->v_head_dim}, policy.activations, category},
             {"context", {inside, heads, mla->v_head_dim}, policy.activations, category},
             {"log_sum_exp", {batch.num_sequences, heads, positions}, policy.statistics, category},
             {"gate", {gated, heads, mla->v_head_dim}, policy.activations, category},
             {"selected", {batch.num_sequences, choosing, words}, DType::kInt32, category, Lifetime::kPinned}},
            {}};
  }
  const GqaSpec& gqa = std::get<GqaSpec>(spec.attention);
  const std::int64_t heads = share(gqa.num_heads, sharding.tensor);
  const std::int64_t groups = share(gqa.num_query_groups, sharding.tensor);
  // Norms without a weight are RMSNorms in every model.
  const std::int64_t rows = gqa.has_norms() ? inside : 0;
  const std::int64_t normed = gqa.qk_norms == Part::kPresent ? statistics_of(spec, rows) : rows;
  return {{{"qkv", {inside, share(gqa.num_fused_heads(), sharding.tensor), gqa.head_dim}, policy.activations, category},
           {"context", {inside, heads, gqa.head_dim}, policy.activations, category},
           {"log_sum_exp", {batch.num_sequences, heads, positions}, policy.statistics, category},
           {"query_rstd", {normed, heads}, policy.statistics, category},
           {"key_rstd", {normed, groups}, policy.statistics, category}},
          {}};
}

SavedDeclaration gated_delta_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch,
                                   const Sharding& sharding) {
  const GatedDeltaSpec& delta = spec.gated_delta;
  const std::int64_t tokens = local_tokens(batch, sharding).inside;
  return {{{"projected",
            {tokens, share(delta.projected_width(), sharding.tensor)},
            policy.activations,
            SavedCategory::kAttention},
           {"context",
            {tokens, share(delta.num_value_heads, sharding.tensor), delta.value_head_dim},
            policy.activations,
            SavedCategory::kAttention}},
          {}};
}

SavedDeclaration kimi_delta_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch,
                                  const Sharding& sharding) {
  const KimiDeltaSpec& delta = spec.kimi_delta;
  const auto [inside, between] = local_tokens(batch, sharding);
  const auto category = SavedCategory::kAttention;
  return {{{"projected", {inside, share(delta.projected_width(), sharding.tensor)}, policy.activations, category},
           {"low_rank", {between, delta.low_rank_width()}, policy.activations, category},
           {"context",
            {inside, share(delta.heads.num_value_heads, sharding.tensor), delta.heads.value_head_dim},
            policy.activations,
            category}},
          {}};
}

SavedDeclaration short_convolution_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch,
                                         const Sharding& sharding) {
  return {{{"projected",
            {local_tokens(batch, sharding).inside, 3 * spec.hidden_size},
            policy.activations,
            SavedCategory::kAttention}},
          {}};
}

}  // namespace

bool has_saved_tensors(MixerKind mixer) {
  return mixer != MixerKind::kUnknown;
}

SavedDeclaration mixer_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, int layer,
                             const Sharding& sharding) {
  switch (spec.mixer(layer)) {
    case MixerKind::kAttention:
      return attention_saved(spec, policy, batch, layer, sharding);
    case MixerKind::kShortConvolution:
      return short_convolution_saved(spec, policy, batch, sharding);
    case MixerKind::kGatedDelta:
      return gated_delta_saved(spec, policy, batch, sharding);
    case MixerKind::kKimiDelta:
      return kimi_delta_saved(spec, policy, batch, sharding);
    case MixerKind::kUnknown:
      break;
  }
  PRIMUS_CHECK(false, "what the mixer of layer {} keeps is not described", layer);
}

}  // namespace primus::model
