#include "config/resolve.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/resolve_fixture.hpp"

namespace primus::config {
namespace {

using testing::HasSubstr;

TEST(Resolve, MergeOrder) {
  ResolveFixture fixture;
  fixture.write_overrides("mock_data: true\nseq_length: 64\nlr: 1e-3\n");
  const Experiment experiment = fixture.resolve({"--lr", "5e-3"}).experiment;
  // Module preset, then model preset over it, then the experiment, then the command line.
  EXPECT_EQ(experiment.get_int("global_batch_size"), 16);
  EXPECT_EQ(experiment.get_int("num_layers"), 2);
  EXPECT_EQ(experiment.setting("num_layers").origin.layer, Layer::kModelPreset);
  EXPECT_EQ(experiment.get_int("seq_length"), 64);
  EXPECT_EQ(experiment.setting("seq_length").origin.line, 12);
  EXPECT_DOUBLE_EQ(experiment.get_double("lr"), 5e-3);
  EXPECT_TRUE(experiment.is_explicitly_set("lr"));
  EXPECT_FALSE(experiment.is_explicitly_set("hidden_size"));
  EXPECT_EQ(experiment.get_int("kv_lora_rank"), 32);
  EXPECT_EQ(experiment.setting("kv_lora_rank").origin.layer, Layer::kDefault);
  EXPECT_EQ(experiment.run_folder(), "out/lab/ann/run");
}

TEST(Resolve, LastOverrideWinsAndIdentityMayBeOverridden) {
  const ResolveFixture fixture;
  const Experiment experiment = fixture.resolve({"--lr", "1", "--lr=2", "exp_name=other"}).experiment;
  EXPECT_DOUBLE_EQ(experiment.get_double("lr"), 2.0);
  EXPECT_EQ(experiment.exp_name, "other");
}

TEST(Resolve, NormEpsilonOfThePresetIsNotLost) {
  const ResolveFixture fixture;
  const Experiment experiment = fixture.resolve().experiment;
  EXPECT_DOUBLE_EQ(experiment.get_double("layernorm_epsilon"), 1e-6);
  EXPECT_DOUBLE_EQ(experiment.get_double("norm_epsilon"), 1e-6);
}

TEST(Resolve, TypesFollowTheKey) {
  ResolveFixture fixture;
  fixture.write_overrides(
      "mock_data: yes\nmin_lr: 0\ntrain_iters: 1e3\nrecompute_layer_ids: 1\nprofile_ranks: 0,1\n"
      "torch_compile: {enable: false, mode: default}\nmtp_num_layers: None\n");
  const Experiment experiment = fixture.resolve({"--torch_compile.enable", "true"}).experiment;
  EXPECT_TRUE(experiment.get_bool("mock_data"));
  EXPECT_DOUBLE_EQ(experiment.get_double("min_lr"), 0.0);
  EXPECT_EQ(experiment.get_int("train_iters"), 1000);
  EXPECT_EQ(experiment.get_string("recompute_layer_ids"), "1");
  EXPECT_EQ(to_text(experiment.setting("profile_ranks").value), "[0, 1]");
  EXPECT_EQ(to_text(experiment.setting("torch_compile").value), "{enable: true, mode: default}");
  EXPECT_TRUE(experiment.is_null("mtp_num_layers"));
}

TEST(Resolve, DataPathsSplitAtSpaces) {
  ResolveFixture fixture;
  fixture.write_overrides("train_data_path: 0.3 a 0.7 b\nvalid_data_path: [c d]\n");
  const Experiment experiment = fixture.resolve().experiment;
  EXPECT_THAT(experiment.get_strings("train_data_path"), testing::ElementsAre("0.3", "a", "0.7", "b"));
  EXPECT_THAT(experiment.get_strings("valid_data_path"), testing::ElementsAre("c d"));
  EXPECT_TRUE(experiment.get_strings("data_path").empty());
}

TEST(Resolve, ABlockWithoutPresetsIsFlat) {
  ResolveFixture fixture;
  fixture.write_experiment(
      "work_group: a\nuser_name: b\nexp_name: c\nworkspace: d\nmodules:\n  pre_trainer:\n    framework: megatron\n"
      "    num_layers: 3\n    train_iters: 5\n    lr: 1e-3\n    mock_data: true\n");
  EXPECT_EQ(fixture.resolve().experiment.get_int("num_layers"), 3);
}

TEST(Resolve, EnvironmentOfTheExperiment) {
  const test::ScopedVariable home("PRIMUS_TEST_HOME", "/data");
  ResolveFixture fixture;
  fixture.write_experiment("env: {CACHE: $PRIMUS_TEST_HOME/cache, N: 1}\n" +
                           ResolveFixture::experiment_with("mock_data: true\n"));
  const Experiment experiment = fixture.resolve().experiment;
  EXPECT_EQ(experiment.env.at("CACHE"), "/data/cache");
  EXPECT_EQ(experiment.env.at("N"), "1");
}

TEST(Rules, MockData) {
  ResolveFixture fixture;
  fixture.write_overrides("mock_data: true\ntrain_data_path: text\n");
  const Resolution resolution = fixture.resolve({}, Purpose::kTrain, 1);
  EXPECT_EQ(resolution.experiment.get_string("tokenizer_type"), "NullTokenizer");
  EXPECT_EQ(resolution.experiment.get_int("vocab_size"), 131072);
  EXPECT_TRUE(resolution.experiment.get_strings("train_data_path").empty());
  EXPECT_EQ(fixture.resolve({"--vocab_size", "1000"}).experiment.get_int("vocab_size"), 1000);
}

struct Family {
  const char* type;
  const char* model;
  std::int64_t vocabulary;
};

class VocabularyOf : public testing::TestWithParam<Family> {};

TEST_P(VocabularyOf, TheTokenizer) {
  ResolveFixture fixture;
  const Experiment experiment =
      fixture
          .resolve({std::string("--tokenizer_type=") + GetParam().type,
                    std::string("--tokenizer_model=") + GetParam().model, "--mock_data=false"})
          .experiment;
  EXPECT_EQ(experiment.get_int("vocab_size"), GetParam().vocabulary);
}

INSTANTIATE_TEST_SUITE_P(All, VocabularyOf,
                         testing::Values(Family{"ByteTokenizer", "null", 257},
                                         Family{"HuggingFaceTokenizer", "deepseek-ai/DeepSeek-V2-Lite", 102400},
                                         Family{"DeepSeekV2Tokenizer", "deepseek-ai/DeepSeek-V2", 102400},
                                         Family{"DeepSeekV3Tokenizer", "deepseek-ai/DeepSeek-V3", 129280},
                                         Family{"KimiK2Tokenizer", "moonshotai/Kimi-K2-Instruct", 163840},
                                         Family{"HuggingFaceTokenizer", "THUDM/glm-4-9b", 151552},
                                         Family{"HuggingFaceTokenizer", "Qwen/Qwen3-30B-A3B", 151936},
                                         Family{"HuggingFaceTokenizer", "Qwen/Qwen3.5-35B-A3B", 248320},
                                         Family{"HuggingFaceTokenizer", "meta-llama/Llama-3.1-8B", 128256}));

TEST(Rules, InheritedExpertParallelFollowsTheProcesses) {
  const ResolveFixture fixture;
  const Resolution resolution = fixture.resolve({}, Purpose::kTrain, 1);
  EXPECT_EQ(resolution.experiment.get_int("expert_model_parallel_size"), 1);
  EXPECT_THAT(ResolveFixture::notes(resolution),
              HasSubstr("expert_model_parallel_size: 4 -> 1, because of 1 process (--nproc)\n"));
  // A plan is made for the smallest world in which it stands.
  EXPECT_EQ(fixture.resolve().world.size, 4);
}

TEST(Rules, InheritedWayOfComputingIsNotedExplicitOneStops) {
  const ResolveFixture fixture;
  EXPECT_THAT(ResolveFixture::notes(fixture.resolve({}, Purpose::kTrain, 1)),
              HasSubstr("moe_shared_expert_overlap: true is planned; the same numbers are computed without it\n"));
  EXPECT_EQ(fixture.problems({"--moe_shared_expert_overlap"}, Purpose::kTrain, 1),
            "command line: --moe_shared_expert_overlap: planned, not built yet: shared experts beside travelling "
            "tokens (expected false, found true)\n");
  // A plan marks it.
  EXPECT_EQ(fixture.problems({"--moe_shared_expert_overlap"}), "");
}

TEST(Rules, InheritedMathematicsThatIsPlannedStops) {
  ResolveFixture fixture;
  fixture.folder().write("models/megatron/mixed.yaml", "extends: tiny.yaml\nis_hybrid_model: true\n");
  std::string text = ResolveFixture::experiment_with("mock_data: true\n");
  text.replace(text.find("tiny.yaml"), 9, "mixed.yaml");
  fixture.write_experiment(text);
  EXPECT_EQ(fixture.problems({}, Purpose::kTrain, 1),
            "models/megatron/mixed.yaml:2: is_hybrid_model: planned, not built yet: layers other than attention and "
            "MLP (expected false, found true)\n");
  ASSERT_EQ(fixture.resolve().planned.size(), 1U);
}

TEST(Rules, AStageSwitchesItsSetOn) {
  const ResolveFixture fixture;
  const Resolution resolution = fixture.resolve({"--enable_primus_turbo", "--turbo_sync_free_moe_stage", "2"});
  for (const char* key :
       {"moe_use_fused_router_with_aux_score", "moe_permute_fusion", "use_turbo_deepep", "use_turbo_grouped_gemm"}) {
    EXPECT_TRUE(resolution.experiment.get_bool(key)) << key;
  }
  EXPECT_FALSE(resolution.experiment.get_bool("use_turbo_fused_act_with_probs"));
  EXPECT_FALSE(resolution.experiment.get_bool("moe_router_padding_for_quantization"));
  // DeepEP's own needs follow; the preset's overlap yields.
  EXPECT_FALSE(resolution.experiment.get_bool("moe_shared_expert_overlap"));
  EXPECT_EQ(resolution.experiment.get_string("moe_router_dtype"), "fp32");
  EXPECT_THAT(ResolveFixture::notes(resolution),
              HasSubstr("moe_shared_expert_overlap: true -> false, because of use_turbo_deepep\n"));
}

TEST(Rules, InheritedWarmupYieldsToAShortRun) {
  const ResolveFixture fixture;
  const Resolution resolution = fixture.resolve({"--train_iters", "20"});
  EXPECT_EQ(resolution.experiment.get_int("lr_warmup_iters"), 19);
  const Resolution fraction = fixture.resolve({"--lr_warmup_fraction", "0.1"});
  EXPECT_EQ(fraction.experiment.get_int("lr_warmup_iters"), 0);
}

TEST(Rules, SamplesReplaceInheritedSteps) {
  const ResolveFixture fixture;
  const Resolution resolution = fixture.resolve({"--train_samples", "320"});
  EXPECT_TRUE(resolution.experiment.is_null("train_iters"));
  EXPECT_EQ(resolution.experiment.get_int("lr_warmup_iters"), 0);
}

TEST(Rules, BatchPlan) {
  const ResolveFixture fixture;
  const Experiment experiment = fixture.resolve({"--micro_batch_size", "2"}, Purpose::kPlan, 4).experiment;
  const auto plan = batch_plan(experiment, 4);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->data_parallel, 4);
  EXPECT_EQ(plan->accumulation, 2);
  EXPECT_FALSE(batch_plan(experiment, 3));
}

TEST(Resolve, NoEffectKeysThatTheUserWrote) {
  const ResolveFixture fixture;
  const Resolution resolution = fixture.resolve({"--manual_gc", "--manual_gc_interval", "1"});
  ASSERT_EQ(resolution.no_effect.size(), 2U);
  EXPECT_EQ(resolution.no_effect[0].key, "manual_gc");
  EXPECT_EQ(resolution.no_effect[0].text, "there is no Python runtime");
}

TEST(Json, RoundTrip) {
  ResolveFixture fixture;
  fixture.write_experiment(
      "env: {A: \"b\\\"c\"}\n" +
      ResolveFixture::experiment_with(
          "mock_data: true\nlr: 1e-3\nprofile_ranks: [0, 2]\ntorch_compile: {mode: \"default\"}\n"));
  const Experiment experiment = fixture.resolve({"--adam_beta1", "1e-1"}).experiment;
  const std::string text = experiment.to_json();
  const Experiment back = Experiment::from_json(text);
  EXPECT_EQ(back.to_json(), text);
  EXPECT_EQ(back.exp_name, "run");
  EXPECT_EQ(back.env.at("A"), "b\"c");
  EXPECT_DOUBLE_EQ(back.get_double("lr"), 1e-3);
  EXPECT_DOUBLE_EQ(back.get_double("min_lr"), 0.0);
  EXPECT_EQ(back.setting("lr").origin.line, 13);
  EXPECT_EQ(back.setting("adam_beta1").origin.layer, Layer::kCommandLine);
  EXPECT_EQ(back.get_string("moe_layer_freq"), "([0]*1+[1]*1)");
}

std::string failure_of(const std::string& text) {
  try {
    Experiment::from_json(text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// A worker of another build says whose text it cannot read, and what to do.
TEST(Json, OfAnotherBuildNamesBoth) {
  const std::string text = ResolveFixture().resolve().experiment.to_json();
  const std::size_t settings = text.find("\"settings\": {") + std::string("\"settings\": {").size();
  std::string unknown = text;
  unknown.insert(settings, "\"key_of_tomorrow\": {\"value\": 1, \"layer\": \"default\"},");
  // Of this build: only the fault.
  EXPECT_EQ(failure_of(unknown), "resolved experiment cannot be read: unknown key 'key_of_tomorrow'");
  const std::size_t writer = unknown.find("\"writer\": \"") + std::string("\"writer\": \"").size();
  const std::string own = unknown.substr(writer, unknown.find('"', writer) - writer);
  std::string other = unknown;
  other.replace(writer, own.size(), "9.9.9 (keys 01234567)");
  const std::string told = failure_of(other);
  for (const std::string& part : {std::string("key_of_tomorrow"), std::string("written by 9.9.9 (keys 01234567)"),
                                  "this is " + own, std::string("primus-cli and primus-worker of one build")}) {
    EXPECT_NE(told.find(part), std::string::npos) << part << "\n" << told;
  }
  // Before the writer was part of the text.
  std::string older = unknown;
  older.replace(older.find("\"writer\""), 8, "\"nobody\"");
  EXPECT_NE(failure_of(older).find("written by an older build"), std::string::npos) << failure_of(older);
  other.replace(other.find("\"9.9.9 (keys 01234567)\""), 23, "[9, 9]");
  EXPECT_NE(failure_of(other).find("written by an older build"), std::string::npos) << failure_of(other);
}

TEST(Resolve, NoOverridesAtAll) {
  ResolveFixture fixture;
  std::string text = ResolveFixture::experiment_with("");
  text.replace(text.rfind("overrides:"), std::string("overrides:").size(), "overrides: null");
  fixture.write_experiment(text);
  EXPECT_EQ(fixture.problems(), "");
}

TEST(Json, RefusesOtherTexts) {
  for (const char* text : {"", "{", "[]", "{}", R"({"format": "primus-experiment", "version": 2})",
                           R"({"format": "primus-experiment", "version": 1})"}) {
    EXPECT_THROW(Experiment::from_json(text), UserError) << text;
  }
}

TEST(Yaml, ResolvesToItself) {
  ResolveFixture fixture;
  fixture.write_overrides(
      "mock_data: true\nlr: 1e-3\nwandb_project: \"a: b # c\"\nprofile_ranks: [0, 2]\nfp8: null\nconfig_logger_dir: "
      "\"\"\n");
  const Experiment experiment = fixture.resolve({"--train_iters", "20", "--seed", "7"}).experiment;
  fixture.write_experiment(to_yaml(experiment));
  const Experiment again = fixture.resolve().experiment;
  for (const auto& [key, setting] : experiment.settings()) EXPECT_EQ(again.setting(key).value, setting.value) << key;
  EXPECT_EQ(again.settings().size(), experiment.settings().size());
  EXPECT_EQ(again.run_folder(), experiment.run_folder());
}

}  // namespace
}  // namespace primus::config
