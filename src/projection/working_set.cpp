#include "projection/working_set.hpp"

#include <algorithm>

namespace primus::projection {
namespace {

std::int64_t bytes_of(const model::SavedDeclaration& declared, int slot) {
  return declared.tensors.at(static_cast<std::size_t>(slot)).size_bytes();
}

/// The residual streams of a rank's tokens.
std::int64_t stream_bytes(const MemoryInputs& inputs) {
  const model::Sharding& sharding = inputs.sharding.model;
  const std::int64_t tokens = inputs.micro_batch.num_tokens() / sharding.context / sharding.sequence_parts();
  return tokens * inputs.spec.residual_width() * size_bytes(inputs.policy.activations);
}

/// Bytes of keys and values of this rank's part of a sequence.
std::int64_t keys_and_values(const MemoryInputs& inputs, const model::SavedDeclaration& attention) {
  using model::GqaSlot;
  using model::MlaSlot;
  if (std::holds_alternative<model::MlaSpec>(inputs.spec.attention)) {
    return bytes_of(attention, MlaSlot::kKey) + bytes_of(attention, MlaSlot::kValue);
  }
  const auto& gqa = std::get<model::GqaSpec>(inputs.spec.attention);
  return bytes_of(attention, GqaSlot::kQkv) / gqa.num_fused_heads() * 2 * gqa.num_query_groups;
}

/// Keys and values of others, and their gradients on the way back.
std::int64_t context_buffers(const MemoryInputs& inputs, int layer, const model::SavedDeclaration& attention) {
  const std::int64_t ranks = inputs.sharding.model.context;
  if (ranks == 1 || inputs.spec.mixer(layer) != model::MixerKind::kAttention) return 0;
  const std::int64_t own = keys_and_values(inputs, attention);
  switch (inputs.context_exchange) {
    case ContextExchange::kRing:
      return 4 * own;  // the pair that arrives and the pair that is used, each with its gradients
    case ContextExchange::kGather:
      return 2 * ranks * own;
    case ContextExchange::kHeads:
      return 2 * own;
  }
  return 0;
}

/// The library's own buffers: room for twice the balanced number of rows, one to send and one to receive.
std::int64_t fixed_buffers(const MemoryInputs& inputs, const model::SavedDeclaration& moe) {
  if (!inputs.sharding.model.exchanges_rows() || inputs.row_exchange != RowExchange::kFixedBuffers) return 0;
  const auto& latent = inputs.spec.moe->latent;
  const std::int64_t width = latent ? latent->size : inputs.spec.hidden_size;
  const std::int64_t sent = moe.tensors[model::MoeSlot::kSlotOf].num_elements() * width;
  return 2 * 2 * sent * size_bytes(inputs.policy.activations);
}

/// What a layer exchanges with other ranks.
WorkingSet layer_exchange(const MemoryInputs& inputs, int layer) {
  const model::SavedDeclaration declared =
      model::layer_saved(inputs.spec, inputs.policy, inputs.micro_batch, layer, inputs.sharding.model);
  WorkingSet set;
  if (inputs.spec.kind(layer) == model::LayerKind::kMoe) {
    set.dispatch = fixed_buffers(inputs, declared.children[model::LayerSlot::kMlp]);
  }
  set.communication = context_buffers(inputs, layer, declared.children[model::LayerSlot::kMixer]);
  if (inputs.sharding.model.sequence_parts() > 1) {
    const std::int64_t inside = inputs.micro_batch.num_tokens() / inputs.sharding.model.context;
    set.communication += 2 * inside * inputs.spec.hidden_size * size_bytes(inputs.policy.activations);
  }
  return set;
}

/// Where parameters are divided, a layer's are gathered for its pass and the next layer's beside them; where gradients
/// are, a layer's whole gradients wait to be divided.
std::int64_t gathered_bytes(const MemoryInputs& inputs, int layer) {
  const auto is_divided = [](const model::StateParts& parts) { return parts.dense > 1 || parts.expert > 1; };
  std::int64_t elements = 0;
  for (const model::ParameterDescriptor& parameter : model::layer_parameters(inputs.spec, layer)) {
    elements += model::local_elements(parameter, inputs.sharding.model);
  }
  std::int64_t bytes = is_divided(inputs.sharding.parameters) ? 2 * elements * size_bytes(inputs.policy.parameters) : 0;
  bytes += is_divided(inputs.sharding.gradients) ? elements * size_bytes(inputs.policy.main_gradients) : 0;
  return bytes;
}

}  // namespace

WorkingSet working_set(const MemoryInputs& inputs, std::span<const ChunkMemory> chunks) {
  WorkingSet set;
  std::int64_t fixed = 0;
  std::int64_t gathered = 0;
  const auto visit = [&](int layer) {
    const WorkingSet exchange = layer_exchange(inputs, layer);
    fixed = std::max(fixed, exchange.dispatch);
    set.communication = std::max(set.communication, exchange.communication);
    gathered = std::max(gathered, gathered_bytes(inputs, layer));
  };
  for (const ChunkMemory& chunk : chunks) {
    for (const model::PassPeaks& pass : {chunk.passes.forward, chunk.passes.backward}) {
      if (pass.workspace + pass.scratch <= set.dispatch + set.compute) continue;
      set.dispatch = pass.rows;
      set.compute = pass.workspace - pass.rows + pass.scratch;
    }
    // Layers of a kind are alike.
    const model::StageContent& content = chunk.content;
    std::vector<model::LayerLikeness> seen;
    for (int layer = content.first_layer; layer < content.first_layer + content.num_layers; ++layer) {
      const model::LayerLikeness kind = inputs.spec.likeness(layer);
      if (std::find(seen.begin(), seen.end(), kind) != seen.end()) continue;
      seen.push_back(kind);
      visit(layer);
    }
    if (content.num_mtp_layers > 0) visit(static_cast<int>(inputs.spec.num_layers()));
  }
  set.dispatch += fixed;
  set.communication += gathered;
  if (inputs.stages.num_ranks() > 1) set.communication += 4 * stream_bytes(inputs);  // in and out, both ways
  return set;
}

FrameworkBytes framework_bytes(const layout::RankGrid& grid) {
  using enum layout::GroupKind;
  FrameworkBytes bytes;
  const auto add = [&](layout::GroupKind kind) {
    if (grid.group_size(kind) == 1) return;
    bytes.communicators +=
        bytes.num_communicators == 0 ? FrameworkBytes::kFirstCommunicator : FrameworkBytes::kNextCommunicator;
    ++bytes.num_communicators;
    if (kind == kExpertTensorExpert) bytes.communicators += FrameworkBytes::kExchange;
  };
  for (const layout::GroupKind kind : {kTensor, kContext, kPipeline, kDataContext, kExpertTensorExpert, kExpertData}) {
    add(kind);
  }
  return bytes;
}

}  // namespace primus::projection
