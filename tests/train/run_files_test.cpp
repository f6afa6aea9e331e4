// What keys about data, checkpoints and logs leave behind: phases, several held-out sets, short-lived checkpoints,
// progress.txt, MLflow's files.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/files.hpp"
#include "base/text.hpp"
#include "checkpoint/checkpoint_root.hpp"
#include "train/tiny_run.hpp"

namespace primus::train {
namespace {

using testing::HasSubstr;
using testing::Not;

class RunFiles : public TinyRun {
 protected:
  /// Goes on by itself.
  static std::vector<std::string> continuing(std::vector<std::string> more) {
    more.insert(more.begin(), {"--auto_continue_train", "true", "--eval_iters", "0", "--train_iters", "12"});
    return more;
  }
  std::string metrics() const { return read_file(run_folder() / "metrics.jsonl"); }
  std::filesystem::path checkpoints() const { return run_folder() / "checkpoints"; }
};

// Each phase is what a run of its own on the phase's data would see: samples from the first, as many as it takes.
TEST_F(RunFiles, APhaseEndsTheRunAndTheNextBeginsItsData) {
  const std::vector<std::string> words = continuing({"--phase_transition_iterations", "5,8"});
  RunSummary summary = run(experiment(words));
  EXPECT_EQ(summary.end, EndOfRun::kEndOfPhase);
  EXPECT_EQ(summary.num_iterations, 5);
  EXPECT_EQ(run(experiment(words)).num_iterations, 3);
  summary = run(experiment(words));
  EXPECT_EQ(summary.end, EndOfRun::kAllSteps);
  EXPECT_EQ(summary.num_iterations, 4);
  const std::vector<std::string> in_phases = losses();
  ASSERT_EQ(in_phases.size(), 12U);
  // Cyclic data is permuted over the whole text: the first phase has the undivided run's first samples, and the second
  // begins with them again.
  std::filesystem::remove_all(run_folder());
  run(experiment(continuing({})));
  const std::vector<std::string> undivided = losses();
  EXPECT_TRUE(std::equal(in_phases.begin(), in_phases.begin() + 5, undivided.begin()));
  EXPECT_NE(in_phases[5], undivided[5]);
}

TEST_F(RunFiles, PhasesAreAscendingSteps) {
  for (const char* text : {"5,5", "0", "a", "8,5", "5,,6"}) {
    EXPECT_THROW(run_options(experiment(continuing({"--phase_transition_iterations", text}))), ConfigError) << text;
  }
}

TEST_F(RunFiles, HeldOutSetsAreEvaluatedByThemselves) {
  std::ofstream(folder_ / "other.txt") << std::string(3000, 'x');
  prepare({(folder_ / "other.txt").string()}, (folder_ / "other").string());
  const std::string first = (folder_ / "text_text_document").string();
  const std::string second = (folder_ / "other_text_document").string();
  const std::vector<std::string> base = {"--train_iters", "4", "--eval_interval", "4", "--valid_data_path"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> words = base;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  std::vector<double> alone;
  for (const std::string& set : {first, second}) alone.push_back(*run(experiment(with({set}))).valid_loss);
  ASSERT_NE(alone[0], alone[1]);
  const auto several = with(
      {"[" + first + "," + second + "]", "--multiple_validation_sets", "--validation_set_names", "[text,letters]"});
  const RunSummary summary = run(experiment(several));
  EXPECT_DOUBLE_EQ(*summary.valid_loss, (alone[0] + alone[1]) / 2);
  for (const char* name : {"validation-text", "validation-letters", "validation-aggregated"})
    EXPECT_THAT(metrics(), HasSubstr("\"eval_split\":\"" + std::string(name) + "\""));
  EXPECT_THROW(run_options(experiment(with({"[0.5," + first + ",0.5," + second + "]", "--multiple_validation_sets"}))),
               ConfigError);
}

TEST_F(RunFiles, ARunGoesOnFromTheNewerOfItsCheckpoints) {
  const std::vector<std::string> words =
      continuing({"--save_interval", "4", "--non_persistent_save_interval", "1", "--non_persistent_ckpt_type", "global",
                  "--disable_last_saving", "true"});
  run(experiment(words));
  const std::vector<std::string> undisturbed = losses();
  // Only the newest of the short-lived ones stays; that of a step which is saved for good is not made.
  const checkpoint::CheckpointRoot short_lived(checkpoints() / "non_persistent");
  EXPECT_EQ(short_lived.iterations(), (std::vector<std::int64_t>{11}));
  EXPECT_EQ(checkpoint::CheckpointRoot(checkpoints()).iterations(), (std::vector<std::int64_t>{4, 8, 12}));
  std::filesystem::remove_all(checkpoint::CheckpointRoot(checkpoints()).folder(12));
  checkpoint::CheckpointRoot(checkpoints()).set_latest(8);
  {
    const Trainer trainer(experiment(words));
    EXPECT_EQ(trainer.first_iteration(), 11);
    EXPECT_THAT(trainer.start().message, HasSubstr("non_persistent"));
  }
  run(experiment(words));
  EXPECT_EQ(losses(), undisturbed);
  // A damaged one is passed over.
  std::filesystem::remove_all(checkpoint::CheckpointRoot(checkpoints()).folder(12));
  checkpoint::CheckpointRoot(checkpoints()).set_latest(8);
  std::filesystem::resize_file(short_lived.folder(11) / "weights.safetensors", 100);
  EXPECT_EQ(Trainer(experiment(words)).first_iteration(), 8);
}

// Counting changes nothing, and what is counted is what a clip at that height leaves alone.
TEST_F(RunFiles, TheLargestLogitIsCounted) {
  const std::vector<std::string> plain = {"--train_iters", "4", "--eval_iters", "0"};
  const auto losses_with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), plain.begin(), plain.end());
    run(experiment(more));
    return losses();
  };
  const std::vector<std::string> undisturbed = losses_with({});
  EXPECT_THAT(metrics(), Not(HasSubstr("max_attention_logit")));
  EXPECT_EQ(losses_with({"--log_max_attention_logit"}), undisturbed);
  const std::string text = metrics();
  const std::string name = "\"max_attention_logit\":";
  double largest = 0.0;
  int num_found = 0;
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    largest = std::max(largest, std::stod(text.substr(at + name.size())));
    ++num_found;
  }
  EXPECT_EQ(num_found, 4);
  ASSERT_GT(largest, 0.0);
  const auto clipped = [&](double factor) {
    return losses_with({"--qk_clip", "--qk_clip_threshold", std::to_string(largest * factor)});
  };
  EXPECT_EQ(clipped(1.01), undisturbed);
  EXPECT_NE(clipped(0.5), undisturbed);
}

TEST_F(RunFiles, ProgressIsRecordedBesideTheCheckpoints) {
  for (const char* beside : {"false", "true"}) {
    std::filesystem::remove_all(run_folder());
    run(experiment(continuing({"--save_interval", "4", "--log_progress", "--async_save", beside})));
    const std::string text = read_file(checkpoints() / "progress.txt");
    EXPECT_THAT(text, HasSubstr("\tStarting job\n"));
    EXPECT_THAT(text, HasSubstr(beside == std::string("true") ? "Saved async checkpoint\tIteration: 4\n"
                                                              : "Saved checkpoint\tIteration: 4\tJob throughput: "));
    EXPECT_THAT(text, HasSubstr("\tIteration: 12\tJob throughput: "));
  }
}

TEST_F(RunFiles, MlflowHasTheFigures) {
  const config::Experiment what =
      experiment(continuing({"--disable_mlflow", "false", "--mlflow_upload_logs", "--mlflow_experiment_name", "tiny"}));
  {
    Trainer trainer(what);
    Reporter reporter(what.run_folder(), RunOptions::PerLayerLog::kNo);
    reporter.open_mlflow(what, 0);
    trainer.run(reporter);
    reporter.close_mlflow(MlflowRun::Status::kFinished);
  }
  const std::string id(trim(read_file(run_folder() / "mlflow_run_id")));
  std::filesystem::path of_run;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "mlruns")) {
    if (std::filesystem::exists(entry.path() / id)) of_run = entry.path() / id;
  }
  ASSERT_FALSE(of_run.empty());
  EXPECT_EQ(split(read_file(of_run / "metrics/lm loss"), '\n').size(), 13U);
  EXPECT_EQ(read_file(of_run / "params/hidden_size"), "32");
  EXPECT_TRUE(std::filesystem::exists(of_run / "artifacts/logs/metrics.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(of_run / "metrics/perf"));  // asked for by a key of its own
}

// Megatron's groups: norms and biases do not decay, embedding and output layer may have a rate of their own.
TEST_F(RunFiles, TheOptimizersGroupsAreListed) {
  const std::filesystem::path file = folder_ / "of a new folder/groups.json";
  const auto groups_with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--train_iters", "1", "--dump_param_to_param_group_map", file.string()});
    const Trainer trainer(experiment(more));
    return nlohmann::json::parse(read_file(file));
  };
  const nlohmann::json plain = groups_with({});
  const auto group_of = [](const nlohmann::json& all, const std::string& name) {
    return all["groups"][all["parameters"].at(name).get<std::size_t>()];
  };
  const char* kEmbedding = "embedding.word_embeddings.weight";
  const char* kNorm = "decoder.final_layernorm.weight";
  const char* kExperts = "decoder.layers.1.mlp.experts.linear_fc1.weight";
  ASSERT_EQ(plain["groups"].size(), 2U) << plain;
  EXPECT_EQ(group_of(plain, kEmbedding), group_of(plain, kExperts));
  EXPECT_EQ(group_of(plain, kExperts)["wd_mult"], 1.0);
  EXPECT_EQ(group_of(plain, kNorm)["wd_mult"], 0.0);
  // Every trained parameter stands there once, with all of its elements.
  std::int64_t num_elements = 0;
  std::set<std::string> names;
  for (const auto& parameter : model::training_parameters(model::build_model_spec(experiment({})))) {
    if (parameter.trained != model::Trained::kYes) continue;
    num_elements += parameter.num_elements();
    names.insert(parameter.name);
  }
  EXPECT_EQ(
      plain["groups"][0]["num_elements"].get<std::int64_t>() + plain["groups"][1]["num_elements"].get<std::int64_t>(),
      num_elements);
  std::set<std::string> listed;
  for (const auto& [name, group] : plain["parameters"].items()) listed.insert(name);
  EXPECT_EQ(listed, names);

  const nlohmann::json decoupled = groups_with({"--decoupled_lr", "1e-4", "--optimizer", "muon"});
  EXPECT_EQ(group_of(decoupled, kEmbedding)["lr"], "decoupled_lr");
  EXPECT_EQ(group_of(decoupled, kEmbedding)["optimizer"], "adam");
  EXPECT_EQ(group_of(decoupled, kExperts)["lr"], "lr");
  EXPECT_EQ(group_of(decoupled, kExperts)["optimizer"], "muon");
  const nlohmann::json wide = groups_with({"--use_mup", "true", "--mup_base_hidden_size", "16"});
  EXPECT_EQ(group_of(wide, kExperts)["lr_mult"], 0.5);
  EXPECT_EQ(group_of(wide, kEmbedding)["lr_mult"], 1.0);
  write_file(folder_ / "file", "");
  EXPECT_THROW(Trainer(experiment({"--dump_param_to_param_group_map", (folder_ / "file/groups.json").string()})),
               UserError);
}

}  // namespace
}  // namespace primus::train
