// Rows: training loop, optimizer, learning rate.
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config::rows {
namespace {

constexpr std::string_view kOnTheHost = "the device moves every parameter: only its state is on the host, in page-locked memory, and nothing is copied";
constexpr std::string_view kByShape = "kernels are chosen by shape and device";

constexpr Key kTraining[] = {
  works("micro_batch_size", kInt, "2", "1..100000000", "Sequences of one forward and backward pass on a rank."),
  works("global_batch_size", kInt, "128", "1..100000000", "Sequences of one optimizer step, over all ranks."),
  works("seq_length", kInt, "4096", ">=1", "Tokens of a training sequence."),
  works("train_iters", kInt, "null", "1..1000000000", "Optimizer steps of the run."),
  works("train_samples", kInt, "null", ">=1", "Sequences of the run, instead of train_iters."),
  works("eval_iters", kInt, "32", ">=0", "Global batches of one evaluation; 0: none."),
  works("eval_interval", kInt, "2000", ">=1", "Steps between evaluations."),
  works("seed", kInt, "1234", "0..4294967295", "Keys every random number of the run."),
  no_effect("calculate_per_token_loss", kBool, "false", "", "Weight every token alike, instead of every micro-batch.", "every token always weighs alike (docs/numerics.md)"),
  works("check_for_nan_in_loss_and_grad", kBool, "true", "", "Stop when loss or gradient is not a number."),
  works("check_for_spiky_loss", kBool, "false", "", "Tell when the loss jumps.", "to ten times the largest of the first 100 steps; with rerun_mode the step is computed again"),
  works("check_for_large_grads", kBool, "false", "", "Tell when the gradient norm jumps.", "as check_for_spiky_loss"),
  works("rampup_batch_size", kIntList, "null", "", "Start, step and samples of a growing global batch.", "with train_samples"),
  works("decrease_batch_size_if_needed", kBool, "false", "", "Shrink the global batch until it divides."),
  planned("data_parallel_random_init", kBool, "false", "", "Other initial weights on every data rank."),
  works("full_validation", kBool, "false", "", "Evaluate on the whole held-out set.", "all of its whole micro-batches; eval_iters says only whether there are evaluations"),
  works("multiple_validation_sets", kBool, "false", "", "Each prefix of valid_data_path is a held-out set of its own, evaluated by itself.", "and their mean"),
  works("skip_train", kBool, "false", "", "Evaluate only."),
  works("iterations_to_skip", kIntList, "null", "", "Steps whose data is passed over.", "counted from 0; the learning rate does not move"),
  works("result_rejected_tracker_filename", kText, "null", "", "File that lists steps whose result was rejected: not finite, or a jump that is watched.", "a line each, in Megatron's form; the next run passes over the data of steps that are listed twice"),
  no_effect("yaml_cfg", kText, "null", "", "A file in Megatron's own layout that takes the place of its whole command line.", "the experiment is the configuration file; the original builds its arguments from it and never opens this one"),
  works_for("trainable", kBool, "true", "", "true", "modules that stand still", "This module is trained."),
  no_effect("batch_size", kInt, "null", ">=1", "Old name of the micro-batch size.", "removed; null means nothing"),
  no_effect("train_sync_interval", kInt, "null", ">=1", "Steps between host and device synchronisations.", "the host is never more than a step ahead"),
  no_effect("test_mode", kBool, "false", "", "Run as a test.", "tests set what they need"),
  no_effect("enable_experimental", kBool, "false", "", "Allow experimental features.", "features are switched on by their own keys"),
  no_effect("onnx_safe", kBool, "null", "", "Work around an exporter.", "nothing is exported to ONNX"),
  no_effect("bert_binary_head", kBool, "true", "", "Second head of BERT.", "models here are decoders"),
  works("step_batch_size_schedule", kText, "null", "", "Global batches from a number of tokens on, as in \"0:64 2B:128\".", "with train_samples; tokens may end in K, M, B or T"),
  works("eval_global_batch_size", kInt, "null", ">=1", "Global batch of an evaluation.", "null: as in training"),
  works("eval_micro_batch_size", kInt, "null", ">=1", "Micro-batch of an evaluation.", "null: as in training"),
  works("start_eval_at_iter", kInt, "null", ">=0", "First step at which an evaluation may come.", "one at the end comes in any case"),
  works("validation_set_names", kTextList, "null", "", "Names of several held-out sets.", "null: their numbers"),
};

constexpr Key kOptimizer[] = {
  works("optimizer", kText, "adam", "adam|sgd|muon|dist_muon|lion|soap|adaptive_muon", "Optimizer; adam is AdamW, sgd has momentum and decay inside the gradient.", "dist_muon is muon on one process; it, adaptive_muon and soap: on the CPU"),
  works("weight_decay", kReal, "0.01", ">=0", "Decoupled weight decay; vectors have none."),
  works("clip_grad", kReal, "1.0", ">=0", "Global gradient norm that is not exceeded; 0: no clipping."),
  works("adam_beta1", kReal, "0.9", "0..<1", "Decay of the first moment."),
  works("adam_beta2", kReal, "0.95", "0..<1", "Decay of the second moment."),
  works("adam_eps", kReal, "1e-08", ">0", "Added to the root of the second moment."),
  works("start_weight_decay", kReal, "null", ">=0", "Weight decay at the start of a ramp."),
  works("end_weight_decay", kReal, "null", ">=0", "Weight decay at the end of a ramp."),
  works("weight_decay_incr_style", kText, "constant", "constant|linear|cosine", "How weight decay changes over the run."),
  no_effect("head_lr_mult", kReal, "1.0", ">0", "Factor on the learning rate of a new head.", "models here have no head beside the output layer; see decoupled_lr"),
  works("sgd_momentum", kReal, "0.9", "0..<1", "Momentum of plain gradient descent."),
  works("muon_extra_scale_factor", kReal, "1.0", ">0", "Muon: factor on the update."),
  works("muon_scale_mode", kText, "spectral", "spectral|unit_rms_norm|shape_scaling", "Muon: how updates are scaled to the matrix.", "by the root of the longer side, of outputs/inputs, of that where above 1"),
  no_effect("muon_fp32_matmul_prec", kText, "medium", "low|medium|high", "Muon: precision of its matrix products.", "they are in fp32"),
  works("muon_num_ns_steps", kInt, "5", ">=1", "Muon: Newton-Schulz steps."),
  no_effect("muon_tp_mode", kText, "blockwise", "blockwise|duplicated|distributed", "Muon: sharded matrices.", "with one process matrices are whole"),
  works("muon_use_nesterov", kBool, "false", "", "Muon: Nesterov momentum."),
  works("muon_split_qkv", kBool, "true", "", "Muon: queries, keys and values apart."),
  works("muon_momentum", kReal, "0.95", "0..<1", "Muon: momentum."),
  works("optimizer_cpu_offload", kBool, "false", "", "Optimizer state on the host.", "a GPU reads and writes it over its bus, with the same bits; on the CPU it is there anyway"),
  works("optimizer_offload_fraction", kReal, "1.0", "0..1", "Part of the state on the host.", "of the layers, spread evenly; 1: embedding and output layer too"),
  no_effect("use_torch_optimizer_for_cpu_offload", kBool, "false", "", "Which optimizer steps on the host.", kOnTheHost),
  no_effect("overlap_cpu_optimizer_d2h_h2d", kBool, "false", "", "Copies beside the host's step.", kOnTheHost),
  no_effect("pin_cpu_grads", kBool, "true", "", "Host gradients in page-locked memory.", kOnTheHost),
  no_effect("pin_cpu_params", kBool, "true", "", "Host parameters in page-locked memory.", kOnTheHost),
  works("use_precision_aware_optimizer", kBool, "false", "", "Number types of gradients, master weights and moments by key.", "docs/numerics.md"),
  works("main_grads_dtype", kText, "fp32", "fp32|bf16", "Number type in which main gradients are held."),
  works("main_params_dtype", kText, "fp32", "fp32|fp16", "Number type of the master weights."),
  works("exp_avg_dtype", kText, "fp32", "fp32|fp16|bf16|fp8", "Number type of the first moment."),
  works("exp_avg_sq_dtype", kText, "fp32", "fp32|fp16|bf16|fp8", "Number type of the second moment.", "fp16 and fp8 hold its root"),
  works("lion_beta1", kReal, "0.95", "0..<1", "Lion: weight of the past in the update."),
  works("lion_beta2", kReal, "0.98", "0..<1", "Lion: decay of the moment."),
  works("muon_coefficient_type", kText, "quintic", "simple|quintic|polar_express|aol", "Muon: coefficients of its iteration."),
  works("muon_scalar_optimizer", kText, "adam", "adam|lion", "Muon: optimizer of vectors and embeddings."),
  no_effect("muon_use_syrk", kBool, "false", "", "Muon: symmetric matrix products.", kByShape),
  works("apply_wd_to_qk_layernorm", kBool, "false", "", "Weight decay on the norms of queries and keys.", "with latent attention: of the queries' latent vector"),
  works("no_weight_decay_cond_type", kText, "null", "apply_wd_to_qk_layernorm", "Which vectors have weight decay after all."),
};

constexpr Key kLearningRate[] = {
  works("lr", kReal, "null", ">0", "Highest learning rate."),
  works("min_lr", kReal, "0.0", ">=0", "Learning rate at the end of the decay."),
  works("lr_decay_style", kText, "linear", "constant|linear|cosine|inverse-square-root|WSD", "Shape of the decay."),
  works("lr_decay_iters", kInt, "null", ">=1", "Step at which the decay ends.", "null: train_iters"),
  works("lr_decay_samples", kInt, "null", ">=1", "Sample at which the decay ends."),
  works("lr_warmup_iters", kInt, "0", ">=0", "Steps over which the learning rate rises."),
  works("lr_warmup_samples", kInt, "0", ">=0", "Samples over which the learning rate rises."),
  works("lr_warmup_fraction", kReal, "null", "0..<1", "Part of the decay length over which the learning rate rises."),
  works("lr_warmup_init", kReal, "0.0", ">=0", "Learning rate at the first step of the rise."),
  works("lr_wsd_decay_style", kText, "exponential", "exponential|linear|cosine|minus_sqrt", "WSD: shape of the final decay."),
  works("lr_wsd_decay_iters", kInt, "null", ">=1", "WSD: steps of the final decay."),
  works("lr_wsd_decay_samples", kInt, "null", ">=1", "WSD: samples of the final decay."),
  works("decoupled_lr", kReal, "null", ">0", "Learning rate of embedding and output layer."),
  works("decoupled_min_lr", kReal, "null", ">=0", "Its value at the end of the decay."),
  works("override_opt_param_scheduler", kBool, "false", "", "On resume, this run's schedule beats the checkpoint's.",
        "without either, the two must agree"),
  works("use_checkpoint_opt_param_scheduler", kBool, "false", "", "On resume, the checkpoint's schedule beats this run's."),
  no_effect("warmup", kInt, "null", ">=0", "Old name of the warm-up length.", "removed; null means nothing"),
};

}  // namespace

std::span<const Key> training_keys() { return kTraining; }
std::span<const Key> optimizer_keys() { return kOptimizer; }
std::span<const Key> learning_rate_keys() { return kLearningRate; }

}  // namespace primus::config::rows
