#include "projection/working_set.hpp"

#include <algorithm>

#include "model/logit_chunks.hpp"

namespace primus::projection {
namespace {

/// Sizes that several parts share. Legend as in saved_tensors.hpp.
struct Sizes {
  std::int64_t element = 0;  // bytes of an activation
  std::int64_t inside = 0;   // tokens inside attention and MLPs
  std::int64_t between = 0;
  std::int64_t residual = 0;  // bytes of the residual stream
};

Sizes sizes_of(const MemoryInputs& inputs) {
  const model::Sharding& sharding = inputs.sharding.model;
  Sizes sizes;
  sizes.element = size_bytes(inputs.policy.activations);
  sizes.inside = inputs.micro_batch.num_tokens() / sharding.context;
  sizes.between = sizes.inside / sharding.sequence_parts();
  sizes.residual = sizes.between * inputs.spec.hidden_size * sizes.element;
  return sizes;
}

std::int64_t bytes_of(const model::SavedDeclaration& declared, int slot) {
  return declared.tensors.at(static_cast<std::size_t>(slot)).size_bytes();
}

/// Backward of attention: gradients of its context, of what went in, and fp32 sums of the queries' gradient.
std::int64_t attention_compute(const MemoryInputs& inputs, const model::SavedDeclaration& attention) {
  using model::GqaSlot;
  using model::MlaSlot;
  if (std::holds_alternative<model::MlaSpec>(inputs.spec.attention)) {
    const std::int64_t parts = bytes_of(attention, MlaSlot::kQuery) + bytes_of(attention, MlaSlot::kKey) +
                               bytes_of(attention, MlaSlot::kValue);
    const std::int64_t projected = bytes_of(attention, MlaSlot::kValue) * 2;  // keys without position, values
    const std::int64_t sums = attention.tensors[MlaSlot::kQuery].num_elements() * size_bytes(DType::kFloat32);
    return bytes_of(attention, MlaSlot::kContext) + parts + std::max(projected, sums);
  }
  const auto& gqa = std::get<model::GqaSpec>(inputs.spec.attention);
  const std::int64_t normed = gqa.has_norms() ? 2 * bytes_of(attention, GqaSlot::kQkv) : 0;
  const std::int64_t sums = attention.tensors[GqaSlot::kContext].num_elements() * size_bytes(DType::kFloat32);
  return bytes_of(attention, GqaSlot::kContext) + bytes_of(attention, GqaSlot::kQkv) + normed + sums;
}

/// Backward of a layer's mixer.
std::int64_t mixer_compute(const MemoryInputs& inputs, int layer, const model::SavedDeclaration& mixer) {
  switch (inputs.spec.mixer(layer)) {
    case model::MixerKind::kAttention:
      return attention_compute(inputs, mixer);
    case model::MixerKind::kShortConvolution:
      // Gradients of what the convolution read and gave, and its output again.
      return mixer.size_bytes() + 2 * sizes_of(inputs).inside * inputs.spec.hidden_size * sizes_of(inputs).element;
    case model::MixerKind::kGatedDelta:
      // The convolution's output and its gradient, the projection's gradient; the context normed, and its gradient.
      return 3 * bytes_of(mixer, model::GatedDeltaSlot::kProjected) +
             2 * bytes_of(mixer, model::GatedDeltaSlot::kContext);
    case model::MixerKind::kUnknown:
      break;
  }
  return mixer.size_bytes();
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

/// Rows that are gathered for the experts and come back, forward or backward; and their inner gradients.
WorkingSet expert_rows(const MemoryInputs& inputs, const model::SavedDeclaration& moe) {
  using model::MoeSlot;
  const model::MoeSpec& spec = *inputs.spec.moe;
  const Sizes sizes = sizes_of(inputs);
  const std::int64_t rows = moe.tensors[MoeSlot::kPreActivation].shape[0];
  const std::int64_t width = spec.latent ? spec.latent->size : inputs.spec.hidden_size;
  const std::int64_t outer = rows * width * sizes.element;
  const std::int64_t inner = rows * spec.ffn_hidden_size / inputs.sharding.model.expert_tensor * sizes.element;
  const std::int64_t sent =
      inputs.sharding.model.exchanges_rows() ? moe.tensors[MoeSlot::kSlotOf].num_elements() * width * sizes.element : 0;
  WorkingSet set;
  // Two lists of rows stand beside one of activations, or one beside two: what is more of the latter is computing.
  set.dispatch = 2 * outer + sent;
  set.compute = inner > outer ? 2 * inner - outer : inner;
  set.compute += bytes_of(moe, MoeSlot::kSharedPreActivation);
  // The library's own buffers: room for twice the balanced number of rows, one to send and one to receive.
  if (sent > 0 && inputs.row_exchange == RowExchange::kFixedBuffers) set.dispatch += 2 * 2 * sent;
  return set;
}

WorkingSet layer_set(const MemoryInputs& inputs, int layer) {
  const Sizes sizes = sizes_of(inputs);
  const model::SavedDeclaration declared =
      model::layer_saved(inputs.spec, inputs.policy, inputs.micro_batch, layer, inputs.sharding.model);
  const model::SavedDeclaration& mixer = declared.children[model::LayerSlot::kMixer];
  const model::SavedDeclaration& mlp = declared.children[model::LayerSlot::kMlp];
  WorkingSet set;
  if (inputs.spec.kind(layer) == model::LayerKind::kMoe) {
    set = expert_rows(inputs, mlp);
  } else {
    set.compute = mlp.size_bytes();  // the activation and its gradient
  }
  const std::int64_t mlp_total = set.dispatch + set.compute;
  const std::int64_t in_mixer = mixer_compute(inputs, layer, mixer);
  // The two halves of a layer follow each other: the larger one counts.
  if (in_mixer > mlp_total) set.compute = in_mixer - set.dispatch;
  // The residual stream's gradient, a normed input and its gradient.
  set.compute += 3 * sizes.residual;
  set.communication = context_buffers(inputs, layer, mixer);
  if (inputs.sharding.model.sequence_parts() > 1) {
    set.communication += 2 * sizes.inside * inputs.spec.hidden_size * sizes.element;
  }
  return set;
}

/// Logits that the output layer holds beside what it declares.
std::int64_t output_compute(const MemoryInputs& inputs) {
  const Sizes sizes = sizes_of(inputs);
  const std::int64_t row = inputs.spec.padded_vocab_size / inputs.sharding.model.tensor * sizes.element;
  const std::int64_t chunk = std::min(sizes.inside, model::device_logit_chunk(row));
  return 2 * sizes.residual + (inputs.loss_fusion == model::LossFusion::kFused ? chunk * row : 0);
}

void take_larger(const WorkingSet& other, WorkingSet& set) {
  if (other.dispatch + other.compute > set.dispatch + set.compute) {
    set.dispatch = other.dispatch;
    set.compute = other.compute;
  }
  set.communication = std::max(set.communication, other.communication);
}

/// A layer's main gradients in the wide type, while they are added to.
std::int64_t gradient_window(const MemoryInputs& inputs, int layer) {
  if (size_bytes(inputs.policy.main_gradients) >= size_bytes(inputs.policy.statistics)) return 0;
  std::int64_t elements = 0;
  for (const model::ParameterDescriptor& parameter : model::layer_parameters(inputs.spec, layer)) {
    elements += model::local_elements(parameter, inputs.sharding.model);
  }
  return elements * size_bytes(inputs.policy.statistics);
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

WorkingSet working_set(const MemoryInputs& inputs, const std::vector<model::StageContent>& chunks) {
  WorkingSet set;
  std::int64_t window = 0;
  std::int64_t gathered = 0;
  const auto visit = [&](int layer) {
    take_larger(layer_set(inputs, layer), set);
    window = std::max(window, gradient_window(inputs, layer));
    gathered = std::max(gathered, gathered_bytes(inputs, layer));
  };
  for (const model::StageContent& chunk : chunks) {
    // Layers of a kind are alike.
    std::vector<std::pair<model::LayerKind, std::int64_t>> seen;
    for (int layer = chunk.first_layer; layer < chunk.first_layer + chunk.num_layers; ++layer) {
      const std::pair kind{inputs.spec.kind(layer), inputs.spec.window(layer)};
      if (std::find(seen.begin(), seen.end(), kind) != seen.end()) continue;
      seen.push_back(kind);
      visit(layer);
    }
    if (chunk.num_mtp_layers > 0) visit(static_cast<int>(inputs.spec.num_layers()));
    if (chunk.output == model::Part::kPresent) take_larger({0, 0, output_compute(inputs)}, set);
  }
  set.compute += window;
  set.communication += gathered;
  if (inputs.stages.num_ranks() > 1) set.communication += 4 * sizes_of(inputs).residual;  // in and out, both ways
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
