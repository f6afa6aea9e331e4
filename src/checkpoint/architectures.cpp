#include "checkpoint/architectures.hpp"

#include <array>

#include "base/error.hpp"
#include "checkpoint/architecture_fields.hpp"

namespace primus::checkpoint {
namespace {

constexpr std::array<ArchitectureRow, 12> kRows = {{
    {Architecture::kLlama, "llama", "LlamaForCausalLM", read_llama, write_llama},
    {Architecture::kMixtral, "mixtral", "MixtralForCausalLM", read_mixtral, write_mixtral},
    {Architecture::kQwen3Moe, "qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe, write_qwen3_moe},
    {Architecture::kDeepseekV2, "deepseek_v2", "DeepseekV2ForCausalLM", read_deepseek_v2, write_deepseek_v2},
    {Architecture::kDeepseekV3, "deepseek_v3", "DeepseekV3ForCausalLM", read_deepseek_v3, write_deepseek_v3},
    {Architecture::kDeepseekV32, "deepseek_v32", "DeepseekV32ForCausalLM", read_deepseek_v32, write_deepseek_v32},
    {Architecture::kGlmMoeDsa, "glm_moe_dsa", "GlmMoeDsaForCausalLM", read_glm_moe_dsa, write_glm_moe_dsa},
    {Architecture::kGptOss, "gpt_oss", "GptOssForCausalLM", read_gpt_oss, write_gpt_oss},
    {Architecture::kLfm2, "lfm2", "Lfm2ForCausalLM", read_lfm2, write_lfm2},
    {Architecture::kLfm2Moe, "lfm2_moe", "Lfm2MoeForCausalLM", read_lfm2_moe, write_lfm2_moe},
    {Architecture::kQwen3Next, "qwen3_next", "Qwen3NextForCausalLM", read_qwen3_next, write_qwen3_next},
    {Architecture::kKimiLinear, "kimi_linear", "KimiLinearForCausalLM", read_kimi_linear, write_kimi_linear},
}};

constexpr std::array<std::string_view, 43> kNeutral = {
    "multi_latent_attention",
    "mla_use_nope",
    "mla_use_output_gate",
    "qk_layernorm",
    "qk_l2_norm",
    "qk_clip",
    "add_bias_linear",
    "add_qkv_bias",
    "swiglu",
    "quick_geglu",
    "glu_linear_offset",
    "activation_func_clamp_value",
    "activation_situ_beta",
    "swiglu_limit",
    "use_sink_attention",
    "sink_sliding_window",
    "softmax_type",
    "window_size",
    "attn_sliding_window",
    "attn_logit_softcapping",
    "router_logit_softcapping",
    "final_logit_softcapping",
    "attention_output_gate",
    "no_rope_freq",
    "rotary_interleaved",
    "rotary_percent",
    "use_rope_scaling",
    "yarn_correction_range_round_to_int",
    "apply_layernorm_1p",
    "apply_residual_connection_post_layernorm",
    "experimental_attention_variant",
    "lfm_layer_types",
    "hc_mult",
    "enable_mhc_connections",
    "num_experts",
    "moe_router_score_function",
    "moe_router_enable_expert_bias",
    "moe_shared_expert_gate",
    "moe_latent_size",
    "moe_router_num_groups",
    "moe_router_pre_softmax",
    "moe_router_topk_scaling_factor",
    "moe_shared_expert_intermediate_size",
};

}  // namespace

std::span<const ArchitectureRow> architectures() {
  return kRows;
}

const ArchitectureRow& row_of(Architecture architecture) {
  for (const ArchitectureRow& row : kRows) {
    if (row.id == architecture) return row;
  }
  PRIMUS_CHECK(false, "architecture {} has no row", static_cast<int>(architecture));
}

const ArchitectureRow* find_architecture(std::string_view model_type) {
  for (const ArchitectureRow& row : kRows) {
    if (row.model_type == model_type) return &row;
  }
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const ArchitectureRow& row : kRows) names += (names.empty() ? "" : ", ") + std::string(row.model_type);
  return names;
}

std::span<const std::string_view> neutral_keys() {
  return kNeutral;
}

}  // namespace primus::checkpoint
