// Rules: experts and routing.
#include <fmt/format.h>

#include <algorithm>

#include "config/layer_pattern.hpp"
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
  if (!experts || !groups) return;
  if (*experts % *groups != 0) {
    context.report("moe_router_num_groups", fmt::format("does not divide {}", setting_text(experiment, "num_experts")),
                   "a divisor");
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
                   fmt::format("exceeds the {} experts of {} groups", *experts / *groups * *chosen, *chosen),
                   fmt::format("at most {}", *experts / *groups * *chosen));
  }
}

// The pattern for a model of another depth that begins the same way: what a user who changed num_layers means.
std::string shorter_pattern(const std::vector<std::int64_t>& items, std::int64_t num_layers) {
  const auto dense = std::find(items.begin(), items.end(), 1) - items.begin();
  const std::int64_t first = std::min<std::int64_t>(dense, num_layers);
  return fmt::format("([0]*{}+[1]*{})", first, num_layers - first);
}

std::vector<std::int64_t> items_of(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value.data)) return parse_list_expression(*text).items;
  std::vector<std::int64_t> items;
  if (const auto* list = std::get_if<Value::List>(&value.data)) {
    for (const Value& item : *list) items.push_back(std::get<std::int64_t>(item.data));
  }
  return items;
}

void layer_pattern(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.is_null("num_experts")) return;
  const Value& frequency = experiment.setting("moe_layer_freq").value;
  if (std::holds_alternative<std::int64_t>(frequency.data)) return;
  const std::vector<std::int64_t> items = items_of(frequency);
  const std::int64_t num_layers = experiment.get_int("num_layers");
  if (std::any_of(items.begin(), items.end(), [](std::int64_t item) { return item != 0 && item != 1; })) {
    context.report("moe_layer_freq", "holds something else than 0 and 1", "0 for a dense layer, 1 for a MoE layer");
  } else if (static_cast<std::int64_t>(items.size()) != num_layers) {
    context.report(
        "moe_layer_freq", fmt::format("is for {} layers, but {}", items.size(), setting_text(experiment, "num_layers")),
        fmt::format("{} items", num_layers), fmt::format("for instance {}", shorter_pattern(items, num_layers)));
  }
}

constexpr Rule kRules[] = {
    {"top_k", "A token goes to at most all experts.", top_k},
    {"expert_groups", "Groups divide the experts, and the chosen groups hold enough of them.", expert_groups},
    {"layer_pattern", "moe_layer_freq has one 0 or 1 a layer.", layer_pattern},
};

}  // namespace

std::span<const Rule> moe_rules() {
  return kRules;
}

}  // namespace primus::config
