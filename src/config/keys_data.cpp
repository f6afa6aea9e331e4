// Rows: data, checkpoints, recomputation.
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config::rows {
namespace {

constexpr Key kData[] = {
  works("mock_data", kBool, "false", "", "Made-up tokens instead of data.", "sets NullTokenizer, and 131072 tokens unless vocab_size is set"),
  works("train_data_path", kTextList, "null", "", "Prefixes of the training data's .bin and .idx, or weight and prefix by turns."),
  works("valid_data_path", kTextList, "null", "", "The same for the held-out data."),
  works("test_data_path", kTextList, "null", "", "The same for the test data."),
  works("data_path", kTextList, "null", "", "The same for data that split divides."),
  works("split", kText, "null", "", "Weights of training, held-out and test part, as in 99,1,0."),
  works_for("dataloader_type", kText, "null", "single|cyclic|external", "null|single|cyclic", "Order of the samples: Megatron's, or a seeded permutation each epoch.", "null: single"),
  works("eod_mask_loss", kBool, "false", "", "End-of-document tokens do not count in the loss."),
  planned("reset_position_ids", kBool, "false", "", "Positions start anew after each document."),
  planned("reset_attention_mask", kBool, "false", "", "Attention stops at document ends."),
  planned("data_args_path", kText, "null", "", "File that holds the data paths."),
  planned("per_split_data_args_path", kText, "null", "", "File that holds the data paths of every part."),
  no_effect("data_cache_path", kText, "null", "", "Folder of cached sample orders.", "sample orders are computed, not stored"),
  no_effect("num_workers", kInt, "2", ">=0", "Python processes that load data.", "data is read from mapped files"),
  no_effect("mmap_bin_files", kBool, "true", "", "Map data files into memory.", "they always are"),
  no_effect("data_sharding", kBool, "true", "", "Each rank shuffles its own part.", "the order is global, so that every parallel layout sees the same data"),
  no_effect("dataloader_mp_context", kText, "null", "", "How Python loader processes start.", "data is read from mapped files"),
  no_effect("mock_dataset", kMap, "null", "", "Made-up images.", "mock_data makes tokens"),
  no_effect("create_attention_mask_in_dataloader", kBool, "true", "", "The loader makes the causal mask.", "attention is causal without a mask"),
  no_effect("num_dataset_builder_threads", kInt, "1", ">=1", "Threads that build sample orders.", "that takes milliseconds"),
  planned("encoder_seq_length", kInt, "null", ">=1", "Sequence length of an encoder."),
  planned("decoder_seq_length", kInt, "null", ">=1", "Sequence length behind an encoder."),
  planned_detail("retriever_seq_length", kInt, "256", ">=1", "Sequence length of a retriever."),
  planned_detail("sample_rate", kReal, "1.0", "0..1", "Part of the samples that is used, for image models."),
  planned_detail("mask_prob", kReal, "0.15", "0..1", "Masked part of a BERT sample."),
  planned_detail("short_seq_prob", kReal, "0.1", "0..1", "Part of short BERT samples."),
};

constexpr Key kCheckpoint[] = {
  planned("save", kText, "null", "", "Folder of checkpoints."),
  planned_detail("save_interval", kInt, "20000", ">=1", "Steps between checkpoints."),
  planned_detail("save_retain_interval", kInt, "null", ">=1", "Steps between checkpoints that are kept."),
  planned_detail("no_save_optim", kBool, "null", "", "Leave the optimizer's state out."),
  planned_detail("no_save_rng", kBool, "null", "", "Leave the random state out."),
  planned_detail("disable_last_saving", kBool, "false", "", "No checkpoint after the last step."),
  planned("load", kText, "null", "", "Checkpoint to go on from."),
  planned_detail("load_main_params_from_ckpt", kBool, "false", "", "Master weights from the checkpoint."),
  planned_detail("no_load_optim", kBool, "null", "", "Load weights without the optimizer's state."),
  planned_detail("no_load_rng", kBool, "null", "", "Load weights without the random state."),
  planned_detail("finetune", kBool, "false", "", "Load weights and start at step 0."),
  planned("auto_continue_train", kBool, "false", "", "Go on from the run folder's last checkpoint."),
  planned("pretrained_checkpoint", kText, "null", "", "Weights to start from."),
  planned("ckpt_step", kInt, "null", ">=0", "Step of the checkpoint to load."),
  planned("use_checkpoint_args", kBool, "false", "", "Model settings from the checkpoint."),
  planned_detail("use_mp_args_from_checkpoint_args", kBool, "false", "", "Parallel sizes from the checkpoint."),
  planned_detail("use_tokenizer_model_from_checkpoint_args", kBool, "true", "", "Tokenizer from the checkpoint."),
  planned_detail("auto_detect_ckpt_format", kBool, "false", "", "Find the checkpoint's format."),
  planned_detail("ckpt_format", kText, "torch_dist", "torch|torch_dist|torch_dcp|zarr|fsdp_dtensor", "Format of checkpoints."),
  planned("ckpt_convert_format", kText, "null", "torch|torch_dist", "Format to convert a checkpoint to."),
  planned_detail("ckpt_convert_save", kText, "null", "", "Folder of the converted checkpoint."),
  planned_detail("ckpt_convert_update_legacy_dist_opt_format", kBool, "false", "", "Convert old optimizer states too."),
  planned_detail("ckpt_fully_parallel_save", kBool, "true", "", "All data ranks write a part."),
  planned_detail("ckpt_fully_parallel_load", kBool, "false", "", "All data ranks read a part."),
  planned_detail("ckpt_assume_constant_structure", kBool, "false", "", "Plan the first save only."),
  planned("async_save", kBool, "null", "", "Save beside training.", "", "null|false"),
  planned_detail("use_persistent_ckpt_worker", kBool, "false", "", "One process does all saves."),
  planned_detail("dist_ckpt_strictness", kText, "assume_ok_unexpected", "assume_ok_unexpected|log_unexpected|log_all|raise_unexpected|raise_all|return_unexpected|return_all|ignore_all", "What to do about keys that do not match."),
  planned_detail("dist_ckpt_save_pre_mcore_014", kBool, "null", "", "Older layout of the optimizer's state."),
  planned_detail("dist_ckpt_optim_fully_reshardable", kBool, "null", "", "Optimizer state that fits every parallel layout."),
  planned("non_persistent_save_interval", kInt, "null", ">=1", "Steps between short-lived checkpoints."),
  planned_detail("non_persistent_ckpt_type", kText, "null", "global|local|in_memory", "Where short-lived checkpoints live."),
  planned_detail("non_persistent_global_ckpt_dir", kText, "null", "", "Their shared folder."),
  planned_detail("non_persistent_local_ckpt_dir", kText, "null", "", "Their folder on each node."),
  planned_detail("non_persistent_local_ckpt_algo", kText, "fully_parallel", "fully_parallel|atomic", "How nodes divide them."),
  no_effect("use_dist_ckpt_deprecated", kBool, "false", "", "Old spelling of ckpt_format.", "write ckpt_format"),
  no_effect("dist_ckpt_format_deprecated", kText, "null", "", "Old spelling of ckpt_format.", "write ckpt_format"),
  no_effect("ckpt_fully_parallel_save_deprecated", kBool, "false", "", "Old spelling of ckpt_fully_parallel_save.", "write ckpt_fully_parallel_save"),
};

constexpr Key kRecompute[] = {
  planned_speed("recompute_granularity", kText, "null", "full|selective", "Keep whole layers' inputs, or leave out parts of them.", "recomputation of activations"),
  planned_speed("recompute_method", kText, "null", "uniform|block", "Which layers of a stage run again."),
  planned_speed("recompute_num_layers", kInt, "null", ">=0", "How many layers that is.", "", "null|0"),
  planned_speed("recompute_layer_ids", kText, "null", "", "The layers that run again, as in 0,3,4."),
  planned_speed("recompute_modules", kTextList, "null", "", "Parts of a layer that run again."),
  planned_speed("recompute_activations", kBool, "false", "", "Short for the selective kind."),
  planned("distribute_saved_activations", kBool, "false", "", "Kept inputs divided over the tensor ranks."),
  no_effect("checkpoint_activations", kBool, "false", "", "Old spelling of recomputation.", "write recompute_granularity"),
};

}  // namespace

std::span<const Key> data_keys() { return kData; }
std::span<const Key> checkpoint_keys() { return kCheckpoint; }
std::span<const Key> recompute_keys() { return kRecompute; }

}  // namespace primus::config::rows
