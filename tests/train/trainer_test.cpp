// Whole runs of a tiny model: it learns, two runs are bit-equal, evaluation and batch cuts change nothing, faults stop
// it.
#include "train/trainer.hpp"

#include <fmt/ranges.h>

#include <cmath>
#include <csignal>
#include <map>

#include "base/files.hpp"
#include "train/device_support.hpp"
#include "train/run.hpp"
#include "train/tiny_run.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;

class TrainerTest : public TinyRun {
 protected:
  /// Data of many documents of a few tokens each.
  std::string short_documents() const {
    std::vector<std::string> inputs;
    for (int i = 0; i < 60; ++i) {
      const fs::path file = folder_ / fmt::format("short_{}.txt", i);
      std::ofstream text(file);
      for (int j = 0; j < 3 + i % 7; ++j) text << static_cast<char>('a' + (i * (j + 3) + j * j) % 26);
      inputs.push_back(file.string());
    }
    prepare(inputs, (folder_ / "short").string());
    return (folder_ / "short_text_document").string();
  }
};

TEST_F(TrainerTest, LearnsAndWritesItsRecords) {
  const RunSummary summary = run(experiment({}));
  EXPECT_EQ(summary.end, EndOfRun::kAllSteps);
  EXPECT_EQ(summary.num_iterations, 30);
  EXPECT_NEAR(summary.first_loss, std::log(384.0), 0.3);
  EXPECT_LT(summary.last_loss, 0.7 * summary.first_loss);
  ASSERT_TRUE(summary.valid_loss.has_value());
  EXPECT_EQ(losses().size(), 33U);  // 30 iterations, evaluations after 10, 20, 30
}

TEST_F(TrainerTest, TwoRunsAreBitEqual) {
  run(experiment({"--deterministic_mode", "True"}));
  const std::vector<std::string> first = losses();
  run(experiment({"--deterministic_mode", "True"}));
  EXPECT_EQ(first, losses());
  run(experiment({"--seed", "4321"}));
  EXPECT_NE(first, losses());
}

// Keys of attention and positions reach the model: each changes what is computed, and the model still learns.
TEST_F(TrainerTest, AttentionKeysReachTheModel) {
  const std::vector<std::string> grouped = {"--multi_latent_attention",
                                            "False",
                                            "--qk_layernorm",
                                            "False",
                                            "--group_query_attention",
                                            "True",
                                            "--num_query_groups",
                                            "1",
                                            "--train_iters",
                                            "6",
                                            "--eval_iters",
                                            "0"};
  const auto loss_with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = grouped;
    all.insert(all.end(), more.begin(), more.end());
    const RunSummary summary = run(experiment(all));
    EXPECT_EQ(summary.num_skipped, 0);
    EXPECT_LT(summary.last_loss, summary.first_loss) << (more.empty() ? "" : more.front());
    return summary.last_loss;
  };
  std::vector<std::vector<std::string>> variants = {
      {},
      {"--qk_layernorm", "True"},
      {"--qk_l2_norm", "True"},
      {"--attention_output_gate", "True"},
      {"--softmax_type", "off-by-one"},
      {"--use_sink_attention", "True"},
      {"--use_sink_attention", "True", "--sink_sliding_window", "3"},
      {"--use_sink_attention", "True", "--sink_sliding_window", "3", "--sink_window_even_layers_only", "False"},
      {"--window_size", "3,0"},
      {"--window_size", "3,0", "--window_attn_skip_freq", "2"},
      {"--window_size", "3,0", "--window_attn_skip_freq", "[0,1]"},
      {"--no_rope_freq", "2"},
      {"--attn_logit_softcapping", "0.01"},
      {"--rotary_percent", "0.5"},
      {"--rotary_interleaved", "True"},
      {"--rotary_seq_len_interpolation_factor", "4"},
      {"--use_rope_scaling", "True", "--rope_scaling_factor", "4", "--original_max_position_embeddings", "16"},
      {"--rope_type", "yarn", "--rotary_scaling_factor", "4", "--original_max_position_embeddings", "16"},
      {"--rope_type", "yarn", "--rotary_scaling_factor", "4", "--original_max_position_embeddings", "16",
       "--yarn_correction_range_round_to_int", "False"},
      {"--position_embedding_type", "none"},
      {"--position_embedding_type", "learned_absolute"}};
  std::map<double, std::string> seen;
  for (const std::vector<std::string>& variant : variants) {
    const std::string name = fmt::format("{}", fmt::join(variant, " "));
    const auto [same, is_new] = seen.emplace(loss_with(variant), name);
    EXPECT_TRUE(is_new) << name << " computes what '" << same->second << "' computes";
  }
  // A learnt sink that begins at zero computes what a sink of zero does, until it moves; and a wide window nothing.
  EXPECT_EQ(loss_with({"--window_size", "31,0"}), loss_with({}));
  EXPECT_EQ(loss_with({"--softmax_type", "learnable"}), loss_with({"--use_sink_attention", "True"}));
}

// Documents of a few tokens side by side: masks and positions change the loss, and the model learns with both.
TEST_F(TrainerTest, PackedDocumentsReachTheModel) {
  const std::string prefix = short_documents();
  std::vector<double> losses;
  for (const char* keys : {"False False", "True False", "False True", "True True"}) {
    const std::string positions = std::string(keys).substr(0, std::string(keys).find(' '));
    const std::string mask = std::string(keys).substr(positions.size() + 1);
    const RunSummary summary = run(
        experiment({"--train_data_path", prefix, "--valid_data_path", prefix, "--train_iters", "8", "--eval_iters", "0",
                    "--reset_position_ids", positions, "--reset_attention_mask", mask, "--eod_mask_loss", "True"}));
    EXPECT_EQ(summary.num_skipped, 0);
    EXPECT_LT(summary.last_loss, summary.first_loss);
    for (const double other : losses) EXPECT_NE(summary.last_loss, other) << keys;
    losses.push_back(summary.last_loss);
  }
}

/// Kimi K3's layers in all their variants, each of which computes something else.
TEST_F(TrainerTest, DeltaAndGatedLatentAttentionLearn) {
  const std::vector<std::string> delta = {"--model_type",
                                          "kimi_k3",
                                          "--linear_attention_freq",
                                          "2",
                                          "--linear_num_key_heads",
                                          "2",
                                          "--linear_num_value_heads",
                                          "2",
                                          "--linear_key_head_dim",
                                          "8",
                                          "--linear_value_head_dim",
                                          "8",
                                          "--train_iters",
                                          "6",
                                          "--eval_iters",
                                          "0"};
  std::map<double, std::string> seen;
  for (const char* words : {"", "--kda_gate_lower_bound=-5", "--kda_use_full_rank_gate=true",
                            "--mla_use_output_gate=true", "--mla_use_nope=true"}) {
    std::vector<std::string> all = delta;
    if (*words != '\0') all.emplace_back(words);
    const RunSummary summary = run(experiment(all));
    EXPECT_EQ(summary.num_skipped, 0);
    EXPECT_LT(summary.last_loss, summary.first_loss) << words;
    const auto [same, is_new] = seen.emplace(summary.last_loss, words);
    EXPECT_TRUE(is_new) << words << " computes what '" << same->second << "' computes";
  }
}

/// Every way to hold and to move the weights learns the same text from the experiment's keys alone.
TEST_F(TrainerTest, EveryOptimizerAndPrecisionLearns) {
  const double start = run(experiment({})).first_loss;
  const std::vector<std::vector<std::string>> cases = {
      {"--optimizer", "sgd", "--lr", "0.3"},
      {"--optimizer", "lion", "--lr", "2e-3"},
      {"--optimizer", "muon"},
      {"--bf16", "True", "--grad_reduce_in_bf16", "True"},
      {"--bf16", "True", "--use_precision_aware_optimizer", "True", "--use_distributed_optimizer", "True",
       "--main_grads_dtype", "bf16", "--main_params_dtype", "fp16", "--exp_avg_dtype", "fp8", "--exp_avg_sq_dtype",
       "fp8"},
      {"--fp16", "True", "--initial_loss_scale", "1024"},
      {"--fp16", "True", "--loss_scale", "1024"},
      {"--decoupled_lr", "1e-2", "--decoupled_min_lr", "1e-3"},
      {"--weight_decay_incr_style", "cosine", "--start_weight_decay", "0.01", "--end_weight_decay", "0.1"}};
  for (const auto& overrides : cases) {
    const RunSummary summary = run(experiment(overrides));
    EXPECT_NEAR(summary.first_loss, start, 0.05) << overrides[0] << " " << overrides[1];
    EXPECT_LT(summary.last_loss, 0.9 * start) << overrides[0] << " " << overrides[1];
    EXPECT_EQ(summary.num_skipped, 0) << overrides[0] << " " << overrides[1];
  }
}

TEST_F(TrainerTest, RecomputationKeysChangeNoLoss) {
  run(experiment({"--mtp_num_layers", "1", "--deterministic_mode", "True"}));
  const std::vector<std::string> plain = losses();
  const std::vector<std::vector<std::string>> cases = {
      {"--recompute_granularity", "full", "--recompute_method", "uniform", "--recompute_num_layers", "2"},
      {"--recompute_granularity", "full", "--recompute_method", "block", "--recompute_num_layers", "1"},
      {"--recompute_granularity", "full", "--recompute_layer_ids", "1,2"},
      {"--recompute_granularity", "selective"},
      {"--recompute_granularity", "selective", "--recompute_modules", "[moe, mlp, mla_up_proj]"},
      {"--moe_layer_recompute", "True"}};
  for (std::vector<std::string> overrides : cases) {
    overrides.insert(overrides.end(), {"--mtp_num_layers", "1", "--deterministic_mode", "True"});
    run(experiment(overrides));
    EXPECT_EQ(losses(), plain) << overrides[0] << " " << overrides[1] << " " << overrides[3];
  }
}

TEST_F(TrainerTest, PredictionDepthsAreLoggedAndLearn) {
  const RunSummary summary = run(experiment({"--mtp_num_layers", "2", "--eod_mask_loss", "True"}));
  EXPECT_LT(summary.last_loss, 0.7 * summary.first_loss);
  std::ifstream in(folder_ / "t/t/run/metrics.jsonl");
  std::vector<double> second;
  for (std::string line; std::getline(in, line);) {
    const std::size_t at = line.find("\"mtp_2_loss\":");
    if (at != std::string::npos) second.push_back(std::stod(line.substr(at + 13)));
  }
  ASSERT_EQ(second.size(), 30U);
  EXPECT_NEAR(second.front(), std::log(384.0), 0.3);
  EXPECT_LT(second.back(), 0.9 * second.front());
}

/// A loss scale that overflows is no fault: it falls until steps succeed, even where NaN stops the run.
TEST_F(TrainerTest, AnOverflowingLossScaleFallsAndTheRunGoesOn) {
  const RunSummary summary = run(experiment({"--fp16", "True", "--initial_loss_scale", "67108864"}));
  EXPECT_GT(summary.num_skipped, 0);
  EXPECT_LT(summary.num_skipped, 25);
  EXPECT_EQ(summary.num_iterations, 30);
  EXPECT_TRUE(std::isfinite(summary.last_loss));
}

TEST_F(TrainerTest, SyncFreeStagesChangeNoLoss) {
  const RunSummary plain = run(experiment({}));
  for (const char* stage : {"1", "2", "3"}) {
    const std::vector<std::string> staged = {"--enable_primus_turbo", "True", "--turbo_sync_free_moe_stage", stage};
    EXPECT_EQ(run(experiment(staged)).last_loss, plain.last_loss) << stage;
    // What ends a run at a step that is not finite must not end one whose loss scale overflows.
    std::vector<std::string> scaled = staged;
    scaled.insert(scaled.end(), {"--fp16", "True", "--initial_loss_scale", "67108864"});
    const RunSummary overflowing = run(experiment(scaled));
    EXPECT_GT(overflowing.num_skipped, 0) << stage;
    EXPECT_LT(overflowing.num_skipped, 25) << stage;
  }
}

TEST_F(TrainerTest, AGpuNamesTheKeyThatItCannotTrain) {
  const std::vector<std::vector<std::string>> cases = {{"--fp16", "True"}, {"--optimizer", "muon"}};
  for (const auto& overrides : cases) {
    try {
      require_device_support(experiment(overrides), at::kCUDA);
      FAIL() << "expected a refusal of " << overrides[0];
    } catch (const UserError& error) {
      const std::string key = overrides[overrides.size() - 2].substr(2);
      EXPECT_EQ(std::string(error.what()).substr(0, key.size()), key) << error.what();
    }
    require_device_support(experiment(overrides), at::kCPU);
  }
  require_device_support(
      experiment({"--bf16", "True", "--use_precision_aware_optimizer", "True", "--use_distributed_optimizer", "True",
                  "--main_grads_dtype", "bf16", "--exp_avg_dtype", "fp8", "--exp_avg_sq_dtype", "fp8"}),
      at::kCUDA);
}

TEST_F(TrainerTest, EvaluationDoesNotTouchTraining) {
  const RunSummary with = run(experiment({}));
  const RunSummary without = run(experiment({"--eval_iters", "0"}));
  EXPECT_EQ(with.last_loss, without.last_loss);
  EXPECT_FALSE(without.valid_loss.has_value());
}

TEST_F(TrainerTest, MicroBatchSizeDoesNotMatter) {
  const RunSummary two = run(experiment({}));
  for (const char* size : {"1", "4"}) {
    const RunSummary other = run(experiment({"--micro_batch_size", size}));
    EXPECT_NEAR(other.last_loss, two.last_loss, 2e-4 * two.last_loss) << size;
    EXPECT_NEAR(other.first_loss, two.first_loss, 1e-6 * two.first_loss) << size;
  }
}

TEST_F(TrainerTest, ASignalEndsTheRunAfterAWholeStep) {
  catch_interrupts();
  std::raise(SIGINT);
  const RunSummary summary = run(experiment({}));
  EXPECT_EQ(summary.end, EndOfRun::kInterrupted);
  EXPECT_EQ(summary.num_iterations, 1);
  EXPECT_EQ(pending_interrupt(), SIGINT);
  EXPECT_EQ(losses().size(), 1U);
}

TEST_F(TrainerTest, ExitIntervalStopsEarly) {
  const RunSummary summary = run(experiment({"--exit_interval", "7"}));
  EXPECT_EQ(summary.end, EndOfRun::kExitInterval);
  EXPECT_EQ(summary.num_iterations, 7);
}

TEST_F(TrainerTest, NonFiniteLossStopsOrSkips) {
  // A learning rate that throws the weights to infinity within a few steps.
  const auto wild = [](const char* policy) {
    return std::vector<std::string>{"--lr",
                                    "1e36",
                                    "--lr_warmup_iters",
                                    "0",
                                    "--clip_grad",
                                    "0",
                                    "--eval_iters",
                                    "0",
                                    "--check_for_nan_in_loss_and_grad",
                                    policy};
  };
  try {
    run(experiment(wild("True")));
    FAIL() << "the run went on";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("iteration "), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("check_for_nan_in_loss_and_grad"), std::string::npos) << error.what();
  }
  const RunSummary skipping = run(experiment(wild("False")));
  EXPECT_EQ(skipping.num_iterations, 30);
  EXPECT_GT(skipping.num_skipped, 0);
}

TEST_F(TrainerTest, ReservedMemoryDoesNotCreep) {
  const config::Experiment what = experiment({"--eval_iters", "0"});
  run(what);
  std::vector<std::int64_t> reserved;
  std::ifstream in(folder_ / "t/t/run/metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const std::size_t at = line.find("memory_reserved_bytes\":");
    reserved.push_back(std::stoll(line.substr(line.find(':', at) + 1)));
  }
  ASSERT_EQ(reserved.size(), 30U);
  EXPECT_EQ(reserved[2], reserved[29]);
}

TEST_F(TrainerTest, SkippedStepsAreCountedAndLeaveTheRunGoing) {
  // Huge but finite output weights: the logits overflow, the loss is not finite, no step is ever taken.
  const config::Experiment what = experiment({"--check_for_nan_in_loss_and_grad", "False", "--train_iters", "3",
                                              "--lr_warmup_iters", "0", "--eval_iters", "0"});
  Trainer trainer(what);
  trainer.parameters().get("output_layer.weight").weight.fill_(3e38);
  const at::Tensor before = trainer.parameters().get("decoder.layers.0.mlp.linear_fc1.weight").weight.clone();
  Reporter reporter(what.run_folder(), RunOptions::PerLayerLog::kNo);
  const RunSummary summary = trainer.run(reporter);
  EXPECT_EQ(summary.num_iterations, 3);
  EXPECT_EQ(summary.num_skipped, 3);
  EXPECT_TRUE(at::equal(before, trainer.parameters().get("decoder.layers.0.mlp.linear_fc1.weight").weight));
}

TEST_F(TrainerTest, MissingDataIsNamedBeforeAnythingIsBuilt) {
  const std::string nowhere = (folder_ / "nowhere").string();
  try {
    experiment({"--train_data_path", nowhere});
    FAIL() << "resolved";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("train_data_path: " + nowhere + ".bin does not exist"), std::string::npos)
        << error.what();
  }
}

TEST_F(TrainerTest, BFloat16AndUnfusedLossTrainToo) {
  const RunSummary fp32 = run(experiment({}));
  const RunSummary unfused = run(experiment({"--cross_entropy_loss_fusion", "False"}));
  EXPECT_NEAR(unfused.first_loss, fp32.first_loss, 1e-6 * fp32.first_loss);
  EXPECT_NEAR(unfused.last_loss, fp32.last_loss, 1e-3 * fp32.last_loss);
  // The same first weights but for their rounding to 8 bits; after that the two runs part slowly.
  const RunSummary bf16 = run(experiment({"--bf16", "True"}));
  EXPECT_NEAR(bf16.first_loss, fp32.first_loss, 2e-3 * fp32.first_loss);
  EXPECT_NEAR(bf16.last_loss, fp32.last_loss, 0.02 * fp32.last_loss);
  EXPECT_NE(bf16.first_loss, fp32.first_loss);
}

TEST_F(TrainerTest, PerLayerLoggingTellsOfEveryMoeLayer) {
  const config::Experiment what = experiment({"--moe_per_layer_logging", "True", "--train_iters", "4"});
  const RunOptions options = run_options(what);
  EXPECT_EQ(options.per_layer_log, RunOptions::PerLayerLog::kYes);
  Trainer trainer(what);
  {
    Reporter reporter(what.run_folder(), options.per_layer_log);
    trainer.run(reporter);
  }
  const std::string log = read_file(folder_ / "t/t/run/log.txt");
  EXPECT_NE(log.find("layer   1 | expert load max/mean: "), std::string::npos) << log;
  EXPECT_NE(log.find("dead experts: "), std::string::npos) << log;
}

TEST_F(TrainerTest, NormsZerosAndMemoryAreLoggedOnRequest) {
  const config::Experiment what = experiment({"--log_params_norm", "True", "--log_num_zeros_in_grad", "True",
                                              "--log_memory_interval", "10", "--eval_iters", "0"});
  Trainer trainer(what);
  {
    Reporter reporter(what.run_folder(), RunOptions::PerLayerLog::kNo);
    trainer.run(reporter);
  }
  double squares = 0.0;
  std::int64_t num_zeros = 0;
  for (const auto& parameter : trainer.parameters().all()) {
    if (!parameter->gradient().defined()) continue;
    squares += parameter->weight.to(at::kDouble).square().sum().item<double>();
    num_zeros += parameter->gradient().eq(0).sum().item<std::int64_t>();
  }
  const std::string metrics = read_file(folder_ / "t/t/run/metrics.jsonl");
  const auto last = [&](const std::string& key) {
    const std::size_t at = metrics.rfind("\"" + key + "\":");
    return at == std::string::npos ? -1.0 : std::stod(metrics.substr(at + key.size() + 3));
  };
  EXPECT_NEAR(last("params_norm"), std::sqrt(squares), 1e-9 * std::sqrt(squares));
  EXPECT_EQ(last("num_zero_gradients"), static_cast<double>(num_zeros));
  EXPECT_GT(num_zeros, 0);  // of tokens that did not occur
  const std::string log = read_file(folder_ / "t/t/run/log.txt");
  for (const char* line : {"[Rank 0] (after 10 iterations) memory (MB) | max allocated: ", "(after 30 iterations)"})
    EXPECT_NE(log.find(line), std::string::npos) << line;
  EXPECT_EQ(log.find("(after 15 iterations)"), std::string::npos);
}

TEST_F(TrainerTest, AnErrorOfARunStandsInItsLog) {
  const config::Experiment what = experiment({"--lr", "1e36", "--lr_warmup_iters", "0", "--clip_grad", "0"});
  write_file(folder_ / "experiment.json", what.to_json());
  EXPECT_THROW(run_experiment((folder_ / "experiment.json").string(), ops::DeviceChoice::kCpu), UserError);
  EXPECT_NE(read_file(folder_ / "t/t/run/log.txt").find("error: iteration "), std::string::npos);
}

}  // namespace
}  // namespace primus::train
