// Rows: parts of particular architectures. Linear attention, DeepSeek-V4, Kimi K3, state-space and mixed layers.
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config::rows {
namespace {

constexpr std::string_view kByShape = "kernels are chosen by shape and device";
constexpr std::string_view kNoPython = "there is no Python runtime";

constexpr Key kLinearAttention[] = {
  works_for("experimental_attention_variant", kText, "null", "gdn|gdn2|dsa|gated_delta_net|kda", "null|gdn|gated_delta_net|dsa|kda", "linear attention of other kinds", "Kind of attention: sparse (dsa) in every layer, or linear in those that linear_attention_freq picks.", "on the CPU"),
  works("linear_attention_freq", kLayers, "null", "", "Layers with linear attention: all but each n-th, or one 0 or 1 a layer (1: linear).", "on the CPU"),
  works("linear_conv_kernel_dim", kInt, "4", ">=1", "Length of the short convolution in front of linear attention."),
  works("linear_key_head_dim", kInt, "128", ">=1", "Size of a key head of linear attention."),
  works("linear_value_head_dim", kInt, "128", ">=1", "Size of a value head of linear attention."),
  works("linear_num_key_heads", kInt, "16", ">=1", "Query and key heads of linear attention."),
  works("linear_num_value_heads", kInt, "32", ">=1", "Value heads of linear attention."),
  planned_detail("gdp_num_householder", kInt, "3", ">=1", "Reflections of one step of the generalised delta rule."),
  planned_detail("gdp_num_chunk_states_to_recompute", kInt, "2", ">=0", "Chunk states that the generalised delta rule computes again in backward."),
  no_effect("gdp_cutedsl_kernel", kBool, "false", "", "Which kernel runs the generalised delta rule.", kByShape),
  works("dsa_indexer_n_heads", kInt, "null", ">=1", "Sparse attention: heads of the indexer."),
  works("dsa_indexer_head_dim", kInt, "null", ">=1", "Sparse attention: size of an indexer head."),
  works("dsa_indexer_topk", kInt, "null", ">=1", "Sparse attention: keys that the indexer picks for a query."),
  works("dsa_indexer_topk_freq", kInt, "1", ">=1", "Sparse attention: layers that share one choice of keys."),
  works("dsa_indexer_skip_topk_offset", kInt, "0", ">=0", "Sparse attention: layers up to this one, from 1, choose keys; with its choice the sharing begins."),
  works("dsa_indexer_loss_coeff", kReal, "null", ">=0", "Sparse attention: weight of the loss that teaches the indexer."),
  works("dsa_indexer_use_sparse_loss", kBool, "false", "", "Sparse attention: that loss looks at the picked keys only."),
  works("dsa_indexer_k_norm_epsilon", kReal, "null", ">0", "Sparse attention: epsilon of the indexer's key norm.", "null: that of the other norms"),
  no_effect("dsa_indexer_k_norm_fp32", kBool, "false", "", "Sparse attention: the indexer's key norm in fp32.", "norms are always taken in fp32"),
  works("dsa_indexer_rope_interleaved", kBool, "false", "", "Sparse attention: the indexer rotates neighbouring pairs."),
  works("dsa_indexer_rotate_activation", kBool, "true", "", "Sparse attention: the indexer's inputs go through a Hadamard rotation."),
  works("dsa_indexer_scoring_relu", kBool, "true", "", "Sparse attention: negative indexer scores count as zero."),
  no_effect("dsa_kernel_backend", kText, "none", "none|tilelang|cudnn", "Which kernels run sparse attention.", kByShape),
};

constexpr Key kDeepSeekV4[] = {
  planned("hybrid_attention_enabled", kBool, "false", "", "DeepSeek-V4: layers differ in how their keys are compressed.", "DeepSeek-V4's attention"),
  planned("compress_ratios", kIntList, "null", "", "DeepSeek-V4: keys put into one, a layer and a prediction depth; 0 keeps every key.", "DeepSeek-V4's attention"),
  planned_detail("compress_rope_theta", kReal, "null", ">0", "DeepSeek-V4: rotary base of layers with compressed keys."),
  planned("attn_sliding_window", kInt, "0", ">=0", "DeepSeek-V4: keys that every layer sees uncompressed; 0: no window.", "DeepSeek-V4's attention"),
  planned("attn_sink", kBool, "false", "", "DeepSeek-V4: a learnt extra logit in every attention softmax.", "attention sinks"),
  planned_detail("index_topk", kInt, "null", ">=1", "DeepSeek-V4: compressed keys that the indexer picks for a query."),
  planned_detail("index_head_dim", kInt, "null", ">=1", "DeepSeek-V4: size of an indexer head."),
  planned_detail("index_n_heads", kInt, "null", ">=1", "DeepSeek-V4: heads of the indexer."),
  planned("o_groups", kInt, "null", ">=1", "DeepSeek-V4: groups of heads that the output projection treats apart.", "low-rank attention output"),
  planned_detail("o_lora_rank", kInt, "null", ">=1", "DeepSeek-V4: rank of each group's output projection."),
  planned("num_hash_layers", kInt, "0", ">=0", "DeepSeek-V4: first layers, which route by the token's id.", "routing by token id"),
  works("hc_mult", kInt, "1", ">=1", "DeepSeek-V4: residual streams that hyper-connections mix.", "on the CPU"),
  works("hc_use_sinkhorn", kBool, "false", "", "DeepSeek-V4: mixing matrices are made doubly stochastic.", "false: their rows alone add up to one"),
  works("hc_sinkhorn_iters", kInt, "20", ">=1", "DeepSeek-V4: steps of Sinkhorn's iteration."),
  works("hc_eps", kReal, "1e-06", ">0", "DeepSeek-V4: added to that iteration's sums, and to the weights of reading."),
  works("mtp_use_separate_hc_head", kBool, "false", "", "DeepSeek-V4: the prediction depth mixes its streams with weights of its own.", "beside streams and prediction depths it must be true"),
  works("swiglu_limit", kReal, "null", ">0", "Bound on both halves of SwiGLU, as activation_func_clamp_value.", "on the CPU"),
  no_effect("v4_grouped_experts_support_clamped_swiglu", kBool, "false", "", "DeepSeek-V4: the bound holds in routed experts too.", "it holds wherever SwiGLU is"),
  planned_detail("v4_indexer_distill_loss_coeff", kReal, "0.0", ">=0", "DeepSeek-V4: weight of the loss that teaches the indexer."),
  planned_speed("use_v4_fp8_indexer", kBool, "false", "", "DeepSeek-V4: indexer scores in fp8."),
  no_effect("use_v4_attention_backend", kText, "null", "", "DeepSeek-V4: which attention kernel runs.", kByShape),
  no_effect("use_v4_csa_attention_backend", kText, "null", "", "DeepSeek-V4: which kernel runs attention to picked keys.", kByShape),
  no_effect("use_v4_compiled_sinkhorn", kBool, "false", "", "DeepSeek-V4: compile Sinkhorn's iteration.", kNoPython),
  works("enable_mhc_connections", kBool, "false", "", "Several residual streams with a learnt, bounded mixing.", "on the CPU"),
  works("mhc_num_residual_streams", kInt, "4", ">=1", "How many streams that is."),
  works("mhc_sinkhorn_iterations", kInt, "20", ">=1", "Steps of Sinkhorn's iteration on the mixing matrices."),
  works("mhc_init_gating_factor", kReal, "0.01", "", "First value of the mixing gates."),
  planned_detail("mhc_recompute_layer_num", kInt, "null", ">=1", "Layers of a group whose mixing runs again in backward."),
};

constexpr Key kKimiK3[] = {
  works("mla_use_nope", kBool, "false", "", "Latent attention without positions: what it would rotate stays as it is."),
  works("mla_use_output_gate", kBool, "false", "", "Latent attention with a sigmoid gate on its output, made of the layer's input.", "on the CPU"),
  works("kda_gate_lower_bound", kReal, "null", "", "Delta attention: a decay's logarithm stays above this, by a sigmoid in the place of the softplus.", "below 0"),
  works("kda_chunk_size", kInt, "64", ">=1", "Delta attention: tokens that are taken at a time.", "numbers are the same but for rounding"),
  works("kda_use_full_rank_gate", kBool, "false", "", "Delta attention: the output gate has full rank."),
  no_effect("kda_backend", kText, "null", "", "Which kernel runs delta attention.", kByShape),
  planned("attn_res_block_size", kInt, "null", ">=1", "Layers of a block; residuals attend to the blocks before.", "attention over residuals"),
  works("moe_latent_size", kInt, "null", ">=1", "Routed experts work in a latent space of this width.", "on the CPU; also spelled routed_expert_hidden_size"),
  works("latent_moe_use_norm", kBool, "false", "", "A norm on the experts' sum, before it leaves the latent space."),
  works("activation_situ_beta", kReal, "null", ">0", "Gated unit that flattens out: the gate's half is b·tanh(x/b)·sigmoid(x) with this b.", "on the CPU"),
  works("activation_situ_linear_beta", kReal, "null", ">0", "Gated unit that flattens out: the linear half is b·tanh(x/b) with this b.", "null: as it is"),
  works("moe_router_bias_update_rule", kText, "sign", "sign|quantile", "How expert biases move: by the sign of the imbalance, or to a balancing quantile."),
  works("quantile_balancing_num_bins", kInt, "1024", ">=2", "Quantile rule: bins of the histogram of scores."),
  works("quantile_balancing_margin_min", kReal, "-1.0", "", "Quantile rule: lower end of the histogram."),
  works("quantile_balancing_margin_max", kReal, "1.0", "", "Quantile rule: upper end of the histogram."),
  works("quantile_balancing_center_bias", kBool, "true", "", "Quantile rule: biases are kept around zero."),
  works("quantile_balancing_update_interval", kInt, "1", ">=1", "Quantile rule: steps between updates."),
  works("quantile_balancing_ema_decay", kReal, "null", "0..<1", "Quantile rule: decay of the histogram's mean over steps."),
  works("moe_router_quantile_balancing_ema", kReal, "0.0", "0..1", "Quantile balancing: decay of the mean over steps."),
  works("mtp_layer_type", kText, "null", "mirror_last", "Kind of the prediction depth's layer.", "always that of the last layer"),
};

constexpr Key kMixedLayers[] = {
  planned("hybrid_layer_pattern", kText, "null", "", "Layer kinds of a mixed model as one text, such as M*M-.", "layers other than attention and MLP"),
  planned("hybrid_override_pattern", kText, "null", "", "The same, old spelling.", "layers other than attention and MLP"),
  planned("is_hybrid_model", kBool, "false", "", "The model mixes state-space and attention layers.", "layers other than attention and MLP"),
  planned("mtp_hybrid_override_pattern", kText, "null", "", "Layer kinds of the prediction depths of a mixed model.", "layers other than attention and MLP"),
  planned_detail("mamba_state_dim", kInt, "128", ">=1", "State-space layers: size of the state."),
  planned_detail("mamba_head_dim", kInt, "64", ">=1", "State-space layers: size of a head."),
  planned_detail("mamba_num_groups", kInt, "8", ">=1", "State-space layers: groups of heads."),
  planned_detail("mamba_num_heads", kInt, "null", ">=1", "State-space layers: heads."),
  planned_detail("mamba_training_ssm_states_dtype", kText, "null", "fp32|bf16", "State-space layers: number type of the states in training."),
  no_effect("use_mamba_mem_eff_path", kBool, "true", "", "State-space layers: the fused kernel.", kByShape),
  planned("heterogeneous_layers_config_path", kText, "null", "", "File that describes every layer apart.", "layers that differ from block to block"),
  planned("heterogeneous_layers_config_encoded_json", kText, "null", "", "The same as text.", "layers that differ from block to block"),
};

}  // namespace

std::span<const Key> linear_attention_keys() { return kLinearAttention; }
std::span<const Key> deepseek_v4_keys() { return kDeepSeekV4; }
std::span<const Key> kimi_k3_keys() { return kKimiK3; }
std::span<const Key> mixed_layer_keys() { return kMixedLayers; }

}  // namespace primus::config::rows
