// Rules: experts and routing.
#include <fmt/format.h>

#include <algorithm>

#include "config/layer_pattern.hpp"
#include "config/number_list.hpp"
#include "config/rules.hpp"

namespace primus::config {
namespace {

void top_k(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto experts = experiment.get_optional_int("num_experts");
  if (!experts || experiment.get_int("moe_router_topk") <= *experts) return;
  context.report("moe_router_topk", fmt::format("exceeds {}", setting_text(experiment, "num_experts")),
                 fmt::format("at most {}", *experts));
}

void expert_groups(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto experts = experiment.get_optional_int("num_experts");
  const auto groups = experiment.get_optional_int("moe_router_num_groups");
  const auto chosen = experiment.get_optional_int("moe_router_group_topk");
  if (!experts) return;
  if (!groups) {
    if (chosen && context.is_wanted("moe_router_group_topk")) {
      context.report("moe_router_group_topk", "there are no groups to choose from: moe_router_num_groups is null",
                     "null, or both");
    }
    return;
  }
  if (*experts % *groups != 0) {
    context.report("moe_router_num_groups", fmt::format("does not divide {}", setting_text(experiment, "num_experts")),
                   "a divisor", fmt::format("nearest: {}", nearest_divisor(*experts, *groups)));
    return;
  }
  if (!chosen) {
    context.report("moe_router_group_topk", "needed beside moe_router_num_groups", "integer >= 1");
    return;
  }
  if (*chosen > *groups) {
    context.report("moe_router_group_topk",
                   fmt::format("exceeds {}", setting_text(experiment, "moe_router_num_groups")),
                   fmt::format("at most {}", *groups));
    return;
  }
  const std::int64_t top_k = experiment.get_int("moe_router_topk");
  if (top_k % *chosen == 0 && top_k / *chosen <= *experts / *groups) return;
  if (*experts / *groups * *chosen < top_k) {
    context.report("moe_router_topk",
                   fmt::format("exceeds the {} expert{} that {} chosen group{} hold{}", *experts / *groups * *chosen,
                               *experts / *groups * *chosen == 1 ? "" : "s", *chosen, *chosen == 1 ? "" : "s",
                               *chosen == 1 ? "s" : ""),
                   fmt::format("at most {}", *experts / *groups * *chosen));
  }
}

// The pattern for a model of another depth that begins the same way: what a user who changed num_layers means.
std::string shorter_pattern(const std::vector<std::int64_t>& items, std::int64_t num_layers) {
  const auto dense = std::find(items.begin(), items.end(), 1) - items.begin();
  const std::int64_t first = std::min<std::int64_t>(dense, num_layers);
  return fmt::format("([0]*{}+[1]*{})", first, num_layers - first);
}

void layer_pattern(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.is_null("num_experts")) return;
  const Value& frequency = experiment.setting("moe_layer_freq").value;
  if (std::holds_alternative<std::int64_t>(frequency.data)) return;
  const std::vector<std::int64_t> items = pattern_items(frequency);
  const std::int64_t num_layers = experiment.get_int("num_layers");
  if (std::any_of(items.begin(), items.end(), [](std::int64_t item) { return item != 0 && item != 1; })) {
    context.report("moe_layer_freq", "holds something else than 0 and 1", "0 for a dense layer, 1 for a MoE layer");
  } else if (static_cast<std::int64_t>(items.size()) != num_layers &&
             cut_pattern(context, "moe_layer_freq") == Yielded::kNo) {
    context.report(
        "moe_layer_freq", fmt::format("is for {} layers, but {}", items.size(), setting_text(experiment, "num_layers")),
        fmt::format("{} items", num_layers), fmt::format("for instance {}", shorter_pattern(items, num_layers)));
  }
}

// With the softmax over the chosen ones, one expert always has probability 1: the router would never learn.
void single_expert(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (context.is_null("num_experts") || context.integer("moe_router_topk") != 1) return;
  if (experiment.get_string("moe_router_score_function") != "softmax" || context.is_on("moe_router_pre_softmax"))
    return;
  context.report("moe_router_topk", "a softmax over one chosen expert is always 1, so the router learns nothing",
                 "at least 2", "or write moe_router_pre_softmax: true");
}

void expert_bias(RuleContext& context) {
  if (!context.is_on("moe_router_enable_expert_bias") || context.is_null("num_experts")) return;
  if (context.experiment().get_string("moe_router_score_function") != "softmax") return;
  context.report("moe_router_enable_expert_bias",
                 fmt::format("expert biases steer scores that do not depend on each other: {}",
                             setting_text(context.experiment(), "moe_router_score_function")),
                 "false, or moe_router_score_function sigmoid or sqrtsoftplus");
}

bool is_loss(std::string_view balancing) {
  return balancing == "aux_loss" || balancing == "seq_aux_loss" || balancing == "global_aux_loss";
}

// Several losses have a weight each; the other ways of balancing stand alone.
void balancing(RuleContext& context) {
  constexpr std::string_view kTypes = "moe_router_load_balancing_type";
  constexpr std::string_view kWeights = "moe_aux_loss_coeff";
  const Experiment& experiment = context.experiment();
  if (context.is_null("num_experts")) return;
  const std::vector<std::string> types = experiment.get_strings(kTypes);
  const std::size_t num_weights = numbers_of(experiment.setting(kWeights).value).size();
  if (types.empty()) return context.report(kTypes, "names no way of balancing", "none, or a way");
  std::vector<std::string> sorted = types;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    return context.report(kTypes, fmt::format("names {} twice", *twice), "each way once");
  }
  if (types.size() > 1) {
    const auto alone = std::find_if_not(types.begin(), types.end(), is_loss);
    if (alone != types.end()) {
      return context.report(kTypes, fmt::format("{} stands alone", *alone), "losses in a list, or one way");
    }
  }
  const std::vector<double> weights = numbers_of(experiment.setting(kWeights).value);
  const bool is_unweighted = std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 0.0; });
  if (is_unweighted && context.is_wanted(kTypes) && std::any_of(types.begin(), types.end(), is_loss)) {
    context.note(kTypes, "balances nothing: moe_aux_loss_coeff is 0", kWeights);
  }
  if (num_weights == types.size()) return;
  if (types.size() == 1 && num_weights == 1) return;
  context.report(kWeights,
                 fmt::format("{} weight{} for {} way{} of balancing: {}", num_weights, num_weights == 1 ? "" : "s",
                             types.size(), types.size() == 1 ? "" : "s", setting_text(experiment, kTypes)),
                 fmt::format("{} number{}", types.size(), types.size() == 1 ? "" : "s"));
}

// Both choose experts in a way of their own.
void assignment(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::vector<std::string> types = experiment.get_strings("moe_router_load_balancing_type");
  if (context.is_null("num_experts") || types.size() != 1) return;
  if (types[0] != "sinkhorn" && types[0] != "quantile_balancing") return;
  for (const std::string_view key : {"moe_router_num_groups", "moe_router_enable_expert_bias"}) {
    if (context.is_null(key) || experiment.setting(key).value == Value{false}) continue;
    context.report("moe_router_load_balancing_type",
                   fmt::format("chooses experts without {}", setting_text(experiment, key)),
                   fmt::format("another way of balancing, or {} left out", key));
  }
}

// Only a gated unit has two halves to bound and to shift.
void gated_unit(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (context.is_on("swiglu") || context.is_on("quick_geglu")) return;
  if (!context.is_null("activation_func_clamp_value")) {
    context.report("activation_func_clamp_value", "there is no gated unit: swiglu and quick_geglu are false",
                   "null, or a gated unit");
  }
  if (experiment.get_double("glu_linear_offset") != 0.0) {
    context.report("glu_linear_offset", "there is no gated unit: swiglu and quick_geglu are false",
                   "0, or a gated unit");
  }
  for (const std::string_view key : {"moe_mlp_glu_interleave_size", "moe_shared_expert_glu_interleave_size"}) {
    if (context.is_null(key) || !context.is_wanted(key)) continue;
    context.report(key, "there is no gated unit: swiglu and quick_geglu are false", "null, or a gated unit");
  }
}

// Two names of one bound.
void swiglu_limit(RuleContext& context) {
  if (context.is_null("swiglu_limit")) return;
  const Experiment& experiment = context.experiment();
  if (!context.is_on("swiglu")) {
    context.report("swiglu_limit", "bounds SwiGLU: swiglu is false", "null, or swiglu: true");
  } else if (const auto other = experiment.get_optional_double("activation_func_clamp_value");
             other && *other != experiment.get_double("swiglu_limit")) {
    context.exclude({"swiglu_limit", {}}, {"activation_func_clamp_value", {}});
  }
}

// The unit that flattens out takes SwiGLU's place and has bounds of its own.
void flattened_unit(RuleContext& context) {
  constexpr std::string_view kKey = "activation_situ_beta";
  if (context.is_null(kKey)) return;
  if (!context.is_on("swiglu")) {
    context.report(kKey, fmt::format("takes the place of SwiGLU: {}", setting_text(context.experiment(), "swiglu")),
                   "null, or swiglu: true");
  }
  for (const std::string_view key : {"activation_func_clamp_value", "swiglu_limit"}) {
    if (!context.is_null(key)) context.exclude({kKey, {}}, {key, {}});
  }
  if (context.experiment().get_double("glu_linear_offset") != 0.0) {
    context.exclude({kKey, {}}, {"glu_linear_offset", {0.0}});
  }
}

void glu_interleave(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto inner = experiment.get_optional_int("moe_ffn_hidden_size");
  for (const auto& [key, width] :
       {std::pair{"moe_mlp_glu_interleave_size", inner ? "moe_ffn_hidden_size" : "ffn_hidden_size"},
        std::pair{"moe_shared_expert_glu_interleave_size", "moe_shared_expert_intermediate_size"}}) {
    const auto block = experiment.get_optional_int(key);
    const auto size = experiment.get_optional_int(width);
    if (!block || !size || *size % *block == 0) continue;
    context.report(key, fmt::format("does not divide {}", setting_text(experiment, width)), "a divisor",
                   fmt::format("nearest: {}", nearest_divisor(*size, *block)));
  }
}

// A quantile needs an expert that a token does not take, and a range to count in.
void quantile_rule(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (!context.is_on("moe_router_enable_expert_bias") || context.is_null("num_experts")) return;
  if (experiment.get_string("moe_router_bias_update_rule") != "quantile") return;
  if (context.integer("moe_router_topk") >= context.integer("num_experts")) {
    context.report("moe_router_bias_update_rule",
                   fmt::format("every token takes every expert: {}", setting_text(experiment, "moe_router_topk")),
                   "sign, or fewer experts a token");
  }
  if (experiment.get_double("quantile_balancing_margin_max") > experiment.get_double("quantile_balancing_margin_min"))
    return;
  context.report("quantile_balancing_margin_max",
                 fmt::format("is not above {}", setting_text(experiment, "quantile_balancing_margin_min")),
                 "a larger number");
}

void capacity(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto factor = experiment.get_optional_double("moe_expert_capacity_factor");
  if (!factor) {
    if (context.is_on("moe_pad_expert_input_to_capacity")) {
      context.report("moe_pad_expert_input_to_capacity", "needs moe_expert_capacity_factor", "false, or both");
    }
    return;
  }
  const std::vector<std::string> types = experiment.get_strings("moe_router_load_balancing_type");
  if (!std::all_of(types.begin(), types.end(),
                   [](const std::string& type) { return type == "none" || is_loss(type); })) {
    context.report("moe_expert_capacity_factor",
                   fmt::format("{} has no tokens to drop", setting_text(experiment, "moe_router_load_balancing_type")),
                   "null, or another way of balancing");
  }
  if (*factor * static_cast<double>(context.integer("moe_router_topk")) < 1.0) {
    context.report("moe_expert_capacity_factor",
                   fmt::format("all experts together could not take every token even once ({})",
                               setting_text(experiment, "moe_router_topk")),
                   fmt::format("at least 1/{}", context.integer("moe_router_topk")));
  }
}

void shared_overlap(RuleContext& context) {
  constexpr std::string_view kKey = "moe_shared_expert_overlap";
  if (!context.is_on(kKey) || context.is_null("num_experts")) return;
  if (!context.is_null("moe_shared_expert_intermediate_size")) return;
  if (context.is_wanted(kKey)) context.note(kKey, "does nothing: the model has no shared experts");
  context.set(kKey, {false});
}

void upcycling(RuleContext& context) {
  if (!context.is_on("moe_use_upcycling")) return;
  if (context.is_null("num_experts")) {
    context.report("moe_use_upcycling", "the model has no experts: num_experts is null", "false");
  } else if (context.is_null("load") && context.is_null("pretrained_checkpoint")) {
    context.report("moe_use_upcycling", "there is no dense model to start from",
                   "false, or load of a dense checkpoint");
  }
}

// Several experts would see several inputs: their outputs would no longer be weighted by the probabilities.
void probabilities_on_input(RuleContext& context) {
  if (!context.is_on("moe_apply_probs_on_input") || context.is_null("num_experts")) return;
  if (context.integer("moe_router_topk") == 1) return;
  context.report("moe_apply_probs_on_input",
                 fmt::format("is for one expert a token: {}", setting_text(context.experiment(), "moe_router_topk")),
                 "false, or moe_router_topk: 1");
}

// The table of experts is a part of MoE layers, and a dense checkpoint has none.
void hash_layers(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::int64_t count = context.integer("num_hash_layers");
  if (count == 0 || context.is_null("num_experts")) return;
  const std::int64_t num_layers = context.integer("num_layers");
  if (count > num_layers) {
    if (context.is_wanted("num_hash_layers")) {
      context.report("num_hash_layers", fmt::format("exceeds {}", setting_text(experiment, "num_layers")),
                     fmt::format("at most {}", num_layers));
    } else {
      context.require("num_hash_layers", Value{num_layers}, setting_text(experiment, "num_layers"));
    }
  }
  if (context.is_on("moe_use_upcycling")) {
    context.report("num_hash_layers", "upcycled experts come with no table of tokens", "0");
  }
}

constexpr Rule kRules[] = {
    {"top_k", "A token goes to at most all experts.", top_k},
    {"expert_groups", "Groups divide the experts, and the chosen groups hold enough of them.", expert_groups},
    {"layer_pattern", "moe_layer_freq has one 0 or 1 a layer.", layer_pattern},
    {"single_expert", "One expert a token needs a softmax over all of them, or the router never learns.",
     single_expert},
    {"expert_bias", "Expert biases steer sigmoid scores.", expert_bias},
    {"balancing", "Each balancing loss has a weight; the other ways of balancing stand alone.", balancing},
    {"assignment", "Sinkhorn and quantile balancing choose experts without groups and biases.", assignment},
    {"gated_unit", "Bounds, offsets and alternating halves belong to gated units.", gated_unit},
    {"swiglu_limit", "SwiGLU has one bound.", swiglu_limit},
    {"flattened_unit", "The unit that flattens out has neither bound nor offset beside it.", flattened_unit},
    {"glu_interleave", "Blocks of alternating halves divide the experts' width.", glu_interleave},
    {"quantile_rule", "The quantile rule has an expert to spare and a range to count in.", quantile_rule},
    {"probabilities_on_input", "Probabilities scale the experts' input where a token has one expert.",
     probabilities_on_input},
    {"capacity", "A capacity leaves room for every token once, and balancing that can drop.", capacity},
    {"shared_overlap", "Shared experts that are not there overlap with nothing; said in a note.", shared_overlap},
    {"hash_layers", "Layers that route by tokens are layers of the model, and not upcycled.", hash_layers},
    {"upcycling", "Upcycled experts start from a dense checkpoint.", upcycling},
};

}  // namespace

Yielded cut_pattern(RuleContext& context, std::string_view key) {
  std::vector<std::int64_t> items = pattern_items(context.experiment().setting(key).value);
  const std::int64_t num_layers = context.integer("num_layers");
  if (context.is_wanted(key) || static_cast<std::int64_t>(items.size()) <= num_layers) return Yielded::kNo;
  items.resize(static_cast<std::size_t>(num_layers));
  context.require(key, Value{pattern_text(items)}, setting_text(context.experiment(), "num_layers"));
  return Yielded::kYes;
}

std::span<const Rule> moe_rules() {
  return kRules;
}

}  // namespace primus::config
