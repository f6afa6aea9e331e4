// Rows: initialisation, dropout, fusions, number types.
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config::rows {
namespace {

constexpr std::string_view kAlwaysFused = "the operations that can be fused always are";

constexpr Key kInitAndFusion[] = {
  works("init_method_std", kReal, "0.02", ">0", "Standard deviation of the initial weights."),
  works("hidden_dropout", kReal, "0.1", "0..<1", "Dropout on the embedding and on what attention and MLP add to the residual stream.", "on the CPU; no mask is kept: numbers are keyed by the elements' places"),
  works("attention_dropout", kReal, "0.1", "0..<1", "Dropout on the attention probabilities.", "on the CPU; no mask is kept: numbers are keyed by the elements' places"),
  works("cross_entropy_loss_fusion", kBool, "false", "", "Loss computed in chunks, without holding all logits."),
  no_effect("cross_entropy_fusion_impl", kText, "native", "native|te", "Which fused loss.", "both names mean the one chunked loss here"),
  works("init_method_xavier_uniform", kBool, "false", "", "Uniform initial weights, bounded by sqrt(6 / (inputs + outputs))."),
  no_effect("apply_query_key_layer_scaling", kBool, "false", "", "Attention logits divided by the layer number, and multiplied again inside the softmax.", "it keeps half-precision logits small; they are never held in half precision"),
  no_effect("perform_initialization", kBool, "true", "", "Draw initial weights.", "a weight is always drawn or loaded"),
  no_effect("attention_softmax_in_fp32", kBool, "false", "", "Attention softmax in fp32.", "it is always at least fp32"),
  works("bias_gelu_fusion", kBool, "true", "", "Beside add_bias_linear and plain GELU: its tanh form instead of the exact one."),
  no_effect("bias_swiglu_fusion", kBool, "true", "", "Bias and SwiGLU in one kernel.", kAlwaysFused),
  no_effect("bias_dropout_fusion", kBool, "true", "", "Bias, dropout and residual in one kernel.", kAlwaysFused),
  no_effect("masked_softmax_fusion", kBool, "true", "", "Scale, mask and softmax in one kernel.", kAlwaysFused),
  no_effect("apply_rope_fusion", kBool, "true", "", "Rotation in one kernel.", kAlwaysFused),
  no_effect("gradient_accumulation_fusion", kBool, "true", "", "Weight gradients added up inside the matrix product.", "they always go straight into the fp32 main gradients"),
  no_effect("no_persist_layer_norm", kBool, "false", "", "Do without the persistent norm kernel.", "kernels are chosen by shape and device"),
  no_effect("clone_scatter_output_in_embedding", kBool, "true", "", "Free the embedding's whole output early.", "activations are freed as soon as nothing reads them"),
  no_effect("use_te_activation_func", kBool, "false", "", "Activation kernels of another library.", "there is one implementation"),
  no_effect("use_cpu_initialization", kBool, "null", "", "Draw initial weights on the CPU.", "every device draws the same numbers"),
};

constexpr Key kPrecision[] = {
  works("bf16", kBool, "true", "", "Weights and activations in bfloat16, with fp32 master weights.", "false: fp32"),
  works("fp16", kBool, "false", "", "Weights and activations in half precision, with fp32 master weights and a scaled loss.", "on the CPU"),
  works("grad_reduce_in_bf16", kBool, "false", "", "Gradients held and reduced in bfloat16."),
  works("loss_scale", kReal, "null", ">0", "Fixed loss scale of half precision."),
  works("initial_loss_scale", kReal, "4294967296", ">0", "First loss scale of half precision."),
  works("min_loss_scale", kReal, "1.0", ">0", "Smallest loss scale of half precision."),
  works("loss_scale_window", kReal, "1000", ">0", "Steps after which the loss scale grows."),
  works("hysteresis", kInt, "2", ">=1", "Overflows before the loss scale shrinks."),
  no_effect("fp16_lm_cross_entropy", kBool, "false", "", "Loss in half precision.", "the loss is summed in fp32 whatever the logits are"),
  planned_detail("first_last_layers_bf16", kBool, "false", "", "First and last layers stay in bfloat16 under fp8."),
  planned_detail("num_layers_at_start_in_bf16", kInt, "1", ">=0", "How many first layers stay in bfloat16."),
  planned_detail("num_layers_at_end_in_bf16", kInt, "1", ">=0", "How many last layers stay in bfloat16."),
  no_effect("accumulate_allreduce_grads_in_fp32", kBool, "false", "", "Gradients added up and reduced in fp32.", "main gradients are fp32"),
  no_effect("te_rng_tracker", kBool, "false", "", "Random state kept by another library.", "random numbers are keyed by seed, name and index"),
  no_effect("inference_rng_tracker", kBool, "false", "", "Random state for inference.", "random numbers are keyed by seed, name and index"),
  works("logit_dtype", kText, "null", "bf16|fp32", "Number type of the output logits.", "null: the activations'; fp32 beside bf16 or fp16: on the CPU"),
  no_effect("disable_bf16_reduced_precision_matmul", kBool, "false", "", "Whole sums in fp32 inside bf16 products.", "they always are"),
  no_effect("te_precision_config_file", kText, "null", "", "File of another library's number types.", "the keys here say the number types"),
};

constexpr Key kLowPrecision[] = {
  planned("fp8", kText, "null", "e4m3|hybrid", "Matrix products in fp8.", "fp8 training"),
  planned_detail("fp8_recipe", kText, "delayed", "tensorwise|delayed|mxfp8|blockwise|custom", "How fp8 scales are chosen."),
  planned_detail("fp8_margin", kInt, "0", "", "Powers of two kept free above the largest value."),
  planned_detail("fp8_interval", kInt, "1", ">=1", "Steps between new fp8 scales."),
  planned_detail("fp8_amax_history_len", kInt, "1024", ">=1", "Steps of remembered maxima."),
  planned_detail("fp8_amax_compute_algo", kText, "max", "most_recent|max", "How a scale follows from them."),
  planned_detail("fp8_wgrad", kBool, "true", "", "Weight gradients in fp8 too."),
  planned("fp8_param_gather", kBool, "false", "", "Parameters held and gathered in fp8."),
  planned_detail("no_fp8_weight_transpose_cache", kBool, "false", "", "Transpose fp8 weights anew each time."),
  planned("fp4", kText, "null", "e2m1", "Matrix products in fp4.", "fp4 training"),
  planned_detail("fp4_recipe", kText, "nvfp4", "nvfp4|mxfp4|custom", "How fp4 scales are chosen."),
  planned_detail("fp4_use_native_te_autocast", kBool, "false", "", "fp4 products through another library's own casts."),
  planned("fp4_param", kBool, "false", "", "Parameters held in fp4."),
  planned("weight_deosc", kBool, "false", "", "Damp weights that swing between two fp4 values."),
  planned_detail("weight_deosc_period", kInt, "200", ">=1", "Steps between checks for swinging weights."),
  planned_detail("weight_deosc_ratio", kReal, "4.0", ">0", "Swing that counts."),
  planned_detail("weight_deosc_start_step", kInt, "0", ">=0", "First step with damping."),
  planned_detail("weight_deosc_log_freq", kInt, "0", ">=0", "Steps between reports on damping."),
  planned_detail("fp8_output_proj", kBool, "false", "", "Output layer in fp8 too."),
  planned_detail("fp8_quantizer_factory", kText, "null", "", "Python function that makes fp8 scales."),
  planned_detail("fp4_quantizer_factory", kText, "null", "", "Python function that makes fp4 scales."),
  planned_detail("reuse_grad_buf_for_mxfp8_param_ag", kBool, "false", "", "Gather fp8 parameters in the gradients' buffer."),
};

}  // namespace

std::span<const Key> init_and_fusion_keys() { return kInitAndFusion; }
std::span<const Key> precision_keys() { return kPrecision; }
std::span<const Key> low_precision_keys() { return kLowPrecision; }

}  // namespace primus::config::rows
