#include "projection/compat_primus.hpp"

#include <algorithm>

namespace primus::projection {
namespace {

constexpr double kVocabulary = 100352.0;

double real(std::int64_t value) {
  return static_cast<double>(value);
}

/// Width of the experts, which falls back to the dense one.
double expert_ffn(const model::ModelSpec& spec) {
  return spec.moe ? real(spec.moe->ffn_hidden_size) : real(spec.dense_ffn_hidden_size);
}

double attention_parameters(const model::ModelSpec& spec) {
  const double hidden = real(spec.hidden_size);
  if (const auto* mla = std::get_if<model::MlaSpec>(&spec.attention)) {
    const double heads = real(mla->num_heads);
    const double queries = heads * real(mla->query_dim());
    const double q = mla->q_lora_rank ? real(*mla->q_lora_rank) * (hidden + queries + 1.0) : hidden * queries;
    const double kv = real(mla->kv_lora_rank) * (hidden + heads * real(mla->qk_head_dim + mla->v_head_dim) + 1.0);
    return q + kv + hidden * real(mla->qk_pos_emb_head_dim) + heads * real(mla->v_head_dim) * hidden;
  }
  const auto& gqa = std::get<model::GqaSpec>(spec.attention);
  const double groups = real(gqa.num_query_groups) / real(gqa.num_heads);
  return 2.0 * hidden * hidden * (1.0 + groups) * (real(gqa.head_dim * gqa.num_heads) / hidden);
}

/// Three norms with weight and bias; routers and experts of MoE layers. `expert_ranks`: 1 counts the whole model.
double layer_parameters(const model::ModelSpec& spec, int layer, double expert_ranks) {
  const double hidden = real(spec.hidden_size);
  const double matrices = real(spec.num_mlp_matrices());
  double count = 3.0 * 2.0 * hidden + attention_parameters(spec);
  if (spec.kind(layer) == model::LayerKind::kDense) return count + matrices * hidden * real(spec.dense_ffn_hidden_size);
  const double experts = real(spec.moe->router.num_experts);
  count += hidden * experts;
  count += experts * matrices * hidden * expert_ffn(spec) / expert_ranks;
  return count + matrices * hidden * real(spec.moe->shared_ffn_hidden_size);
}

/// What softmax keeps of a token: with flash attention as much as the queries, else its row of scores.
double softmax_width(const MemoryInputs& inputs, double query_width) {
  if (inputs.original.attention == OriginalsView::Attention::kFlash) return query_width;
  const model::Sharding& sharding = inputs.sharding.model;
  const std::int64_t positions = (inputs.micro_batch.seq_length + sharding.context - 1) / sharding.context;
  return real(inputs.spec.num_heads() / sharding.tensor * positions);
}

double attention_activations(const MemoryInputs& inputs, double tokens) {
  const model::ModelSpec& spec = inputs.spec;
  if (const auto* mla = std::get_if<model::MlaSpec>(&spec.attention)) {
    const double q = real(mla->num_heads * mla->query_dim());
    const double v = real(mla->num_heads * mla->v_head_dim);
    const double norms = mla->latent_norms == model::Part::kPresent ? 2.0 * q : 0.0;
    return tokens * 2.0 * (q + q + v + v + softmax_width(inputs, q) + norms);
  }
  const auto& gqa = std::get<model::GqaSpec>(spec.attention);
  const double q = real(gqa.head_dim * gqa.num_heads);
  const double kv = real(gqa.head_dim * gqa.num_query_groups);
  const double norms = gqa.qk_norms == model::Part::kPresent ? 2.0 * kv : 0.0;
  return tokens * 2.0 * (q + 2.0 * kv + real(spec.hidden_size) + softmax_width(inputs, q) + norms);
}

double mlp_activations(const model::ModelSpec& spec, int layer, double tokens) {
  const double hidden = real(spec.hidden_size);
  const double matrices = real(spec.num_mlp_matrices());
  if (spec.kind(layer) == model::LayerKind::kDense) {
    return tokens * 2.0 * (matrices * real(spec.dense_ffn_hidden_size) + hidden);
  }
  const double ffn = matrices * expert_ffn(spec);
  double bytes = tokens * real(spec.moe->router.top_k) * 2.0 * ffn + tokens * 2.0 * hidden;
  if (spec.moe->shared_ffn_hidden_size > 0) bytes += tokens * 2.0 * (ffn + hidden);
  return bytes;
}

/// `recompute.layers` counts from each chunk's first layer, as the original does; it has no selective parts but one,
/// and passes recompute_layer_ids over.
double layer_activations(const MemoryInputs& inputs, int layer, double tokens) {
  const model::ModelSpec& spec = inputs.spec;
  const double residual = tokens * real(spec.hidden_size) * 2.0;
  const bool is_counted = inputs.original.recompute == OriginalsView::Recompute::kByPlace;
  if (is_counted && inputs.recompute.of(layer) != model::LayerRecompute::kNone) return residual;
  const double parts = spec.kind(layer) == model::LayerKind::kDense ? 5.0 : 6.0;
  const double attention = inputs.recompute.modules.empty() ? attention_activations(inputs, tokens) : 0.0;
  return parts * residual + attention + mlp_activations(spec, layer, tokens);
}

}  // namespace

PrimusMemory primus_memory(const MemoryInputs& inputs, int pipeline_rank, std::int64_t global_batch_size) {
  const model::ModelSpec& spec = inputs.spec;
  const layout::GridSizes& sizes = inputs.grid.sizes();
  const std::int64_t all_tokens = inputs.micro_batch.num_tokens();
  const double tokens = real(all_tokens / sizes.tensor / sizes.context);
  const double residual = tokens * real(spec.hidden_size) * 2.0;
  PrimusMemory memory;
  for (const model::StageContent& chunk : inputs.stages.on_rank(pipeline_rank)) {
    for (int layer = chunk.first_layer; layer < chunk.first_layer + chunk.num_layers; ++layer) {
      memory.num_parameters += layer_parameters(spec, layer, real(sizes.expert));
      memory.activations += layer_activations(inputs, layer, tokens);
    }
    if (chunk.embedding == model::Part::kPresent) {
      memory.num_parameters += kVocabulary * real(spec.hidden_size);
      memory.activations += residual;
    }
    if (chunk.output == model::Part::kPresent) {
      memory.num_parameters += kVocabulary * real(spec.hidden_size) + 2.0 * real(spec.hidden_size);
      memory.activations += residual + tokens * kVocabulary * 2.0;
      const bool has_loss = inputs.loss_fusion == model::LossFusion::kUnfused;
      const double loss = real(all_tokens / sizes.context) * kVocabulary / real(sizes.tensor) * 4.0;
      if (has_loss) memory.activations += loss;
    }
  }
  const std::int64_t stages = inputs.stages.num_ranks();
  const double chunks = inputs.stages.num_chunks();
  // The expert-data ranks divide all state, dense parameters' too; every stage is charged PP micro-batches.
  const std::int64_t replicas = std::max<std::int64_t>(1, sizes.world / sizes.expert / stages);
  const bool is_muon = inputs.optimizer.kind == model::OptimizerKind::kMuon;
  const bool is_divided = inputs.sharding.optimizer.dense > 1 || inputs.sharding.optimizer.expert > 1;
  memory.bytes_per_parameter = 4.0 + (is_muon ? 6.0 : 10.0) / (is_divided ? real(replicas) : 1.0);
  const double penalty = chunks > 1.0 ? 1.0 + real(stages - 1) / (real(stages) * chunks) : 1.0;
  const std::int64_t accumulation = global_batch_size / replicas;
  const double filled = accumulation > stages ? 1.0 : real(accumulation) / real(stages);
  memory.activations *= real(stages) * penalty * filled;
  return memory;
}

double primus_total_parameters(const MemoryInputs& inputs) {
  double count = 2.0 * kVocabulary * real(inputs.spec.hidden_size) + 2.0 * real(inputs.spec.hidden_size);
  for (int layer = 0; layer < inputs.spec.num_layers(); ++layer) count += layer_parameters(inputs.spec, layer, 1.0);
  return count;
}

}  // namespace primus::projection
