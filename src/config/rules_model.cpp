// Rules: sizes of the network that must fit each other.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "config/layer_pattern.hpp"
#include "config/rules.hpp"

namespace primus::config {
namespace {

void attention_heads(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.get_bool("multi_latent_attention")) return;
  const std::int64_t hidden = experiment.get_int("hidden_size");
  const std::int64_t heads = experiment.get_int("num_attention_heads");
  if (experiment.is_null("kv_channels") && hidden % heads != 0) {
    context.report("num_attention_heads", fmt::format("does not divide hidden_size {}", hidden),
                   "a divisor, or kv_channels set", fmt::format("nearest: {}", nearest_divisor(hidden, heads)));
    return;
  }
  if (experiment.get_optional_int("kv_channels").value_or(hidden / heads) % 2 != 0) {
    const std::string_view key = experiment.is_null("kv_channels") ? "num_attention_heads" : "kv_channels";
    context.report(key, "rotary positions need heads of even size", "an even head size");
  }
}

void query_groups(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto groups = experiment.get_optional_int("num_query_groups");
  if (!groups && context.is_on("group_query_attention") && context.is_wanted("group_query_attention") &&
      !context.is_on("multi_latent_attention")) {
    context.note("group_query_attention", "every head has keys of its own: num_query_groups is null",
                 "num_query_groups");
  }
  if (!groups || !experiment.get_bool("group_query_attention") || experiment.get_bool("multi_latent_attention")) return;
  const std::int64_t heads = experiment.get_int("num_attention_heads");
  if (heads % *groups == 0) return;
  context.report("num_query_groups", fmt::format("does not divide num_attention_heads {}", heads), "a divisor",
                 fmt::format("nearest: {}", nearest_divisor(heads, *groups)));
}

void latent_attention(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (!experiment.get_bool("multi_latent_attention")) return;
  if (experiment.get_int("qk_pos_emb_head_dim") % 2 != 0) {
    context.report("qk_pos_emb_head_dim", "the rotated part of a head has pairs", "an even integer");
  }
  if (experiment.get_double("rotary_percent") != 1.0) {
    context.plan("rotary_percent",
                 "latent attention whose rotated part is rotated in part (write rotary_percent: 1.0)");
  }
  for (const std::string_view key : {"attention_output_gate", "add_qkv_bias", "qk_l2_norm"}) {
    if (context.is_on(key)) context.plan(key, fmt::format("{} in latent attention (write {}: false)", key, key));
  }
}

void no_encoder(RuleContext& context) {
  const auto refuse = [&](std::string_view key, std::string_view expected) {
    context.report(key, "models here are decoders, without an encoder", std::string(expected));
  };
  // 1 is how the original's presets spell an encoder's share of nothing.
  for (const std::string_view key : {"encoder_tensor_model_parallel_size", "encoder_pipeline_model_parallel_size"}) {
    if (context.integer(key) > 1) refuse(key, "0");
  }
  if (context.experiment().get_optional_int("encoder_num_layers").value_or(0) > 0) {
    refuse("encoder_num_layers", "0 or null");
  }
  if (!context.is_null("pipeline_model_parallel_split_rank")) refuse("pipeline_model_parallel_split_rank", "null");
}

// In the original too: its decoder-only models refuse them, T5 has them.
void relative_positions(RuleContext& context) {
  if (context.experiment().get_string("position_embedding_type") != "relative") return;
  context.report("position_embedding_type",
                 "relative positions belong to models with an encoder, and models here are decoders",
                 "rope, yarn, mrope, learned_absolute or none");
}

void positions(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto longest = experiment.get_optional_int("max_position_embeddings");
  const std::int64_t length = experiment.get_int("seq_length");
  if (!longest || length <= *longest) return;
  context.report("seq_length", fmt::format("exceeds {}", setting_text(experiment, "max_position_embeddings")),
                 fmt::format("at most {}", *longest), "raise max_position_embeddings or shorten seq_length");
}

// One function between the two halves of the MLP. Presets say which one it is not; a user's choice replaces theirs.
void activation(RuleContext& context) {
  constexpr std::string_view kKinds[] = {"swiglu", "quick_geglu", "squared_relu", "openai_gelu"};
  std::string_view chosen;
  for (const std::string_view key : kKinds) {
    if (!context.is_on(key)) continue;
    if (chosen.empty()) {
      chosen = key;
      continue;
    }
    context.exclude({chosen, {false}}, {key, {false}});
    if (!context.is_on(chosen)) chosen = key;
  }
}

void query_key_norms(RuleContext& context) {
  if (!context.is_on("qk_l2_norm") || !context.is_on("qk_layernorm")) return;
  context.exclude({"qk_layernorm", {false}}, {"qk_l2_norm", {false}});
}

// Two ways to say where the sinks come from: DeepSeek-V4's attention has its own.
void sink_kinds(RuleContext& context) {
  if (!context.is_on("attn_sink")) return;
  if (context.is_on("use_sink_attention")) {
    context.exclude({"attn_sink", {false}}, {"use_sink_attention", {false}});
    return;
  }
  const Experiment& experiment = context.experiment();
  if (experiment.get_string("model_type") == "deepseek_v4") return;
  context.report("attn_sink", fmt::format("belongs to DeepSeek-V4: {}", setting_text(experiment, "model_type")),
                 "false", "other models have use_sink_attention");
}

// A window or sinks on context ranks would need keys that another rank holds, from where the window begins.
void sinks(RuleContext& context) {
  if (!context.is_on("use_sink_attention") || context.integer("context_parallel_size") == 1) return;
  context.report("use_sink_attention",
                 fmt::format("sinks are not computed over context ranks: {}",
                             setting_text(context.experiment(), "context_parallel_size")),
                 "false, or one context rank");
}

// Patterns beside moe_layer_freq, which has its own rule. One that nothing reads may have any length.
void layer_patterns(RuleContext& context) {
  constexpr std::pair<std::string_view, std::string_view> kPatterns[] = {
      {"linear_attention_freq", "experimental_attention_variant"},
      {"window_attn_skip_freq", "window_size"},
      {"no_rope_freq", "no_rope_freq"}};
  const Experiment& experiment = context.experiment();
  const std::int64_t num_layers = experiment.get_int("num_layers");
  for (const auto& [key, reader] : kPatterns) {
    const Value& pattern = experiment.setting(key).value;
    if (pattern.is_null() || std::holds_alternative<std::int64_t>(pattern.data)) continue;
    if (context.is_null(reader) && !context.is_wanted(key)) continue;
    const std::vector<std::int64_t> items = pattern_items(pattern);
    if (std::any_of(items.begin(), items.end(), [](std::int64_t item) { return item != 0 && item != 1; })) {
      context.report(key, "holds something else than 0 and 1", "one 0 or 1 a layer");
    } else if (static_cast<std::int64_t>(items.size()) != num_layers && cut_pattern(context, key) == Yielded::kNo) {
      context.report(key, fmt::format("is for {} layers, but {}", items.size(), setting_text(experiment, "num_layers")),
                     fmt::format("{} items", num_layers), fmt::format("for instance ([1]*{}+[0])", num_layers - 1));
    }
  }
}

void layer_kinds(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::vector<std::string> kinds = experiment.get_strings("lfm_layer_types");
  if (kinds.empty()) return;
  if (!context.is_null("experimental_attention_variant")) {
    return context.exclude({"lfm_layer_types", {}}, {"experimental_attention_variant", {}});
  }
  const std::int64_t num_layers = experiment.get_int("num_layers");
  if (static_cast<std::int64_t>(kinds.size()) == num_layers) return;
  context.report("lfm_layer_types", {.message = fmt::format("is for {} layers, but {}", kinds.size(),
                                                            setting_text(experiment, "num_layers")),
                                     .expected = fmt::format("{} kinds, each conv or full_attention", num_layers),
                                     .found = fmt::format("{} kinds", kinds.size())});
}

// Value heads share key heads; and which layers have linear attention must be said.
void linear_attention(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto variant = experiment.get_optional_string("experimental_attention_variant");
  if (variant != "gdn" && variant != "gated_delta_net" && variant != "kda") return;
  if (context.is_null("linear_attention_freq")) {
    context.report("experimental_attention_variant", "nothing says which layers have it",
                   "linear_attention_freq beside it", "for instance linear_attention_freq: 4");
  }
  const std::int64_t keys = experiment.get_int("linear_num_key_heads");
  const std::int64_t values = experiment.get_int("linear_num_value_heads");
  if (values % keys == 0) return;
  context.report("linear_num_key_heads", fmt::format("does not divide linear_num_value_heads {}", values), "a divisor",
                 fmt::format("nearest: {}", nearest_divisor(values, keys)));
}

// States that only grow would have no end.
void lowest_decay(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.get_optional_string("experimental_attention_variant") != "kda") return;
  if (experiment.get_optional_double("kda_gate_lower_bound").value_or(-1.0) < 0.0) return;
  context.report("kda_gate_lower_bound", "is the logarithm of a share of the state that stays", "a number below 0");
}

// Of two scalings of the frequencies, nobody could say which comes first.
void position_scaling(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto type = experiment.get_optional_string("rope_type");
  const bool is_written = experiment.get_string("position_embedding_type") == "yarn";
  const bool is_yarn = is_written || (type ? *type == "yarn" : experiment.get_bool("multi_latent_attention"));
  if (!is_yarn) return;
  const Alternative yarn = is_written ? Alternative{"position_embedding_type", {std::string("rope")}}
                                      : Alternative{"rope_type", {std::string("rope")}};
  if (context.is_on("use_rope_scaling")) return context.exclude(yarn, {"use_rope_scaling", {false}});
  if (experiment.get_optional_int("rotary_seq_len_interpolation_factor").value_or(1) == 1) return;
  context.exclude(yarn, {"rotary_seq_len_interpolation_factor", {}});
}

void window(RuleContext& context) {
  const Value& size = context.experiment().setting("window_size").value;
  if (size.is_null()) return;
  const auto& bounds = std::get<Value::List>(size.data);
  const auto bound = [&](std::size_t i) { return std::get<std::int64_t>(bounds[i].data); };
  if (bounds.size() != 2 || bound(0) < -1 || bound(1) < -1) {
    context.report("window_size", "is not a window", "keys before and keys after a query, as in 127,0; -1: all");
    return;
  }
  if (bound(1) > 0) {
    context.report("window_size", "holds keys after the query, which attention never sees",
                   fmt::format("{},0", bound(0)));
  }
  if (context.is_on("use_sink_attention") && context.integer("sink_sliding_window") > 0) {
    context.exclude({"window_size", {}}, {"sink_sliding_window", {std::int64_t{0}}});
  }
}

void softmax_logits(RuleContext& context) {
  if (!context.is_on("use_sink_attention")) return;
  if (context.experiment().get_string("softmax_type") != "off-by-one") return;
  context.exclude({"use_sink_attention", {false}}, {"softmax_type", {std::string("vanilla")}});
}

// What an indexer needs to be: Megatron leaves its sizes to the user, and so does this.
void sparse_attention(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.get_optional_string("experimental_attention_variant") != "dsa") return;
  if (!experiment.get_bool("multi_latent_attention")) {
    context.report("experimental_attention_variant", "sparse attention is latent attention with an indexer",
                   "multi_latent_attention: true beside it");
    return;
  }
  for (const std::string_view key : {"dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk"}) {
    if (!context.is_null(key)) continue;
    context.report(key, fmt::format("{} needs it", setting_text(experiment, "experimental_attention_variant")),
                   "a positive integer");
  }
  const auto head_dim = experiment.get_optional_int("dsa_indexer_head_dim");
  if (!head_dim) return;
  const std::int64_t rotated = experiment.get_int("qk_pos_emb_head_dim");
  if (*head_dim < rotated) {
    context.report("dsa_indexer_head_dim",
                   fmt::format("has no room for the rotated part: {}", setting_text(experiment, "qk_pos_emb_head_dim")),
                   fmt::format("at least {}", rotated));
  }
  const bool is_power = std::has_single_bit(static_cast<std::uint64_t>(*head_dim));
  if (context.is_on("dsa_indexer_rotate_activation") && !is_power) {
    context.report("dsa_indexer_head_dim", "a Hadamard rotation needs a power of two", "a power of two",
                   "or write dsa_indexer_rotate_activation: false, which changes no score");
  }
}

// The first layer has nobody before it.
void shared_choices(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.get_optional_string("experimental_attention_variant") != "dsa") return;
  const KeyChoices choices{context.integer("dsa_indexer_topk_freq"), context.integer("dsa_indexer_skip_topk_offset")};
  if (choices.are_made_in(0)) return;
  context.report("dsa_indexer_skip_topk_offset",
                 fmt::format("the first layer has no earlier choice of keys to share: {}",
                             setting_text(experiment, "dsa_indexer_topk_freq")),
                 "at least 1");
}

// One part before a depth leaves nothing to draw from.
void mixed_hidden_states(RuleContext& context) {
  if (!context.is_on("mtp_hsm")) return;
  const std::int64_t depths = context.experiment().get_optional_int("mtp_num_layers").value_or(0);
  if (depths == 0 || depths >= 2) return;
  context.report("mtp_hsm",
                 fmt::format("draws from several parts: {}", setting_text(context.experiment(), "mtp_num_layers")),
                 "false, or at least two depths");
}

// What is read of several streams is no residual: nothing behind the norm could be added to it.
void residual_streams(RuleContext& context) {
  const bool are_deepseeks = context.integer("hc_mult") > 1;
  if (!are_deepseeks && !context.is_on("enable_mhc_connections")) return;
  const Alternative streams =
      are_deepseeks ? Alternative{"hc_mult", {std::int64_t{1}}} : Alternative{"enable_mhc_connections", {false}};
  for (const std::string_view key : {"apply_residual_connection_post_layernorm", "fp32_residual_connection"}) {
    if (context.is_on(key)) context.exclude(streams, {key, {false}});
  }
  if (are_deepseeks && context.is_on("enable_mhc_connections")) {
    context.exclude(streams, {"enable_mhc_connections", {false}});
  }
}

// DeepSeek-V4's depths need heads of their own there too, and Megatron's streams take no depths.
void streams_of_depths(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.get_optional_int("mtp_num_layers").value_or(0) == 0) return;
  if (context.is_on("enable_mhc_connections")) {
    context.exclude({"enable_mhc_connections", {false}}, {"mtp_num_layers", {}});
  } else if (context.integer("hc_mult") > 1 && !context.is_on("mtp_use_separate_hc_head")) {
    context.report("mtp_use_separate_hc_head",
                   fmt::format("a prediction depth makes one hidden state of its streams by itself: {}",
                               setting_text(experiment, "hc_mult")),
                   "true");
  }
}

constexpr Rule kRules[] = {
    {"attention_heads", "Heads divide the hidden size and are even.", attention_heads},
    {"query_groups", "Query groups divide the heads.", query_groups},
    {"latent_attention", "Latent attention has an even rotated part, rotated whole.", latent_attention},
    {"no_encoder", "Models are decoders: no layers, ranks or stages of an encoder.", no_encoder},
    {"relative_positions", "Relative positions belong to models with an encoder.", relative_positions},
    {"positions", "A sequence fits into max_position_embeddings.", positions},
    {"activation", "One of swiglu, quick_geglu, squared_relu, openai_gelu.", activation},
    {"query_key_norms", "Queries and keys have one kind of norm.", query_key_norms},
    {"sink_kinds", "Sinks are DeepSeek-V4's own or those of use_sink_attention, not both.", sink_kinds},
    {"layer_patterns", "Patterns of layers have one 0 or 1 a layer.", layer_patterns},
    {"layer_kinds", "lfm_layer_types names one kind a layer, and no other key does.", layer_kinds},
    {"linear_attention", "Key heads of linear attention divide its value heads, and layers have it.", linear_attention},
    {"lowest_decay", "The lowest decay of delta attention has a logarithm below 0.", lowest_decay},
    {"position_scaling", "Rotary frequencies are scaled in one way.", position_scaling},
    {"window", "A window reaches backwards, and is given once.", window},
    {"mixed_hidden_states", "Mixed hidden states need two prediction depths.", mixed_hidden_states},
    {"sparse_attention", "Sparse attention is latent, and its indexer has sizes that fit.", sparse_attention},
    {"shared_choices", "The first layer of sparse attention chooses its keys.", shared_choices},
    {"softmax_logits", "The softmax has one extra logit: zero, or learnt.", softmax_logits},
    {"sinks", "Attention with sinks has one context rank.", sinks},
    {"residual_streams", "Residual streams are of one kind, in the compute type, and carry no normed input.",
     residual_streams},
    {"streams_of_depths", "A prediction depth of several residual streams has a head of its own.", streams_of_depths},
};

}  // namespace

std::span<const Rule> model_rules() {
  return kRules;
}

}  // namespace primus::config
