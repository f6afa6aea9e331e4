// Rows: attention, activation and scaling beyond the common transformer layer; positions.
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config::rows {
namespace {

constexpr std::string_view kAlwaysFused = "the operations that can be fused always are";
constexpr std::string_view kByShape = "kernels are chosen by shape and device";
constexpr std::string_view kOneImplementation = "there is one implementation";
constexpr std::string_view kNoServing = "nothing is served here";
constexpr std::string_view kNoEncoder = "models here are decoders";

constexpr Key kAttention[] = {
  works("attention_output_gate", kBool, "false", "", "A sigmoid gate on the attention output.", "each head's gate stands behind its query in the fused projection"),
  works("softmax_type", kText, "vanilla", "vanilla|off-by-one|learnable", "Extra logit in the attention softmax: none, zero, or one learnt a head."),
  works("window_size", kIntList, "null", "", "Keys before and after a query that it sees besides its own, as in 127,0.", "-1: all; attention is causal, so the second number is 0 or -1"),
  works("window_attn_skip_freq", kLayers, "null", "", "Layers without the window: each n-th, or one 0 or 1 a layer (1: with it)."),
  works("no_rope_freq", kLayers, "null", "", "Layers that are not rotated: each n-th, or one 0 or 1 a layer (1: not rotated)."),
  works("qk_clip", kBool, "false", "", "Weights of queries and keys shrink after a step in which attention logits grew too large.", "on the CPU; head by head, or by groups that share a key"),
  works("qk_clip_threshold", kReal, "100.0", ">0", "Largest attention logit that is left alone."),
  works("qk_clip_alpha", kReal, "0.5", "0..1", "Share of the shrinking that the queries take."),
  works("activation_func_clamp_value", kReal, "null", ">0", "Gated unit: bound on the gate from above and on the other half on both sides."),
  works("glu_linear_offset", kReal, "0.0", "", "Added to the linear half of the gated unit."),
  no_effect("use_fused_weighted_squared_relu", kBool, "false", "", "Squared ReLU and routing probability in one kernel.", kAlwaysFused),
  no_effect("flash_attention_version", kInt, "null", "2..4", "Which release of an attention library runs.", kByShape),
  no_effect("use_kitchen_attention", kBool, "false", "", "Attention of another library.", kOneImplementation),
  no_effect("kitchen_attention_backend", kText, "sdpa", "sdpa|fa", "Kernel of that library.", kOneImplementation),
  no_effect("mla_down_proj_fusion", kBool, "false", "", "Both latent down projections in one matrix product.", kAlwaysFused),
  no_effect("cache_mla_latents", kBool, "false", "", "Keep latent vectors between generated tokens.", kNoServing),
  no_effect("fused_residual_rmsnorm", kBool, "false", "", "Residual addition and norm in one kernel.", kAlwaysFused),
  works("use_mup", kBool, "false", "", "Widths scale initial weights and learning rates, so that a small model's settings carry over.", "on the CPU (docs/numerics.md)"),
  works("mup_base_hidden_size", kInt, "null", ">=1", "Width at which those scales are one.", "null: hidden_size"),
  works("mup_base_head_dim", kReal, "null", ">0", "The softmax scale is sqrt(this) / head size ^ mup_attn_scale_power.", "null: 1"),
  no_effect("mup_width_mult", kReal, "1.0", ">0", "Width relative to that base.", "it follows from hidden_size and mup_base_hidden_size"),
  works("mup_attn_scale_power", kReal, "1.0", "", "Power of the head size in the softmax scale.", "0.5: as without use_mup"),
  works("mup_embedding_mult", kReal, "1.0", ">0", "Factor on the embedding's output."),
  works("mup_output_mult", kReal, "1.0", ">0", "Factor on the output logits.", "1: 1 / relative width"),
  works("embedding_init_method_std", kReal, "null", ">0", "Standard deviation of the embedding's initial weights, when it is another one."),
  works("mtp_detach_heads", kBool, "false", "", "Prediction depths send no gradient into decoder, embedding and output layer.", "one gradient norm clips all (docs/numerics.md)"),
  works("mtp_use_repeated_layer", kBool, "false", "", "All prediction depths share one layer, its norms and projection."),
  no_effect("mtp_standalone", kBool, "false", "", "Prediction depths have a pipeline stage of their own.", "pipeline_model_parallel_layout says where they lie"),
  works("mtp_hsm", kBool, "false", "", "In training each token of a prediction depth reads one of the parts before, drawn at random.", "needs two depths"),
  no_effect("relative_attention_num_buckets", kInt, "32", ">=1", "Relative positions: buckets of distance.", kNoEncoder),
  no_effect("relative_attention_max_distance", kInt, "128", ">=1", "Relative positions: longest distance that counts.", kNoEncoder),
  no_effect("mrope_section", kIntList, "null", "", "Parts of a head that rotate by time, height and width.", "in text all three are the position"),
  works("yarn_correction_range_round_to_int", kBool, "true", "", "YaRN: the range of scaled frequencies ends at whole dimensions."),
};

}  // namespace

std::span<const Key> attention_keys() { return kAttention; }

}  // namespace primus::config::rows
