// Options of the loop around the steps: growing batches, data that is passed over, evaluation, steps computed twice.
#include <filesystem>

#include "base/files.hpp"
#include "base/text.hpp"
#include "train/run.hpp"
#include "train/tiny_run.hpp"

namespace primus::train {
namespace {

using Words = std::vector<std::string>;

class LoopOptionsTest : public TinyRun {
 protected:
  std::vector<std::string> fields(const std::string& name) const {
    std::vector<std::string> found;
    std::ifstream in(run_folder() / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      const std::size_t at = line.find("\"" + name + "\":");
      if (at == std::string::npos) continue;
      const std::size_t begin = line.find(':', at) + 1;
      found.push_back(line.substr(begin, line.find_first_of(",}", begin) - begin));
    }
    return found;
  }
  std::string log() const { return read_file((run_folder() / "log.txt").string()); }
};

TEST_F(LoopOptionsTest, TheBatchGrows) {
  const Words by_samples = {"--train_samples", "40", "--train_iters",     "None",
                            "--eval_iters",    "0",  "--lr_warmup_iters", "0"};
  Words ramp = by_samples;
  ramp.insert(ramp.end(), {"--global_batch_size", "8", "--rampup_batch_size", "[4,4,16]"});
  const RunSummary summary = run(experiment(ramp));
  EXPECT_EQ(fields("global_batch_size"), (Words{"4", "4", "4", "4", "8", "8", "8"}));
  EXPECT_EQ(fields("consumed_samples").back(), "40");
  EXPECT_EQ(summary.num_iterations, 7);
  const Words ramp_losses = losses();
  // The same batches, written as places: 16 samples of 32 tokens.
  Words places = by_samples;
  places.insert(places.end(), {"--global_batch_size", "8", "--step_batch_size_schedule", "0:4 512:8"});
  run(experiment(places));
  EXPECT_EQ(losses(), ramp_losses);
}

TEST_F(LoopOptionsTest, ABatchThatDoesNotDivideIsDecreased) {
  const Words common = {"--train_iters",    "5",        "--eval_iters",      "0",
                        "--lr_decay_style", "constant", "--lr_warmup_iters", "0"};
  Words odd = common;
  odd.insert(odd.end(), {"--global_batch_size", "5", "--decrease_batch_size_if_needed", "True"});
  run(experiment(odd));
  const Words odd_losses = losses();
  EXPECT_EQ(fields("global_batch_size"), Words(5, "4"));
  run(experiment(common));
  EXPECT_EQ(losses(), odd_losses);
}

// The data of steps 3 and 4 is not seen: what comes after differs from a whole run, what comes before does not.
TEST_F(LoopOptionsTest, DataIsPassedOver) {
  const Words common = {"--train_iters", "6", "--eval_iters", "0"};
  run(experiment(common));
  const Words whole = losses();
  Words skipping = common;
  skipping.insert(skipping.end(), {"--iterations_to_skip", "[2,3]"});
  const RunSummary summary = run(experiment(skipping));
  EXPECT_EQ(summary.num_iterations, 4);
  EXPECT_EQ(fields("iteration"), (Words{"1", "2", "5", "6"}));
  EXPECT_EQ(fields("consumed_samples"), (Words{"4", "8", "20", "24"}));
  const Words some = losses();
  EXPECT_EQ(Words(some.begin(), some.begin() + 2), Words(whole.begin(), whole.begin() + 2));
  EXPECT_NE(some[2], whole[2]);
  EXPECT_NE(some[2], whole[4]);
  EXPECT_NE(log().find("iteration 3: its data is passed over"), std::string::npos);
}

// A step whose result is rejected in two runs is passed over in the third: its data is not seen again.
TEST_F(LoopOptionsTest, WhatIsRejectedTwiceIsPassedOver) {
  const std::string file = (run_folder().parent_path() / "rejected.log").string();
  std::filesystem::remove(file);
  const Words words = {"--train_iters",
                       "3",
                       "--eval_iters",
                       "0",
                       "--rerun_mode",
                       "validate_results",
                       "--error_injection_rate",
                       "1",
                       "--error_injection_type",
                       "correct_result",
                       "--result_rejected_tracker_filename",
                       file};
  for (int time = 1; time <= 2; ++time) {
    EXPECT_EQ(run(experiment(words)).num_iterations, 3);
    EXPECT_EQ(split(read_file(file), '\n').size(), 3U * time + 1U);
  }
  EXPECT_NE(read_file(file).find("rank=0 iteration=0 status=first_rerun_reproducible "), std::string::npos);
  const RunSummary third = run(experiment(words));
  EXPECT_EQ(third.num_iterations, 0);
  EXPECT_NE(log().find("iteration 1: its data is passed over"), std::string::npos);
  // A loss that is not finite ends the run, and is listed before.
  std::filesystem::remove(file);
  EXPECT_THROW(run(experiment({"--train_iters", "30", "--eval_iters", "0", "--lr", "1e30", "--min_lr", "0",
                               "--clip_grad", "0", "--result_rejected_tracker_filename", file})),
               UserError);
  EXPECT_NE(read_file(file).find("status=rerun_disabled"), std::string::npos);
}

TEST_F(LoopOptionsTest, AnEvaluationHasBatchesOfItsOwn) {
  const Words common = {"--train_iters", "1", "--eval_interval", "1", "--eval_iters", "3"};
  const auto evaluated = [&](Words more) {
    more.insert(more.begin(), common.begin(), common.end());
    run(experiment(more));
    return std::pair{std::stod(fields("eval_loss").at(0)), fields("eval_tokens").at(0)};
  };
  const auto plain = evaluated({});
  const auto other_cut = evaluated({"--eval_micro_batch_size", "4"});
  EXPECT_NEAR(other_cut.first, plain.first, 1e-6 * plain.first);
  EXPECT_EQ(other_cut.second, plain.second);
  const auto twice = evaluated({"--eval_global_batch_size", "8"});
  EXPECT_EQ(std::stoll(twice.second), 2 * std::stoll(plain.second));
  const auto whole = evaluated({"--full_validation", "True"});
  EXPECT_GT(std::stoll(whole.second), std::stoll(twice.second));
  const Trainer trainer(experiment({"--full_validation", "True"}));
  EXPECT_EQ(std::stoll(whole.second), trainer.num_samples(data::Split::kValid) / 2 * 2 * 32);
}

TEST_F(LoopOptionsTest, EvaluationsStartLater) {
  run(experiment({"--train_iters", "7", "--eval_interval", "2", "--start_eval_at_iter", "4"}));
  EXPECT_EQ(fields("eval_loss").size(), 3U) << "after 4, 6 and at the end";
}

TEST_F(LoopOptionsTest, EvaluatingAloneTrainsNothing) {
  run(experiment({"--train_iters", "1", "--lr", "1e-30", "--min_lr", "0", "--eval_interval", "1"}));
  const std::string expected = fields("eval_loss").at(0);
  const RunSummary summary = run(experiment({"--skip_train", "True"}));
  EXPECT_EQ(summary.end, EndOfRun::kEvaluated);
  EXPECT_EQ(summary.num_iterations, 0);
  EXPECT_EQ(fields("eval_loss"), Words{expected});
  EXPECT_THROW(run(experiment({"--skip_train", "True", "--eval_iters", "0"})), UserError);
}

// Computing every step twice changes no bit and tells nothing; injected errors are found, or are told to be none.
TEST_F(LoopOptionsTest, StepsAreComputedTwice) {
  const Words common = {"--train_iters", "4", "--eval_iters", "0", "--hidden_dropout", "0.1"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), common.begin(), common.end());
    return experiment(more);
  };
  run(with({}));
  const Words plain = losses();
  run(with({"--rerun_mode", "report_stats"}));
  EXPECT_EQ(losses(), plain);
  EXPECT_EQ(log().find("computed again"), std::string::npos);
  run(with(
      {"--rerun_mode", "validate_results", "--error_injection_rate", "1", "--error_injection_type", "correct_result"}));
  EXPECT_EQ(losses(), plain);
  EXPECT_NE(log().find("iteration 1: computed again because an error was injected: the same bits"), std::string::npos);
  run(with({"--rerun_mode", "report_stats", "--error_injection_rate", "1"}));
  EXPECT_NE(log().find("loss differs by 0.333"), std::string::npos) << log();
  try {
    run(with({"--rerun_mode", "validate_results", "--error_injection_rate", "1"}));
    FAIL() << "a transient error is found";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("this machine computes wrongly"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace primus::train
