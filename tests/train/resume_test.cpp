// A run that ends and goes on is the run that never ended, to the bit: its records, and every tensor and number of its
// last checkpoint.
#include <fmt/ranges.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "base/text.hpp"
#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/damage.hpp"
#include "checkpoint/start_folder.hpp"
#include "train/deepseek_v4_words.hpp"
#include "train/tiny_run.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class ResumeTest : public TinyRun {
 protected:
  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  static Words saving() {
    return {"--train_iters",        "12",   "--eval_interval",       "4",     "--eval_iters",          "1",
            "--deterministic_mode", "True", "--disable_last_saving", "False", "--auto_continue_train", "True"};
  }

  /// Every record without what depends on the clock and on memory.
  std::vector<std::string> curve(const std::string& exp_name) const {
    std::vector<std::string> lines;
    for (const std::string& line : split(read_file(run_folder(exp_name) / "metrics.jsonl"), '\n')) {
      if (line.empty()) continue;
      nlohmann::json json = nlohmann::json::parse(line);
      for (const char* key :
           {"elapsed_ms", "tokens_per_s_per_device", "tflops_per_device", "memory_peak_bytes", "memory_reserved_bytes"})
        json.erase(key);
      lines.push_back(json.dump());
    }
    return lines;
  }

  fs::path checkpoints(const std::string& exp_name) const { return run_folder(exp_name) / "checkpoints"; }

  /// Checksums of all tensors, and the numbers beside them.
  std::vector<std::string> state(const std::string& exp_name, std::int64_t iteration) const {
    const checkpoint::CheckpointReader reader(checkpoint::CheckpointRoot(checkpoints(exp_name)).folder(iteration));
    std::vector<std::string> lines;
    for (const checkpoint::GlobalTensor& tensor : reader.index().tensors)
      lines.push_back(fmt::format("{} {} {:08x}", tensor.kind, tensor.name, tensor.pieces.front().crc32c));
    nlohmann::ordered_json numbers = to_json(*reader.index().training);
    numbers["log_interval"].erase("seconds");
    lines.push_back(numbers.dump());
    lines.push_back(std::to_string(reader.index().consumed_samples));
    return lines;
  }

  /// Ends after 4 steps, goes on to the 12th, and is compared with a run that did not end.
  void compare(const Words& words, std::size_t num_records = 15) const {
    const std::string name = fmt::format("{}", fmt::join(words, " "));
    for (const char* run : {"whole", "halves"}) fs::remove_all(run_folder(run));
    run(experiment(with(saving(), words), "whole"));
    run(experiment(with(with(saving(), words), {"--exit_interval", "4"}), "halves"));
    ASSERT_EQ(checkpoint::CheckpointRoot(checkpoints("halves")).latest(), 4) << name;
    const RunSummary second = run(experiment(with(saving(), words), "halves"));
    EXPECT_EQ(second.num_iterations, 8) << name;
    EXPECT_EQ(curve("whole").size(), num_records) << name;
    // The end writes a record of its own, which the whole run need not have.
    std::vector<std::string> halves = curve("halves");
    if (halves.size() > num_records)
      std::erase_if(halves,
                    [](const std::string& line) { return line.find("\"iteration\":4,\"learn") != std::string::npos; });
    expect_same(curve("whole"), halves, name);
    expect_same(state("whole", 12), state("halves", 12), name);
  }

  /// The first line that differs, and not all of them.
  static void expect_same(const std::vector<std::string>& a, const std::vector<std::string>& b,
                          const std::string& name) {
    EXPECT_EQ(a.size(), b.size()) << name;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) ASSERT_EQ(a[i], b[i]) << name;
  }
};

TEST_F(ResumeTest, EveryOptimizer) {
  for (const char* optimizer : {"adam", "sgd", "lion", "muon", "adaptive_muon", "soap"})
    compare({"--optimizer", optimizer});
  compare({"--optimizer", "muon", "--muon_scalar_optimizer", "lion"});
  compare({"--weight_decay_incr_style", "cosine", "--start_weight_decay", "0.01", "--end_weight_decay", "0.1",
           "--decoupled_lr", "1e-2"});
}

/// DeepSeek-V4's attention and routing, by their keys: the table of experts is a part of what is saved.
TEST_F(ResumeTest, CompressedAttentionAndExpertsByToken) {
  compare(with(kDeepSeekV4Words,
               {"--rotary_interleaved", "True", "--compress_rope_theta", "40000", "--moe_router_score_function",
                "sqrtsoftplus", "--moe_router_pre_softmax", "False", "--swiglu_limit", "10", "--bf16", "True"}));
}

TEST_F(ResumeTest, EveryPrecision) {
  compare({"--bf16", "True"});
  compare({"--bf16", "True", "--grad_reduce_in_bf16", "True"});
  compare({"--bf16", "True", "--optimizer", "muon"});
  compare({"--bf16", "True", "--optimizer", "soap"});
  const Words narrow = {"--bf16", "True", "--use_precision_aware_optimizer", "True", "--use_distributed_optimizer",
                        "True"};
  compare(with(narrow, {"--main_grads_dtype", "bf16", "--main_params_dtype", "fp16", "--exp_avg_dtype", "fp8",
                        "--exp_avg_sq_dtype", "fp8"}));
  compare(with(narrow, {"--exp_avg_dtype", "bf16", "--exp_avg_sq_dtype", "fp16"}));
}

// The scale halves on steps that are left out, before and after the restart, and doubles on good ones.
TEST_F(ResumeTest, TheLossScaleGoesOn) {
  compare({"--fp16", "True", "--initial_loss_scale", "134217728", "--hysteresis", "2", "--loss_scale_window", "3"});
  compare({"--fp16", "True", "--initial_loss_scale", "1024", "--loss_scale_window", "4"});
}

TEST_F(ResumeTest, EveryKindOfRouter) {
  compare({"--moe_router_enable_expert_bias", "True", "--moe_router_score_function", "sigmoid"});
  compare({"--moe_router_load_balancing_type", "quantile_balancing"});
  compare({"--moe_router_load_balancing_type", "global_aux_loss", "--moe_aux_loss_coeff", "0.01"});
  compare({"--moe_input_jitter_eps", "0.1"});
  compare({"--moe_router_force_load_balancing", "True", "--moe_router_force_load_balancing_type", "uniform"});
}

TEST_F(ResumeTest, RecomputationDepthsAndMicroBatches) {
  compare({"--recompute_granularity", "full", "--recompute_method", "uniform", "--recompute_num_layers", "1",
           "--moe_input_jitter_eps", "0.1"});
  compare({"--mtp_num_layers", "1"});
  compare({"--micro_batch_size", "1"});
  compare({"--micro_batch_size", "4"});
}

// Random draws go on where the run left them; so does what a step leaves behind in weights and biases.
TEST_F(ResumeTest, OptionsWithRandomNumbersAndRulesBesideTheOptimizer) {
  compare({"--hidden_dropout", "0.2", "--attention_dropout", "0.1"});
  compare({"--mtp_num_layers", "2", "--mtp_hsm", "True"});
  compare({"--qk_clip", "True", "--qk_clip_threshold", "0.01"});
  compare({"--moe_router_enable_expert_bias", "True", "--moe_router_score_function", "sigmoid",
           "--moe_router_bias_update_rule", "quantile"});
}

// 4 steps of 4 sequences and 8 of 8; the rates and the data go on where the samples were.
TEST_F(ResumeTest, AGrowingBatchAndDataThatIsPassedOver) {
  const Words by_samples = {"--train_iters",    "None", "--train_samples",     "80", "--lr_warmup_iters",   "0",
                            "--lr_decay_iters", "None", "--global_batch_size", "8",  "--rampup_batch_size", "[4,4,16]"};
  compare(by_samples);
  compare({"--iterations_to_skip", "[2]"}, 14);
}

// A record every 3 steps: the sums of the one that the end cut are taken up again.
TEST_F(ResumeTest, AveragesOfALogIntervalGoOn) {
  compare({"--log_interval", "3"}, 7);
}

// More than one pass over the data: the position within a pass comes from the samples consumed.
TEST_F(ResumeTest, PassesOverTheDataGoOn) {
  compare({"--global_batch_size", "128", "--micro_batch_size", "32"});
}

TEST_F(ResumeTest, SavingBesideTrainingSavesTheSame) {
  const Words often = with(saving(), {"--save_interval", "2"});
  run(experiment(often, "in_step"));
  run(experiment(with(often, {"--async_save", "True"}), "beside"));
  EXPECT_EQ(curve("in_step"), curve("beside"));
  for (const std::int64_t iteration : {2, 4, 6, 8, 10, 12})
    EXPECT_EQ(state("in_step", iteration), state("beside", iteration)) << iteration;
}

TEST_F(ResumeTest, ASignalSavesAndTheRunGoesOn) {
  const Words words = with(saving(), {"--eval_interval", "6"});
  run(experiment(words, "whole"));
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    catch_interrupts();
    std::raise(signal);
    const RunSummary stopped = run(experiment(words, "stopped"));
    EXPECT_EQ(stopped.end, EndOfRun::kInterrupted);
    EXPECT_EQ(stopped.num_iterations, 1);
    EXPECT_EQ(pending_interrupt(), signal);
    clear_interrupt();
  }
  run(experiment(words, "stopped"));
  EXPECT_EQ(curve("whole"), curve("stopped"));
  EXPECT_EQ(state("whole", 12), state("stopped", 12));
}

TEST_F(ResumeTest, RetentionAndLatest) {
  run(experiment(with(saving(), {"--save_interval", "2", "--save_keep_last", "2", "--save_retain_interval", "4"}),
                 "kept"));
  const checkpoint::CheckpointRoot root(checkpoints("kept"));
  EXPECT_EQ(root.iterations(), (std::vector<std::int64_t>{4, 8, 10, 12}));
  EXPECT_EQ(root.latest(), 12);
  run(experiment(with(saving(), {"--save_interval", "2", "--save_retain_interval", "6"}), "megatron"));
  EXPECT_EQ(checkpoint::CheckpointRoot(checkpoints("megatron")).iterations(), (std::vector<std::int64_t>{6, 12}));
}

TEST_F(ResumeTest, WhatIsSavedAndWhenFollowsTheKeys) {
  const auto steps = [&](const Words& words) {
    fs::remove_all(run_folder("keys"));
    run(experiment(with(saving(), words), "keys"));
    return checkpoint::CheckpointRoot(checkpoints("keys")).iterations();
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(steps({}), Steps{12});
  EXPECT_EQ(steps({"--disable_last_saving", "True"}), Steps{});
  EXPECT_EQ(steps({"--disable_last_saving", "True", "--save_interval", "6"}), (Steps{6, 12}));
  EXPECT_EQ(steps({"--save", "null"}), Steps{});
  const std::string elsewhere = (folder_ / "elsewhere").string();
  EXPECT_EQ(steps({"--save", elsewhere}), Steps{});
  EXPECT_EQ(checkpoint::CheckpointRoot(elsewhere).iterations(), Steps{12});
}

// ---- loading ----

class LoadTest : public ResumeTest {
 protected:
  void SetUp() override {
    ResumeTest::SetUp();
    run(experiment(with(saving(), {"--save_interval", "4"}), "first"));
    load_ = checkpoints("first").string();
  }

  /// A run of its own folder that starts from the first one's checkpoints.
  Start start(const Words& words) const {
    fs::remove_all(run_folder("second"));
    const Words all = with({"--load", load_, "--finetune", "False", "--train_iters", "14"}, words);
    const Trainer trainer(experiment(all, "second"));
    return trainer.start();
  }

  std::string refusal(const Words& words) const {
    try {
      start(words);
    } catch (const ConfigError& error) {
      return error.what();
    }
    ADD_FAILURE() << "started: " << fmt::format("{}", fmt::join(words, " "));
    return {};
  }

  std::string load_;
};

TEST_F(LoadTest, KeysMeanWhatMegatronMeans) {
  const Start all = start({});
  EXPECT_EQ(all.position.iteration, 12);
  EXPECT_EQ(all.position.consumed_samples, 48);
  EXPECT_EQ(all.position.schedule_samples, 48);
  EXPECT_EQ(all.own_run, Start::OwnRun::kNo);
  EXPECT_NE(all.message.find("going on after iteration 12 (48 samples) from "), std::string::npos) << all.message;
  EXPECT_EQ(start({"--ckpt_step", "4"}).position.iteration, 4);
  EXPECT_EQ(start({"--load", load_ + "/iter_0000008"}).position.iteration, 8);
  const Start weights = start({"--finetune", "True"});
  EXPECT_EQ(weights.position.iteration, 0);
  EXPECT_EQ(weights.position.consumed_samples, 0);
  const Start fresh_optimizer = start({"--no_load_optim", "True"});
  EXPECT_EQ(fresh_optimizer.position.iteration, 12);
  EXPECT_EQ(fresh_optimizer.position.schedule_samples, 0);
  EXPECT_EQ(start({"--override_ckpt_iteration", "2"}).position.iteration, 2);
  const std::string nowhere = (folder_ / "nowhere").string();
  EXPECT_EQ(start({"--load", nowhere, "--exit_on_missing_checkpoint", "False"}).position.iteration, 0);
  EXPECT_NE(refusal({"--load", nowhere, "--exit_on_missing_checkpoint", "True"}).find("exit_on_missing_checkpoint"),
            std::string::npos);
  EXPECT_NE(refusal({"--ckpt_step", "5"})
                .find("ckpt_step: there is no checkpoint of this step in " + load_ + " (expected 4, 8, 12, found 5)"),
            std::string::npos);
}

TEST_F(LoadTest, WhatWasNotSavedIsAskedForByName) {
  fs::remove_all(run_folder("first"));
  run(experiment(with(saving(), {"--no_save_optim", "True", "--no_save_rng", "True"}), "first"));
  EXPECT_NE(refusal({"--no_load_rng", "True"}).find("no_load_optim: the checkpoint was saved without the optimizer"),
            std::string::npos);
  EXPECT_NE(refusal({"--no_load_optim", "True"}).find("no_load_rng: the checkpoint was saved without its random state"),
            std::string::npos);
  EXPECT_EQ(start({"--no_load_optim", "True", "--no_load_rng", "True"}).position.iteration, 12);
}

TEST_F(LoadTest, DifferencesAreNamed) {
  const std::string other_rule = refusal({"--optimizer", "sgd"});
  EXPECT_NE(other_rule.find("second_moment of "), std::string::npos) << other_rule;
  EXPECT_NE(other_rule.find("has no place in this run's optimizer"), std::string::npos) << other_rule;
  const std::string other_type = refusal({"--bf16", "True"});
  EXPECT_NE(other_type.find("master of "), std::string::npos) << other_type;
  EXPECT_NE(other_type.find("is missing: this run's optimizer needs it (expected F32 ["), std::string::npos)
      << other_type;
  const std::string other_model = refusal({"--ffn_hidden_size", "64"});
  EXPECT_NE(other_model.find("decoder.layers.0.mlp.linear_fc1.weight"), std::string::npos) << other_model;
}

TEST_F(LoadTest, SchedulesAgreeOrOneOfThemWins) {
  const auto rate = [&](const Words& words) {
    fs::remove_all(run_folder("second"));
    run(experiment(with({"--load", load_, "--finetune", "False", "--lr", "1e-2", "--lr_decay_iters", "12",
                         "--train_iters", "13", "--eval_iters", "0"},
                        words),
                   "second"));
    return nlohmann::json::parse(curve("second").front())["learning_rate"].get<double>();
  };
  const std::string refused = refusal({"--lr", "1e-2", "--override_opt_param_scheduler", "False"});
  EXPECT_NE(
      refused.find("lr: the schedule of the checkpoint is another one than this run's (expected 0.01, found 0.005)"),
      std::string::npos)
      << refused;
  EXPECT_DOUBLE_EQ(rate({"--override_opt_param_scheduler", "True", "--lr_decay_style", "constant"}), 1e-2);
  EXPECT_DOUBLE_EQ(rate({"--override_opt_param_scheduler", "False", "--use_checkpoint_opt_param_scheduler", "True"}),
                   5e-4);
}

// The checkpoint's generators go on, whatever the run's seed; data order is the run's.
TEST_F(LoadTest, GeneratorsComeFromTheCheckpoint) {
  const Words noise = {"--moe_input_jitter_eps", "0.1", "--deterministic_mode", "True"};
  const auto loss = [&](const Words& words) {
    fs::remove_all(run_folder("second"));
    run(experiment(
        with(with({"--load", load_, "--finetune", "False", "--train_iters", "13", "--eval_iters", "0", "--seed", "99"},
                  noise),
             words),
        "second"));
    return curve("second");
  };
  EXPECT_NE(loss({}), loss({"--no_load_rng", "True"}));
  EXPECT_EQ(loss({}), loss({}));
}

TEST_F(LoadTest, MasterWeightsInTheCheckpointsPrecision) {
  const Words words = {
      "--load",        load_, "--bf16",       "True", "--no_load_optim",       "True", "--finetune", "False",
      "--train_iters", "13",  "--eval_iters", "0",    "--disable_last_saving", "False"};
  const auto masters = [&](const Words& more) {
    fs::remove_all(run_folder("second"));
    run(experiment(with(with(words, {"--lr", "1e-30", "--min_lr", "0", "--weight_decay", "0"}), more), "second"));
    const checkpoint::CheckpointReader reader(checkpoints("second") / "iter_0000013");
    return reader.index().find("output_layer.weight", checkpoint::kMaster)->pieces.front().crc32c;
  };
  const checkpoint::CheckpointReader source(fs::path(load_) / "iter_0000012");
  const std::uint32_t stored = source.index().find("output_layer.weight")->pieces.front().crc32c;
  EXPECT_EQ(masters({"--load_main_params_from_ckpt", "True"}), stored);
  EXPECT_NE(masters({}), stored);
}

TEST_F(LoadTest, ADamagedOneIsNamedAndTheOneBeforeItUsed) {
  const fs::path weights = fs::path(load_) / "iter_0000012" / "weights.safetensors";
  std::string bytes = read_file(weights);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 4);
  write_file(weights, bytes);
  const Start fallen_back = start({});
  EXPECT_EQ(fallen_back.position.iteration, 8);
  EXPECT_NE(fallen_back.message.find("WARNING: this checkpoint is damaged and is not used: " + weights.string()),
            std::string::npos)
      << fallen_back.message;
  EXPECT_THROW(start({"--on_damaged_checkpoint", "stop"}), checkpoint::DamagedError);
  EXPECT_THROW(start({"--ckpt_step", "12"}), checkpoint::DamagedError);
  // The optimizer's part counts, too, and weights that are already there are overwritten.
  fs::resize_file(fs::path(load_) / "iter_0000008" / "optimizer.safetensors", 4096);
  EXPECT_EQ(start({}).position.iteration, 4);
  fs::remove(fs::path(load_) / "iter_0000004" / "checkpoint.json");
  try {
    start({});
    FAIL() << "started";
  } catch (const UserError& error) {
    const std::string message = error.what();
    for (const char* name : {"iter_0000012", "iter_0000008", "iter_0000004", "no checkpoint under"})
      EXPECT_NE(message.find(name), std::string::npos) << message;
  }
}

// After the fall back the curve is the undisturbed one again, and the damaged checkpoint is written anew.
TEST_F(LoadTest, TheCurveGoesOnFromTheOneBefore) {
  const std::vector<std::string> whole = curve("first");
  const std::vector<std::string> last = state("first", 12);
  fs::resize_file(fs::path(load_) / "iter_0000012" / "optimizer.safetensors", 100);
  const RunSummary summary = run(experiment(with(saving(), {"--save_interval", "4"}), "first"));
  EXPECT_EQ(summary.num_iterations, 4);
  EXPECT_EQ(curve("first"), whole);
  EXPECT_EQ(state("first", 12), last);
}

TEST_F(LoadTest, TheOwnRunComesFirst) {
  // A finished run has nothing left to do, whatever load and finetune say.
  const Trainer again(
      experiment(with(saving(), {"--load", (folder_ / "nowhere").string(), "--finetune", "True"}), "first"));
  EXPECT_EQ(again.start().own_run, Start::OwnRun::kContinued);
  EXPECT_EQ(again.first_iteration(), 12);
}

TEST_F(LoadTest, AnUnwrittenKeyContinuesAndAWrittenOneDoesNot) {
  EXPECT_FALSE(checkpoint::continues_itself(experiment({"--auto_continue_train", "False"})));
  EXPECT_TRUE(checkpoint::continues_itself(experiment({"--auto_continue_train", "True"})));
  config::Experiment inherited = experiment({});
  inherited.set("auto_continue_train", {false}, {config::Layer::kModulePreset, "preset", 1});
  EXPECT_TRUE(checkpoint::continues_itself(inherited));
}

}  // namespace
}  // namespace primus::train
