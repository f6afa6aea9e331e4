#include "model/saved_tensors.hpp"

#include <functional>
#include <numeric>

#include "base/error.hpp"
#include "model/expert_rows.hpp"
#include "model/saved_parts.hpp"

namespace primus::model {

std::string_view name(SavedCategory category) {
  switch (category) {
    case SavedCategory::kResidual:
      return "residual";
    case SavedCategory::kNorm:
      return "norm";
    case SavedCategory::kAttention:
      return "attention";
    case SavedCategory::kDenseMlp:
      return "mlp";
    case SavedCategory::kRouter:
      return "router";
    case SavedCategory::kExperts:
      return "experts";
    case SavedCategory::kSharedExperts:
      return "shared_experts";
    case SavedCategory::kLoss:
      return "loss";
  }
  return "?";
}

std::int64_t SavedTensor::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t SavedDeclaration::size_bytes() const {
  std::int64_t bytes[kNumSavedCategories] = {};
  add_by_category(bytes);
  return std::accumulate(std::begin(bytes), std::end(bytes), std::int64_t{0});
}

void SavedDeclaration::add_by_category(std::int64_t* bytes) const {
  for (const SavedTensor& tensor : tensors) {
    if (tensor.lifetime != Lifetime::kRemade) bytes[static_cast<int>(tensor.category)] += tensor.size_bytes();
  }
  for (const SavedDeclaration& child : children) child.add_by_category(bytes);
}

std::int64_t SavedDeclaration::remade_bytes() const {
  std::int64_t bytes = 0;
  for (const SavedTensor& tensor : tensors) bytes += tensor.lifetime == Lifetime::kRemade ? tensor.size_bytes() : 0;
  for (const SavedDeclaration& child : children) bytes += child.remade_bytes();
  return bytes;
}

SavedDeclaration dense_mlp_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch,
                                 const Sharding& sharding) {
  return {
      {{"pre_activation",
        {local_tokens(batch, sharding).inside, share(spec.mlp_input_rows(spec.dense_ffn_hidden_size), sharding.tensor)},
        policy.activations,
        SavedCategory::kDenseMlp}},
      {}};
}

SavedDeclaration moe_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch,
                           const Sharding& sharding) {
  PRIMUS_CHECK(spec.moe.has_value(), "an MoE layer in a model without experts");
  const MoeSpec& moe = *spec.moe;
  const auto [inside, tokens] = local_tokens(batch, sharding);
  const std::int64_t top_k = moe.router.top_k;
  const std::int64_t rows = received_rows(moe, tokens, sharding);
  const bool has_shared = moe.shared_ffn_hidden_size > 0;
  const std::int64_t latent = moe.latent ? moe.latent->size : 0;
  const std::int64_t width = moe.latent ? latent : spec.hidden_size;
  const bool has_latent_norm = moe.latent && moe.latent->norm == Part::kPresent;
  const auto router = SavedCategory::kRouter;
  return {
      {{"logits", {tokens, moe.router.num_experts}, policy.router, router},
       {"index", {tokens, top_k}, DType::kInt32, router},
       {"prob", {tokens, top_k}, policy.router, router},
       {"slope", {moe.router.num_slopes(batch.num_sequences), moe.router.num_experts}, policy.router, router},
       {"offsets", {moe.router.num_experts + 1}, DType::kInt32, router},
       {"row_of", {tokens, top_k}, DType::kInt32, router},
       {"slot_of", {moe.router.num_expert_rows(tokens)}, DType::kInt32, router},
       {"pre_activation",
        {rows, share(spec.mlp_input_rows(moe.ffn_hidden_size), sharding.expert_tensor)},
        policy.activations,
        SavedCategory::kExperts},
       {"shared_pre_activation",
        {has_shared ? inside : 0, share(spec.mlp_input_rows(moe.shared_ffn_hidden_size), sharding.tensor)},
        policy.activations,
        SavedCategory::kSharedExperts},
       {"shared_gate",
        {has_shared && moe.shared_gate == Part::kPresent ? tokens : 0},
        policy.statistics,
        SavedCategory::kSharedExperts},
       {"latent_input", {tokens, latent}, policy.activations, SavedCategory::kExperts},
       {"latent_output", {tokens, latent}, policy.activations, SavedCategory::kExperts},
       {"latent_rstd", {statistics_of(spec, has_latent_norm ? tokens : 0)}, policy.statistics, SavedCategory::kExperts},
       {"received", {sharding.exchanges_rows() ? rows : 0, width}, policy.activations, SavedCategory::kExperts}},
      {}};
}

SavedDeclaration layer_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, int layer,
                             const Sharding& sharding) {
  const std::int64_t tokens = local_tokens(batch, sharding).between;
  const bool is_moe = spec.kind(layer) == LayerKind::kMoe;
  SavedDeclaration declaration;
  const std::int64_t connected = spec.hyper ? tokens : 0;
  const std::int64_t logits = spec.hyper ? spec.hyper->num_logits() : 0;
  const auto residual = SavedCategory::kResidual;
  declaration.tensors = {{"input", {tokens, spec.residual_width()}, policy.residual_type(), residual},
                         {"input_rstd", {statistics_of(spec, tokens)}, policy.statistics, SavedCategory::kNorm},
                         {"middle", {tokens, spec.residual_width()}, policy.residual_type(), residual},
                         {"middle_rstd", {statistics_of(spec, tokens)}, policy.statistics, SavedCategory::kNorm},
                         {"input_mix", {connected, logits}, policy.statistics, residual},
                         {"mixer_output", {connected, spec.hidden_size}, policy.activations, residual},
                         {"middle_mix", {connected, logits}, policy.statistics, residual},
                         {"mlp_output", {connected, spec.hidden_size}, policy.activations, residual}};
  declaration.children = {
      mixer_saved(spec, policy, batch, layer, sharding),
      is_moe ? moe_saved(spec, policy, batch, sharding) : dense_mlp_saved(spec, policy, batch, sharding)};
  return declaration;
}

SavedDeclaration output_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, LossFusion fusion,
                              const Sharding& sharding) {
  const auto [inside, tokens] = local_tokens(batch, sharding);
  const bool fused = fusion == LossFusion::kFused;
  const std::int64_t vocabulary = share(spec.padded_vocab_size, sharding.tensor);
  return {{{"input", {tokens, spec.residual_width()}, policy.residual_type(), SavedCategory::kResidual},
           {"rstd", {statistics_of(spec, tokens)}, policy.statistics, SavedCategory::kNorm},
           {"hidden_gradient", {fused ? tokens : 0, spec.hidden_size}, policy.activations, SavedCategory::kLoss},
           {"logits", {fused ? 0 : inside, vocabulary}, policy.logit_type(), SavedCategory::kLoss},
           {"mix",
            {spec.hyper && spec.hyper->has_head() ? tokens : 0, spec.num_streams()},
            policy.statistics,
            SavedCategory::kResidual}},
          {}};
}

SavedDeclaration mtp_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, LossFusion fusion,
                           int depth, const Sharding& sharding) {
  const std::int64_t tokens = local_tokens(batch, sharding).between;
  SavedDeclaration declaration;
  declaration.tensors = {{"embedding_rstd", {statistics_of(spec, tokens)}, policy.statistics, SavedCategory::kNorm},
                         {"hidden_rstd", {statistics_of(spec, tokens)}, policy.statistics, SavedCategory::kNorm}};
  declaration.children = {layer_saved(spec, policy, batch, static_cast<int>(spec.num_layers()) + depth, sharding),
                          output_saved(spec, policy, batch, fusion, sharding)};
  return declaration;
}

SavedDeclaration stage_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, LossFusion fusion,
                             const StageContent& content, const Sharding& sharding) {
  const bool has_output = content.output == Part::kPresent;
  SavedDeclaration declaration;
  for (int layer = 0; layer < content.num_layers; ++layer) {
    declaration.children.push_back(layer_saved(spec, policy, batch, content.first_layer + layer, sharding));
  }
  if (has_output) declaration.children.push_back(output_saved(spec, policy, batch, fusion, sharding));
  for (int depth = 0; depth < content.num_mtp_layers; ++depth) {
    declaration.children.push_back(mtp_saved(spec, policy, batch, fusion, depth, sharding));
    if (has_output) continue;
    // The hidden states are kept as here, for the next depth; the loss is taken elsewhere.
    std::vector<SavedTensor>& output = declaration.children.back().children[MtpSlot::kOutput].tensors;
    for (const int slot : {OutputSlot::kHiddenGradient, OutputSlot::kLogits}) {
      output[static_cast<std::size_t>(slot)].shape = {0};
    }
  }
  if (!has_output || content.num_mtp_layers > 0) return declaration;
  for (int depth = 0; depth < spec.num_mtp_layers; ++depth) {
    declaration.children.push_back(output_saved(spec, policy, batch, fusion, sharding));
  }
  return declaration;
}

SavedDeclaration model_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, LossFusion fusion) {
  return stage_saved(spec, policy, batch, fusion, whole_model(spec));
}

}  // namespace primus::model
