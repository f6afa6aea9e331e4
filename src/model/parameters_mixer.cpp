// Parameters of what mixes tokens: latent, grouped-query and compressed attention, delta rules, short convolutions.
#include <cmath>

#include "base/error.hpp"
#include "model/descriptors.hpp"

namespace primus::model {
namespace {

Descriptors mla_parameters(const ModelSpec& spec, const MlaSpec& mla, const Naming& naming) {
  Descriptors parameters;
  const std::int64_t hidden = spec.hidden_size;
  const std::int64_t query_width = mla.num_heads * mla.query_dim();
  const auto add = [&](ParameterDescriptor parameter, const std::string& hugging_face) {
    parameter.hugging_face = {whole_rows(naming.hugging_face + "self_attn." + hugging_face, parameter)};
    parameters.push_back(std::move(parameter));
  };
  const auto projection = [&](const std::string& name, std::int64_t rows, std::int64_t columns, Init init) {
    return matrix(naming, "self_attention." + name + ".weight", {rows, columns}, Component::kAttention, init);
  };
  const auto split_heads = [](ParameterDescriptor parameter, int axis) {
    parameter.shards = {{axis, ShardGroup::kTensor, {}}};
    return parameter;
  };
  // The down projections are whole on every tensor-parallel rank; their gradients are parts of a sum.
  const auto replicated = [](ParameterDescriptor parameter) {
    parameter.tensor_gradient = TensorGradient::kPartial;
    return parameter;
  };
  if (mla.q_lora_rank) {
    add(replicated(projection("linear_q_down_proj", *mla.q_lora_rank, hidden, input_init(spec))), "q_a_proj.weight");
    if (mla.latent_norms == Part::kPresent) {
      append(parameters, norm_parameters(spec, naming, "self_attention.q_layernorm", *mla.q_lora_rank,
                                         Component::kAttention, "self_attn.q_a_layernorm"));
    }
    add(split_heads(projection("linear_q_up_proj", query_width, *mla.q_lora_rank, input_init(spec)), 0),
        "q_b_proj.weight");
  } else {
    add(split_heads(projection("linear_q_proj", query_width, hidden, input_init(spec)), 0), "q_proj.weight");
  }
  add(replicated(
          projection("linear_kv_down_proj", mla.kv_lora_rank + mla.qk_pos_emb_head_dim, hidden, input_init(spec))),
      "kv_a_proj_with_mqa.weight");
  if (mla.latent_norms == Part::kPresent) {
    append(parameters, norm_parameters(spec, naming, "self_attention.kv_layernorm", mla.kv_lora_rank,
                                       Component::kAttention, "self_attn.kv_a_layernorm"));
  }
  add(split_heads(projection("linear_kv_up_proj", mla.num_heads * (mla.qk_head_dim + mla.v_head_dim), mla.kv_lora_rank,
                             input_init(spec)),
                  0),
      "kv_b_proj.weight");
  if (mla.output_gate == Part::kPresent) {
    add(split_heads(projection("linear_gate_proj", mla.num_heads * mla.v_head_dim, hidden, input_init(spec)), 0),
        "g_proj.weight");
  }
  add(split_heads(projection("linear_proj", hidden, mla.num_heads * mla.v_head_dim, output_init(spec)), 1),
      "o_proj.weight");
  return parameters;
}

/// A projection that is whole on every rank, each of which sees its own share of the tokens.
ParameterDescriptor replicated_matrix(const ModelSpec& spec, const Naming& naming, const std::string& ours,
                                      const std::string& theirs, std::vector<std::int64_t> shape) {
  ParameterDescriptor parameter =
      matrix(naming, ours + ".weight", std::move(shape), Component::kAttention, input_init(spec));
  parameter.tensor_gradient = TensorGradient::kPartial;
  parameter.hugging_face = {whole_rows(naming.hugging_face + theirs + ".weight", parameter)};
  return parameter;
}

/// The indexer of sparse attention, whole on every rank.
Descriptors indexer_parameters(const ModelSpec& spec, const MlaSpec& mla, const Naming& naming) {
  const IndexerSpec& indexer = *mla.indexer;
  const std::string ours = "self_attention.core_attention.indexer.";
  const std::string theirs = "self_attn.indexer.";
  Descriptors parameters;
  const auto add = [&](const char* name, const char* hugging_face, std::int64_t rows, std::int64_t columns) {
    parameters.push_back(replicated_matrix(spec, naming, ours + name, theirs + hugging_face, {rows, columns}));
  };
  add("linear_wq_b", "wq_b", indexer.query_width(), mla.indexer_input(spec.hidden_size));
  add("linear_wk", "wk", indexer.head_dim, spec.hidden_size);
  append(parameters, norm_parameters(indexer_norm(spec), naming, ours + "k_norm", indexer.head_dim,
                                     Component::kAttention, theirs + "k_norm"));
  add("linear_weights_proj", "weights_proj", indexer.num_heads, spec.hidden_size);
  return parameters;
}

/// Weight and bias of the fused projection; a gate on the output is as wide as the queries and stands behind them.
Descriptors qkv_parameters(const ModelSpec& spec, const GqaSpec& gqa, const Naming& naming) {
  const std::int64_t q = gqa.num_heads * gqa.head_dim * (gqa.output_gate == Part::kPresent ? 2 : 1);
  const std::int64_t kv = gqa.num_query_groups * gqa.head_dim;
  const std::string prefix = naming.hugging_face + "self_attn.";
  const auto described = [&](ParameterDescriptor parameter, const std::string& kind) {
    parameter.shards = {{0, ShardGroup::kTensor, {q, kv, kv}}};
    parameter.tensor_gradient = TensorGradient::kWhole;
    parameter.hugging_face = {{prefix + "q_proj." + kind, 0, q},
                              {prefix + "k_proj." + kind, q, q + kv},
                              {prefix + "v_proj." + kind, q + kv, q + 2 * kv}};
    return parameter;
  };
  Descriptors parameters = {described(matrix(naming, "self_attention.linear_qkv.weight", {q + 2 * kv, spec.hidden_size},
                                             Component::kAttention, input_init(spec)),
                                      "weight")};
  if (gqa.qkv_bias == Part::kPresent) {
    parameters.push_back(
        described(bias_vector(naming, "self_attention.linear_qkv.bias", {q + 2 * kv}, Component::kAttention), "bias"));
  }
  return parameters;
}

Descriptors gqa_parameters(const ModelSpec& spec, const GqaSpec& gqa, const Naming& naming) {
  Descriptors parameters = qkv_parameters(spec, gqa, naming);
  if (gqa.qk_norms == Part::kPresent) {
    append(parameters, norm_parameters(spec, naming, "self_attention.q_layernorm", gqa.head_dim, Component::kAttention,
                                       "self_attn.q_norm"));
    append(parameters, norm_parameters(spec, naming, "self_attention.k_layernorm", gqa.head_dim, Component::kAttention,
                                       "self_attn.k_norm"));
  }
  ParameterDescriptor proj =
      matrix(naming, "self_attention.linear_proj.weight", {spec.hidden_size, gqa.num_heads * gqa.head_dim},
             Component::kAttention, output_init(spec));
  proj.shards = {{1, ShardGroup::kTensor, {}}};
  proj.hugging_face = {whole_rows(naming.hugging_face + "self_attn.o_proj.weight", proj)};
  parameters.push_back(std::move(proj));
  return parameters;
}

/// What both kinds of attention may have besides.
Descriptors attention_extras(const ModelSpec& spec, const Naming& naming) {
  Descriptors parameters;
  if (spec.linear_bias == Part::kPresent) {
    ParameterDescriptor bias =
        bias_vector(naming, "self_attention.linear_proj.bias", {spec.hidden_size}, Component::kAttention);
    bias.hugging_face = {whole_rows(naming.hugging_face + "self_attn.o_proj.bias", bias)};
    parameters.push_back(std::move(bias));
  }
  if (spec.sinks == Part::kPresent) {
    ParameterDescriptor sinks =
        bias_vector(naming, "self_attention.core_attention.sinks", {spec.num_heads()}, Component::kAttention);
    sinks.shards = {{0, ShardGroup::kTensor, {}}};
    sinks.tensor_gradient = TensorGradient::kWhole;
    sinks.hugging_face = {whole_rows(naming.hugging_face + "self_attn.sinks", sinks)};
    parameters.push_back(std::move(sinks));
  }
  return parameters;
}

/// Filters of a short convolution, one a channel. They start as torch's own: between ±1/sqrt(taps).
ParameterDescriptor conv_taps(const Naming& naming, const std::string& name, std::int64_t channels,
                              std::int64_t kernel_size) {
  ParameterDescriptor taps = matrix(naming, name, {channels, 1, kernel_size}, Component::kAttention, {});
  taps.init = {.kind = InitKind::kUniform, .bound = 1.0 / std::sqrt(static_cast<double>(kernel_size))};
  taps.layout = ParameterLayout::kTaps;
  return taps;
}

/// Qwen3-Next's two tensors hold the projection key head by key head: a query, a key, the values and gates of the
/// head's share of the value heads; and their write strengths and decays.
std::vector<HuggingFaceSlice> delta_projection_slices(const GatedDeltaSpec& delta, const std::string& prefix) {
  const std::int64_t of_key = delta.num_value_heads / delta.num_key_heads;
  const std::int64_t key = delta.key_head_dim;
  const std::int64_t value = of_key * delta.value_head_dim;
  std::vector<HuggingFaceSlice> slices;
  std::int64_t row = 0;
  // The rows of one part, `size` for each key head, which stand `first` rows behind the head's beginning.
  const auto add = [&](const char* name, std::int64_t size, std::int64_t first, std::int64_t rows_of_head) {
    for (std::int64_t head = 0; head < delta.num_key_heads; ++head, row += size) {
      slices.push_back(
          {prefix + name, row, row + size, head * rows_of_head + first, delta.num_key_heads * rows_of_head});
    }
  };
  const std::int64_t wide = 2 * key + 2 * value;
  add("in_proj_qkvz.weight", key, 0, wide);
  add("in_proj_qkvz.weight", key, key, wide);
  add("in_proj_qkvz.weight", value, 2 * key, wide);
  add("in_proj_qkvz.weight", value, 2 * key + value, wide);
  add("in_proj_ba.weight", of_key, 0, 2 * of_key);
  add("in_proj_ba.weight", of_key, of_key, 2 * of_key);
  return slices;
}

/// The logarithm of how fast each head's states forget: by a rate between 1 and 16, as Megatron begins.
Init decay_rate_init() {
  constexpr double kFastest = 16.0;
  return {.kind = InitKind::kLogOfUniform, .low = 1.0, .high = kFastest};
}

Descriptors gated_delta_parameters(const ModelSpec& spec, const Naming& naming) {
  const GatedDeltaSpec& delta = spec.gated_delta;
  const std::int64_t key = delta.key_width();
  const std::int64_t value = delta.value_width();
  const std::int64_t heads = delta.num_value_heads;
  const std::string prefix = naming.hugging_face + "linear_attn.";
  const auto split = [](ParameterDescriptor parameter, int axis, std::vector<std::int64_t> segments) {
    parameter.shards = {{axis, ShardGroup::kTensor, std::move(segments)}};
    return parameter;
  };
  const auto named = [&](ParameterDescriptor parameter, const char* theirs) {
    parameter.hugging_face = {whole_rows(prefix + theirs, parameter)};
    return parameter;
  };
  const auto described = [&](const char* name, std::vector<std::int64_t> shape, Init init) {
    return matrix(naming, std::string("self_attention.") + name, std::move(shape), Component::kAttention, init);
  };
  ParameterDescriptor in =
      split(described("in_proj.weight", {delta.projected_width(), spec.hidden_size}, input_init(spec)), 0,
            {key, key, value, value, heads, heads});
  in.hugging_face = delta_projection_slices(delta, prefix);
  Descriptors parameters = {
      std::move(in),
      named(split(conv_taps(naming, "self_attention.conv1d.weight", 2 * key + value, delta.kernel_size), 0,
                  {key, key, value}),
            "conv1d.weight"),
      named(split(described("dt_bias", {heads}, {InitKind::kOnes}), 0, {}), "dt_bias"),
      named(split(described("A_log", {heads}, decay_rate_init()), 0, {}), "A_log"),
      norm_weight(naming, "self_attention.out_norm.weight", delta.value_head_dim, Component::kAttention,
                  "linear_attn.norm.weight"),
      named(split(described("out_proj.weight", {spec.hidden_size, value}, output_init(spec)), 1, {}),
            "out_proj.weight")};
  parameters[2].decay = parameters[3].decay = Decay::kNo;
  return parameters;
}

/// Kimi delta attention's projections of the layer's input, and what its low ranks are projected to.
Descriptors kimi_delta_projections(const ModelSpec& spec, const Naming& naming) {
  const KimiDeltaSpec& delta = spec.kimi_delta;
  const std::int64_t key = delta.heads.key_width();
  const std::int64_t value = delta.heads.value_width();
  const std::int64_t heads = delta.heads.num_value_heads;
  const auto described = [&](const char* name, std::int64_t rows, std::int64_t columns) {
    return matrix(naming, std::string("self_attention.") + name + ".weight", {rows, columns}, Component::kAttention,
                  input_init(spec));
  };
  // Rows of each of Hugging Face's tensors, one behind the other.
  const auto rows_of = [&](std::vector<std::pair<const char*, std::int64_t>> tensors) {
    std::vector<HuggingFaceSlice> slices;
    std::int64_t row = 0;
    for (const auto& [name, rows] : tensors) {
      slices.push_back({naming.hugging_face + "self_attn." + name + ".weight", row, row + rows});
      row += rows;
    }
    return slices;
  };
  const bool is_low = delta.has_low_rank_gate();
  ParameterDescriptor in = described("in_proj", delta.projected_width(), spec.hidden_size);
  in.shards = {{0, ShardGroup::kTensor, {key, key, value, heads}}};
  in.hugging_face = rows_of({{"q_proj", key}, {"k_proj", key}, {"v_proj", value}, {"b_proj", heads}});
  ParameterDescriptor low = described("low_rank_proj", delta.low_rank_width(), spec.hidden_size);
  low.tensor_gradient = TensorGradient::kPartial;
  low.hugging_face = rows_of({{"f_a_proj", delta.rank()}});
  if (is_low) {
    low.hugging_face = rows_of({{"f_a_proj", delta.rank()}, {"g_a_proj", delta.rank()}});
  } else {
    in.shards[0].segments.push_back(value);
    in.hugging_face =
        rows_of({{"q_proj", key}, {"k_proj", key}, {"v_proj", value}, {"b_proj", heads}, {"g_proj", value}});
  }
  ParameterDescriptor decay = described("decay_proj", delta.decay_width(), delta.rank());
  decay.shards = {{0, ShardGroup::kTensor, {}}};
  decay.hugging_face = rows_of({{"f_b_proj", delta.decay_width()}});
  Descriptors parameters = {std::move(in), std::move(low), std::move(decay)};
  if (is_low) {
    ParameterDescriptor gate = described("gate_proj", value, delta.rank());
    gate.shards = {{0, ShardGroup::kTensor, {}}};
    gate.hugging_face = rows_of({{"g_b_proj", value}});
    parameters.push_back(std::move(gate));
  }
  return parameters;
}

Descriptors kimi_delta_parameters(const ModelSpec& spec, const Naming& naming) {
  const KimiDeltaSpec& delta = spec.kimi_delta;
  const std::int64_t key = delta.heads.key_width();
  const std::int64_t value = delta.heads.value_width();
  const std::string prefix = naming.hugging_face + "self_attn.";
  Descriptors parameters = kimi_delta_projections(spec, naming);
  ParameterDescriptor taps =
      conv_taps(naming, "self_attention.conv1d.weight", 2 * key + value, delta.heads.kernel_size);
  taps.shards = {{0, ShardGroup::kTensor, {key, key, value}}};
  taps.hugging_face = {{prefix + "q_conv1d.weight", 0, key},
                       {prefix + "k_conv1d.weight", key, 2 * key},
                       {prefix + "v_conv1d.weight", 2 * key, 2 * key + value}};
  parameters.push_back(std::move(taps));
  // Decays begin near 1: steps between these, as flash-linear-attention begins.
  const Init steps = {.kind = InitKind::kStepBias, .low = 1e-3, .high = 0.1};
  for (auto& [name, width, init] :
       {std::tuple{"dt_bias", delta.decay_width(), steps}, {"A_log", delta.heads.num_value_heads, decay_rate_init()}}) {
    ParameterDescriptor numbers =
        matrix(naming, std::string("self_attention.") + name, {width}, Component::kAttention, init);
    numbers.shards = {{0, ShardGroup::kTensor, {}}};
    numbers.decay = Decay::kNo;
    numbers.hugging_face = {whole_rows(prefix + name, numbers)};
    parameters.push_back(std::move(numbers));
  }
  parameters.push_back(norm_weight(naming, "self_attention.out_norm.weight", delta.heads.value_head_dim,
                                   Component::kAttention, "self_attn.o_norm.weight"));
  ParameterDescriptor out = matrix(naming, "self_attention.out_proj.weight", {spec.hidden_size, value},
                                   Component::kAttention, output_init(spec));
  out.shards = {{1, ShardGroup::kTensor, {}}};
  out.hugging_face = {whole_rows(prefix + "o_proj.weight", out)};
  parameters.push_back(std::move(out));
  return parameters;
}

/// What makes entries of `size` of a layer's tokens: keys and gates as one projection, a bias for each place in a
/// window, and the norm of the entries. `ours` and `theirs` end in a dot.
Descriptors compressor_parameters(const ModelSpec& spec, int layer, std::int64_t size, const Naming& naming,
                                  const std::string& ours, const std::string& theirs) {
  const std::int64_t width = spec.compressed.key_width(layer, size);
  const std::string prefix = naming.hugging_face + theirs;
  ParameterDescriptor projection = matrix(naming, ours + "linear_key_gate.weight", {2 * width, spec.hidden_size},
                                          Component::kAttention, input_init(spec));
  projection.tensor_gradient = TensorGradient::kPartial;
  projection.hugging_face = {{prefix + "kv_proj.weight", 0, width}, {prefix + "gate_proj.weight", width, 2 * width}};
  ParameterDescriptor bias =
      bias_vector(naming, ours + "position_bias", {spec.compressed.ratio(layer), width}, Component::kAttention);
  bias.tensor_gradient = TensorGradient::kPartial;
  bias.hugging_face = {whole_rows(prefix + "position_bias", bias)};
  Descriptors parameters = {std::move(projection), std::move(bias)};
  append(parameters, norm_parameters(spec, naming, ours + "norm", size, Component::kAttention, theirs + "kv_norm"));
  return parameters;
}

/// The indexer of a layer's entries, whole on every rank.
Descriptors entry_indexer_parameters(const ModelSpec& spec, int layer, const Naming& naming) {
  const CompressedAttentionSpec& attention = spec.compressed;
  const IndexerSpec& indexer = attention.indexer;
  const std::string ours = "self_attention.core_attention.indexer.";
  const std::string theirs = "self_attn.compressor.indexer.";
  Descriptors parameters = compressor_parameters(spec, layer, indexer.head_dim, naming, ours + "compressor.", theirs);
  const auto add = [&](const char* name, const char* hugging_face, std::int64_t rows, std::int64_t columns) {
    parameters.push_back(replicated_matrix(spec, naming, ours + name, theirs + hugging_face, {rows, columns}));
  };
  add("linear_wq_b", "q_b_proj", indexer.query_width(), attention.q_lora_rank);
  add("linear_weights_proj", "scorer.weights_proj", indexer.num_heads, spec.hidden_size);
  return parameters;
}

Descriptors compressed_attention_parameters(const ModelSpec& spec, int layer, const Naming& naming) {
  const CompressedAttentionSpec& attention = spec.compressed;
  const std::int64_t hidden = spec.hidden_size;
  Descriptors parameters;
  const auto add = [&](const std::string& name, const std::string& hugging_face, std::int64_t rows,
                       std::int64_t columns, Init init) -> ParameterDescriptor& {
    ParameterDescriptor parameter =
        matrix(naming, "self_attention." + name + ".weight", {rows, columns}, Component::kAttention, init);
    parameter.hugging_face = {whole_rows(naming.hugging_face + "self_attn." + hugging_face + ".weight", parameter)};
    return parameters.emplace_back(std::move(parameter));
  };
  const auto add_norm = [&](const char* name, std::int64_t width, const char* hugging_face) {
    append(parameters, norm_parameters(spec, naming, std::string("self_attention.") + name, width,
                                       Component::kAttention, std::string("self_attn.") + hugging_face));
  };
  add("linear_q_down_proj", "q_a_proj", attention.q_lora_rank, hidden, input_init(spec)).tensor_gradient =
      TensorGradient::kPartial;
  add_norm("q_layernorm", attention.q_lora_rank, "q_a_norm");
  add("linear_q_up_proj", "q_b_proj", attention.query_width(), attention.q_lora_rank, input_init(spec)).shards = {
      {0, ShardGroup::kTensor, {}}};
  add("linear_kv_proj", "kv_proj", attention.head_dim, hidden, input_init(spec)).tensor_gradient =
      TensorGradient::kPartial;
  add_norm("kv_layernorm", attention.head_dim, "kv_norm");
  // Whole groups of heads on each rank, so rows of the first and columns of the second.
  add("linear_o_down_proj", "o_a_proj", attention.output_width(), attention.group_width(), input_init(spec)).shards = {
      {0, ShardGroup::kTensor, {}}};
  add("linear_proj", "o_b_proj", hidden, attention.output_width(), output_init(spec)).shards = {
      {1, ShardGroup::kTensor, {}}};
  if (attention.sinks == Part::kPresent) {
    ParameterDescriptor sinks =
        bias_vector(naming, "self_attention.core_attention.sinks", {attention.num_heads}, Component::kAttention);
    sinks.shards = {{0, ShardGroup::kTensor, {}}};
    sinks.tensor_gradient = TensorGradient::kWhole;
    sinks.hugging_face = {whole_rows(naming.hugging_face + "self_attn.sinks", sinks)};
    parameters.push_back(std::move(sinks));
  }
  if (attention.ratio(layer) == 0) return parameters;
  append(parameters, compressor_parameters(spec, layer, attention.head_dim, naming, "self_attention.compressor.",
                                           "self_attn.compressor."));
  if (attention.picks_entries(layer)) append(parameters, entry_indexer_parameters(spec, layer, naming));
  return parameters;
}

Descriptors short_convolution_parameters(const ModelSpec& spec, const Naming& naming) {
  const std::int64_t hidden = spec.hidden_size;
  const auto projection = [&](const std::string& name, std::int64_t rows, Init init) {
    return matrix(naming, "self_attention." + name, {rows, hidden}, Component::kAttention, init);
  };
  Descriptors parameters = {projection("in_proj.weight", 3 * hidden, input_init(spec)),
                            conv_taps(naming, "self_attention.conv.weight", hidden, spec.short_convolution.kernel_size),
                            projection("out_proj.weight", hidden, output_init(spec))};
  if (spec.short_convolution.bias == Part::kPresent) {
    for (const auto& [name, width] :
         {std::pair{"in_proj.bias", 3 * hidden}, {"conv.bias", hidden}, {"out_proj.bias", hidden}}) {
      parameters.push_back(bias_vector(naming, std::string("self_attention.") + name, {width}, Component::kAttention));
    }
  }
  const std::string ours = naming.ours + "self_attention.";
  for (ParameterDescriptor& parameter : parameters) {
    parameter.hugging_face = {
        whole_rows(naming.hugging_face + "conv." + parameter.name.substr(ours.size()), parameter)};
  }
  return parameters;
}

}  // namespace

Descriptors mixer_parameters(const ModelSpec& spec, int layer) {
  const Naming naming = layer_naming(layer);
  switch (spec.mixer(layer)) {
    case MixerKind::kGatedDelta:
      return gated_delta_parameters(spec, naming);
    case MixerKind::kKimiDelta:
      return kimi_delta_parameters(spec, naming);
    case MixerKind::kShortConvolution:
      return short_convolution_parameters(spec, naming);
    case MixerKind::kCompressed:
      return compressed_attention_parameters(spec, layer, naming);
    case MixerKind::kUnknown:
      return {};
    case MixerKind::kAttention:
      break;
  }
  const auto* mla = std::get_if<MlaSpec>(&spec.attention);
  Descriptors parameters =
      mla ? mla_parameters(spec, *mla, naming) : gqa_parameters(spec, std::get<GqaSpec>(spec.attention), naming);
  append(parameters, attention_extras(spec, naming));
  if (spec.picks_keys(layer)) append(parameters, indexer_parameters(spec, *mla, naming));
  return parameters;
}

}  // namespace primus::model
