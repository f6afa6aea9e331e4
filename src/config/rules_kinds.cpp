// Rules: what a kind of model is, before others look at its parts.
#include "config/rules.hpp"

namespace primus::config {
namespace {

// Its presets say sizes and variants, and leave the rest to the kind.
void kimi_k3(RuleContext& context) {
  if (context.experiment().get_string("model_type") != "kimi_k3") return;
  context.demand("model_type", {{"multi_latent_attention", {true}},
                                {"qk_layernorm", {true}},
                                {"experimental_attention_variant", {std::string("kda")}}});
}

constexpr Rule kRules[] = {
    {"kimi_k3", "Kimi K3's layers are delta attention, and latent attention with norms.", kimi_k3},
};

}  // namespace

std::span<const Rule> kind_rules() {
  return kRules;
}

}  // namespace primus::config
