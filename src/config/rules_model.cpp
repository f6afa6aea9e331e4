// Rules: sizes of the network that must fit each other.
#include <fmt/format.h>

#include "base/text.hpp"
#include "config/layer_pattern.hpp"
#include "config/parse.hpp"
#include "config/rules.hpp"

namespace primus::config {
namespace {

// Divisor of `whole` that is nearest to `wanted`.
std::int64_t nearest_divisor(std::int64_t whole, std::int64_t wanted) {
  for (std::int64_t distance = 0; distance < whole; ++distance) {
    if (wanted - distance >= 1 && whole % (wanted - distance) == 0) return wanted - distance;
    if (whole % (wanted + distance) == 0) return wanted + distance;
  }
  return 1;
}

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
  if (!groups || !experiment.get_bool("group_query_attention") || experiment.get_bool("multi_latent_attention")) return;
  const std::int64_t heads = experiment.get_int("num_attention_heads");
  if (heads % *groups == 0) return;
  context.report("num_query_groups", fmt::format("does not divide num_attention_heads {}", heads), "a divisor",
                 fmt::format("nearest: {}", nearest_divisor(heads, *groups)));
}

void latent_attention(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (!experiment.get_bool("multi_latent_attention")) {
    if (experiment.get_bool("qk_layernorm")) {
      context.plan("qk_layernorm", "norms on queries and keys without latent attention (write qk_layernorm: false)");
    }
    return;
  }
  if (experiment.get_int("qk_pos_emb_head_dim") % 2 != 0) {
    context.report("qk_pos_emb_head_dim", "the rotated part of a head has pairs", "an even integer");
  }
  if (!experiment.get_bool("qk_layernorm"))
    context.plan("qk_layernorm", "latent attention without latent norms (write qk_layernorm: true)");
}

void positions(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto longest = experiment.get_optional_int("max_position_embeddings");
  const std::int64_t length = experiment.get_int("seq_length");
  if (!longest || length <= *longest) return;
  context.report("seq_length", fmt::format("exceeds {}", setting_text(experiment, "max_position_embeddings")),
                 fmt::format("at most {}", *longest), "raise max_position_embeddings or shorten seq_length");
}

void recompute_layers(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto text = experiment.get_optional_string("recompute_layer_ids");
  if (!text) return;
  const std::int64_t last =
      experiment.get_int("num_layers") + experiment.get_optional_int("mtp_num_layers").value_or(0) - 1;
  for (const std::string& word : split(*text, ',')) {
    const auto id = parse_int(trim(word));
    if (id && *id >= 0 && *id <= last) continue;
    context.report("recompute_layer_ids", fmt::format("'{}' is not a layer of this model", trim(word)),
                   fmt::format("numbers from 0 to {}, separated by commas", last));
    break;
  }
  context.require("recompute_granularity", {std::string("full")}, "recompute_layer_ids");
  context.require("recompute_method", {}, "recompute_layer_ids");
}

void number_types(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.get_bool("fp16")) context.require("bf16", {false}, "fp16");
  if (!experiment.is_null("fp8") && !experiment.is_null("fp4")) {
    context.report("fp4", fmt::format("conflicts with {}", setting_text(experiment, "fp8")), "one of the two");
  }
}

constexpr Rule kRules[] = {
    {"attention_heads", "Heads divide the hidden size and are even.", attention_heads},
    {"query_groups", "Query groups divide the heads.", query_groups},
    {"latent_attention", "Latent attention has an even rotated part; norms on queries and keys belong to it.",
     latent_attention},
    {"positions", "A sequence fits into max_position_embeddings.", positions},
    {"recompute_layers", "recompute_layer_ids name layers, with full granularity and no method.", recompute_layers},
    {"number_types", "One of fp32, bf16, fp16; one of fp8, fp4.", number_types},
};

}  // namespace

std::span<const Rule> model_rules() {
  return kRules;
}

}  // namespace primus::config
