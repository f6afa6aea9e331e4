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
    const std::int64_t values = mla->num_heads * mla->v_head_dim;
    const std::int64_t gate = mla->output_gate == Part::kPresent ? values * hidden : 0;
    return query + kv + hidden * mla->qk_pos_emb_head_dim + gate + values * hidden;
  }
  const GqaSpec& gqa = std::get<GqaSpec>(spec.attention);
  const std::int64_t q = gqa.num_heads * gqa.head_dim;
  const std::int64_t kv = gqa.num_query_groups * gqa.head_dim;
  const std::int64_t gate = gqa.output_gate == Part::kPresent ? q : 0;
  return hidden * (q + 2 * kv + gate) + q * hidden;
}

/// The same of what stands behind a delta rule's projections. Megatron counts the update of a state as four products of
/// a value head with itself.
std::int64_t delta_rule_weights(const ModelSpec& spec, const GatedDeltaSpec& delta) {
  const std::int64_t convolved = 2 * delta.key_width() + delta.value_width();
  const std::int64_t update = delta.num_value_heads * delta.value_head_dim * delta.value_head_dim * 4;
  return delta.kernel_size * convolved + update + spec.hidden_size * delta.value_width();
}

std::int64_t gated_delta_weights(const ModelSpec& spec) {
  return spec.hidden_size * spec.gated_delta.projected_width() + delta_rule_weights(spec, spec.gated_delta);
}

std::int64_t kimi_delta_weights(const ModelSpec& spec) {
  const KimiDeltaSpec& delta = spec.kimi_delta;
  const std::int64_t gate = delta.has_low_rank_gate() ? delta.heads.value_width() : 0;
  return spec.hidden_size * (delta.projected_width() + delta.low_rank_width()) +
         delta.rank() * (delta.decay_width() + gate) + delta_rule_weights(spec, delta.heads);
}

/// The same of a short convolution between two projections.
std::int64_t short_convolution_weights(const ModelSpec& spec) {
  return 4 * spec.hidden_size * spec.hidden_size + spec.short_convolution.kernel_size * spec.hidden_size;
}

/// The same of the indexer of sparse attention.
std::int64_t indexer_weights(const ModelSpec& spec) {
  const IndexerSpec& indexer = *spec.indexer();
  const std::int64_t input = std::get<MlaSpec>(spec.attention).indexer_input(spec.hidden_size);
  return indexer.query_width() * input + spec.hidden_size * (indexer.head_dim + indexer.num_heads);
}

/// The same of a layer's mixer; of a kind that is not known, none.
std::int64_t mixer_weights(const ModelSpec& spec, int layer) {
  switch (spec.mixer(layer)) {
    case MixerKind::kAttention:
      return attention_weights(spec) + (spec.picks_keys(layer) ? indexer_weights(spec) : 0);
    case MixerKind::kGatedDelta:
      return gated_delta_weights(spec);
    case MixerKind::kKimiDelta:
      return kimi_delta_weights(spec);
    case MixerKind::kShortConvolution:
      return short_convolution_weights(spec);
    case MixerKind::kUnknown:
      return 0;
  }
  return 0;
}

/// Numbers that one token meets around both halves of a layer with several residual streams: the products that make the
/// weights of reading and writing, and the streams read, written and mixed.
std::int64_t hyper_weights(const ModelSpec& spec) {
  if (!spec.hyper) return 0;
  const std::int64_t logits = spec.hyper->num_logits();
  return 2 * (spec.residual_width() * logits + spec.hidden_size * logits);
}

/// The same of the head before an output.
std::int64_t hyper_head_weights(const ModelSpec& spec) {
  return spec.hyper && spec.hyper->has_head() ? spec.residual_width() * (spec.num_streams() + 1) : 0;
}

/// Weights that one token meets in its routed experts.
std::int64_t expert_weights(const ModelSpec& spec, const MoeSpec& moe) {
  const std::int64_t width = moe.latent ? moe.latent->size : spec.hidden_size;
  const std::int64_t latent = moe.latent ? 2 * spec.hidden_size * width : 0;
  return spec.num_mlp_matrices() * width * moe.ffn_hidden_size * moe.router.top_k + latent;
}

/// Sum of the query/key and value sizes of all heads: the work of one score and its weighted value.
std::int64_t attention_widths(const ModelSpec& spec) {
  if (const auto* mla = std::get_if<MlaSpec>(&spec.attention)) {
    return mla->num_heads * (mla->query_dim() + mla->v_head_dim);
  }
  const GqaSpec& gqa = std::get<GqaSpec>(spec.attention);
  return 2 * gqa.num_heads * gqa.head_dim;
}

/// Twice the mean number of keys of a query of which `most` count at most (0: all). As in Megatron's formula, a query
/// sees half of the sequence; w of it at most are w − w²/(2·S).
std::int64_t doubled_keys(const ModelSpec& spec, std::int64_t most) {
  const bool is_full = most == 0 || most >= spec.seq_length;
  return is_full ? spec.seq_length : most * (2 * spec.seq_length - most) / spec.seq_length;
}

/// Scores and weighted values of a layer's attention, and the scores of an indexer, one product of its heads a key.
std::int64_t core_flops(const ModelSpec& spec, int layer) {
  if (spec.mixer(layer) != MixerKind::kAttention) return 0;
  const std::int64_t attention = attention_widths(spec) * doubled_keys(spec, spec.most_keys(layer));
  if (!spec.picks_keys(layer)) return attention;
  return attention + spec.indexer()->query_width() * doubled_keys(spec, spec.window(layer));
}

}  // namespace

FlopsPerToken flops_per_token(const ModelSpec& spec) {
  FlopsPerToken flops;
  const std::int64_t moe_layers = spec.num_moe_layers();
  const std::int64_t dense_layers = spec.num_layers() - moe_layers;
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    flops.attention_linear += 2 * mixer_weights(spec, layer);
    flops.attention_core += core_flops(spec, layer);
  }
  const std::int64_t mlp_factor = 2 * spec.num_mlp_matrices() * spec.hidden_size;
  flops.dense_mlp = mlp_factor * spec.dense_ffn_hidden_size * dense_layers;
  if (spec.moe) {
    flops.experts = 2 * expert_weights(spec, *spec.moe) * moe_layers;
    flops.shared_experts = mlp_factor * spec.moe->shared_ffn_hidden_size * moe_layers;
  }
  flops.hyper_connections = 2 * hyper_weights(spec) * spec.num_layers();
  flops.output = 2 * (spec.hidden_size * spec.padded_vocab_size + hyper_head_weights(spec));
  return flops;
}

std::int64_t mtp_training_flops_per_token(const ModelSpec& spec) {
  if (spec.num_mtp_layers == 0 || spec.layers.empty()) return 0;
  // Each depth is one more layer of the last layer's kind, one more output, and a projection of two streams into one.
  ModelSpec depth = spec;
  depth.layers = {spec.layers.back()};
  depth.mixers = {spec.mixer(static_cast<int>(spec.num_layers()) - 1)};
  depth.windows = {spec.window(static_cast<int>(spec.num_layers()) - 1)};
  depth.choosing_layers = {};
  const std::int64_t joining = 3 * spec.hidden_size + 2 * spec.hidden_size * spec.hidden_size;
  return spec.num_mtp_layers * (flops_per_token(depth).training() + 6 * joining);
}

namespace {

/// The entries of a stage's layers; an empty list says the same of all.
template <typename T>
std::vector<T> of_stage(const std::vector<T>& by_layer, const StageContent& content) {
  if (by_layer.empty()) return {};
  const auto first = by_layer.begin() + content.first_layer;
  return {first, first + content.num_layers};
}

}  // namespace

std::int64_t stage_training_flops_per_token(const ModelSpec& spec, const StageContent& content) {
  ModelSpec stage = spec;
  stage.layers = of_stage(spec.layers, content);
  stage.mixers = of_stage(spec.mixers, content);
  stage.windows = of_stage(spec.windows, content);
  stage.choosing_layers = of_stage(spec.choosing_layers, content);
  FlopsPerToken flops = flops_per_token(stage);
  if (content.output == Part::kAbsent) flops.output = 0;
  const std::int64_t depths = content.num_mtp_layers > 0 ? mtp_training_flops_per_token(spec) : 0;
  return flops.training() + depths;
}

}  // namespace primus::model
