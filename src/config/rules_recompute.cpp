// Rules: which activations are computed again.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/text.hpp"
#include "config/parse.hpp"
#include "config/rules.hpp"

namespace primus::config {
namespace {

// "[0, 1]" and "0,1" are the same list.
std::string_view without_brackets(std::string_view text) {
  text = trim(text);
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  return trim(text);
}

void recompute_layers(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto text = experiment.get_optional_string("recompute_layer_ids");
  if (!text) return;
  const std::int64_t last =
      experiment.get_int("num_layers") + experiment.get_optional_int("mtp_num_layers").value_or(0) - 1;
  const std::string expected = fmt::format("numbers from 0 to {}, separated by commas", last);
  std::set<std::int64_t> ids;
  for (const std::string& word : split(without_brackets(*text), ',')) {
    const auto id = parse_int(trim(word));
    if (!id || *id < 0 || *id > last) {
      context.report("recompute_layer_ids", fmt::format("'{}' is not a layer of this model", trim(word)), expected);
      return;
    }
    if (ids.insert(*id).second) continue;
    context.report("recompute_layer_ids", fmt::format("layer {} is named twice", *id), expected);
    return;
  }
}

void recompute_layers_alone(RuleContext& context) {
  if (context.is_null("recompute_layer_ids")) return;
  if (!context.demand("recompute_layer_ids",
                      {{"recompute_granularity", {std::string("full")}}, {"recompute_method", {}}})) {
    return;
  }
  if (context.experiment().get_optional_int("recompute_num_layers").value_or(0) > 0) {
    context.note("recompute_num_layers", "not read: recompute_layer_ids names the layers", "recompute_layer_ids");
  }
}

void recompute_shorthand(RuleContext& context) {
  if (!context.is_on("recompute_activations")) return;
  context.demand("recompute_activations", {{"recompute_granularity", {std::string("selective")}}});
}

// Full recomputation says how: every n-th layer is kept (uniform), or the first n of a stage are run again (block).
void recompute_full(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::string kind = experiment.get_optional_string("recompute_granularity").value_or("");
  if (kind != "full" || !context.is_null("recompute_layer_ids")) return;
  if (context.is_null("recompute_method")) {
    context.report("recompute_method", fmt::format("{} needs one", setting_text(experiment, "recompute_granularity")),
                   "uniform or block", "or recompute_layer_ids");
    return;
  }
  const auto count = experiment.get_optional_int("recompute_num_layers");
  if (!count) {
    context.report("recompute_num_layers", fmt::format("{} needs it", setting_text(experiment, "recompute_method")),
                   "integer >= 1");
  } else if (*count == 0 && experiment.get_string("recompute_method") == "uniform") {
    context.report("recompute_num_layers", "a group of no layers cannot be run again", "integer >= 1");
  } else if (*count > experiment.get_int("num_layers")) {
    context.report("recompute_num_layers", fmt::format("exceeds {}", setting_text(experiment, "num_layers")),
                   fmt::format("at most {}", experiment.get_int("num_layers")));
  }
}

void recompute_selective(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::string kind = experiment.get_optional_string("recompute_granularity").value_or("");
  if (kind != "selective") return;
  context.demand("recompute_granularity", {{"recompute_method", {}}, {"recompute_num_layers", {}}});
}

void recompute_modules(RuleContext& context) {
  constexpr std::array<std::string_view, 7> kModules = {"core_attn", "moe_act", "layernorm",     "mla_up_proj",
                                                        "mlp",       "moe",     "shared_experts"};
  const Experiment& experiment = context.experiment();
  for (const std::string& name : experiment.get_strings("recompute_modules")) {
    if (std::find(kModules.begin(), kModules.end(), name) == kModules.end()) {
      const bool is_list = name.find(',') != std::string::npos;
      const auto nearest = is_list ? std::nullopt : nearest_name(name, kModules);
      context.report("recompute_modules", fmt::format("'{}' is not a part of a layer", name),
                     "some of core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, shared_experts",
                     is_list   ? fmt::format("a list stands in brackets: [{}]", name)
                     : nearest ? fmt::format("did you mean '{}'?", *nearest)
                               : "");
    } else if (name == "mla_up_proj" && !context.is_on("multi_latent_attention")) {
      context.report("recompute_modules", "mla_up_proj belongs to latent attention, which is off",
                     "parts that the model has");
    } else if ((name.starts_with("moe") || name == "shared_experts") && context.is_null("num_experts")) {
      context.report("recompute_modules", fmt::format("{} belongs to a model with experts", name),
                     "parts that the model has");
    }
  }
}

void saved_activations(RuleContext& context) {
  constexpr std::string_view kKey = "distribute_saved_activations";
  const Experiment& experiment = context.experiment();
  if (!context.is_on(kKey)) return;
  if (context.integer("tensor_model_parallel_size") == 1) {
    context.report(kKey, "there is one tensor rank to divide them over", "false");
  } else if (context.is_on("sequence_parallel")) {
    context.report(
        kKey,
        fmt::format("sequence parallelism divides them already: {}", setting_text(experiment, "sequence_parallel")),
        "false");
  } else if (experiment.get_optional_string("recompute_granularity").value_or("") != "full") {
    context.report(kKey, "only full recomputation keeps what could be divided", "false, or recompute_granularity full");
  }
}

constexpr Rule kRules[] = {
    {"recompute_layers", "recompute_layer_ids name layers of the model, depths after the layers, each once.",
     recompute_layers},
    {"recompute_layers_alone", "recompute_layer_ids stand with full granularity and without a method.",
     recompute_layers_alone},
    {"recompute_shorthand", "recompute_activations is short for the selective kind.", recompute_shorthand},
    {"recompute_full", "Full recomputation has a method and a number of layers, of which the model has as many.",
     recompute_full},
    {"recompute_selective", "Selective recomputation has neither method nor number of layers.", recompute_selective},
    {"recompute_modules", "recompute_modules are parts that the model has.", recompute_modules},
    {"saved_activations", "Saved activations are divided over tensor ranks without sequence parallelism.",
     saved_activations},
};

}  // namespace

std::span<const Rule> recompute_rules() {
  return kRules;
}

}  // namespace primus::config
