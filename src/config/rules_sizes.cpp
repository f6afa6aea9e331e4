// Rules: sizes that no machine has. Everything else computes with products of sizes and may rely on them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/text.hpp"
#include "config/rules.hpp"

namespace primus::config {
namespace {

constexpr std::int64_t kMaxProcesses = 10'000'000;

struct Bound {
  std::string_view key;
  std::int64_t highest;
};

constexpr Bound kBounds[] = {
    {"tensor_model_parallel_size", kMaxProcesses},
    {"pipeline_model_parallel_size", kMaxProcesses},
    {"context_parallel_size", kMaxProcesses},
    {"expert_model_parallel_size", kMaxProcesses},
    {"expert_tensor_parallel_size", kMaxProcesses},
    {"num_virtual_stages_per_pipeline_rank", 100'000},
    {"num_layers_per_virtual_pipeline_stage", 100'000},
    {"virtual_pipeline_model_parallel_size", 100'000},
    {"decoder_first_pipeline_num_layers", 100'000},
    {"decoder_last_pipeline_num_layers", 100'000},
    {"microbatch_group_size_per_vp_stage", 100'000'000},
    {"num_layers", 100'000},
    {"mtp_num_layers", 10'000},
    {"hidden_size", 10'000'000},
    {"ffn_hidden_size", 100'000'000},
    {"num_attention_heads", 1'000'000},
    {"num_query_groups", 1'000'000},
    {"kv_channels", 1'000'000},
    {"q_lora_rank", 1'000'000},
    {"kv_lora_rank", 1'000'000},
    {"qk_head_dim", 1'000'000},
    {"qk_pos_emb_head_dim", 1'000'000},
    {"v_head_dim", 1'000'000},
    {"num_experts", 1'000'000},
    {"moe_ffn_hidden_size", 100'000'000},
    {"moe_shared_expert_intermediate_size", 100'000'000},
    {"hc_mult", 1000},
    {"hc_sinkhorn_iters", 10'000},
    {"mhc_num_residual_streams", 1000},
    {"mhc_sinkhorn_iterations", 10'000},
    {"vocab_size", 1'000'000'000},
    {"make_vocab_size_divisible_by", 1'000'000},
    {"seq_length", 1'000'000'000},
    {"train_samples", 1'000'000'000'000'000},
};

bool is_beyond(const Experiment& experiment, const Bound& bound) {
  return experiment.get_optional_int(bound.key).value_or(0) > bound.highest;
}

bool has_size_beyond(const Experiment& experiment) {
  return std::any_of(std::begin(kBounds), std::end(kBounds),
                     [&](const Bound& bound) { return is_beyond(experiment, bound); });
}

void sizes(RuleContext& context) {
  for (const Bound& bound : kBounds) {
    if (!is_beyond(context.experiment(), bound)) continue;
    context.report(bound.key, "larger than any machine could hold",
                   fmt::format("at most {}", format_count(bound.highest)));
  }
}

void processes(RuleContext& context) {
  // A single size that is too large was told by itself.
  if (has_plausible_sizes(context.experiment()) || has_size_beyond(context.experiment())) return;
  context.report(
      "tensor_model_parallel_size",
      {.message = "the parallel sizes together ask for too many processes",
       .expected = fmt::format("TP x CP x PP and EP x ETP x PP of at most {} each", format_count(kMaxProcesses))});
}

// An estimate in floating point, so that whoever counts exactly cannot overflow.
void parameters(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (has_size_beyond(experiment)) return;
  const auto size = [&](std::string_view key) {
    return static_cast<double>(experiment.get_optional_int(key).value_or(0));
  };
  const double hidden = size("hidden_size");
  const double ffn = std::max({size("ffn_hidden_size"), size("moe_ffn_hidden_size"), 4.0 * hidden});
  const double heads = std::max(size("num_attention_heads"), size("num_query_groups"));
  const double head = size("kv_channels") + size("qk_head_dim") + size("qk_pos_emb_head_dim") + size("v_head_dim");
  const double widths = 3.0 * ffn * (1.0 + size("num_experts")) + 3.0 * size("moe_shared_expert_intermediate_size") +
                        4.0 * heads * head + size("q_lora_rank") + size("kv_lora_rank");
  const double streams =
      experiment.get_bool("enable_mhc_connections") ? size("mhc_num_residual_streams") : size("hc_mult");
  const double connections = streams > 1.0 ? 2.0 * streams * streams * (2.0 + streams) : 0.0;
  const double ranks = heads * head * (size("q_lora_rank") + 2.0 * size("kv_lora_rank"));
  const double layers = size("num_layers") + size("mtp_num_layers");
  const double total = layers * (hidden * (widths + connections) + ranks) + 2.0 * hidden * size("vocab_size");
  constexpr double kMost = 1e17;  // six FLOPs a parameter and token still fit 63 bits
  if (total <= kMost) return;
  context.report("hidden_size", {.message = "the sizes of the model together are larger than any machine could hold",
                                 .expected = "fewer than 1e17 parameters",
                                 .found = fmt::format("about {:.0e}", total)});
}

constexpr Rule kRules[] = {
    {"sizes", "No size is larger than any machine could hold.", sizes},
    {"processes", "The parallel sizes together ask for at most ten million processes.", processes},
    {"parameters", "The model has fewer than 1e17 parameters.", parameters},
};

}  // namespace

bool has_plausible_sizes(const Experiment& experiment) {
  const ParallelSizes parallel = sizes_of(experiment);
  double dense = 1.0;
  double sparse = 1.0;
  for (const std::int64_t size : {parallel.tensor, parallel.context, parallel.pipeline}) {
    dense *= static_cast<double>(size);
  }
  for (const std::int64_t size : {parallel.expert, parallel.expert_tensor, parallel.pipeline}) {
    sparse *= static_cast<double>(size);
  }
  return !has_size_beyond(experiment) && dense <= static_cast<double>(kMaxProcesses) &&
         sparse <= static_cast<double>(kMaxProcesses);
}

std::span<const Rule> size_rules() {
  return kRules;
}

}  // namespace primus::config
