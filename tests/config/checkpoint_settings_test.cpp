// use_checkpoint_args: model settings that a checkpoint brings along.
#include <gmock/gmock.h>

#include "config/resolve_fixture.hpp"

namespace primus::config {
namespace {

using testing::HasSubstr;
using testing::Not;

class CheckpointSettingsTest : public testing::Test {
 protected:
  /// Resolve a model with these words and put it where a checkpoint would have it.
  std::string checkpoint(const std::string& name, const std::vector<std::string>& words) const {
    return fixture_.folder().write(name + "/experiment.json", fixture_.resolve(words).experiment.to_json());
  }
  std::string load() const { return (fixture_.folder().path() / "ckpt").string(); }

  ResolveFixture fixture_;
};

TEST_F(CheckpointSettingsTest, StandInThePlaceOfInheritedOnes) {
  checkpoint("ckpt", {"--hidden_size", "96", "--num_experts", "16", "--rotary_base", "5000", "--lr", "0.5"});
  const Resolution resolution = fixture_.resolve({"--use_checkpoint_args", "--load", load(), "--moe_router_topk", "2"});
  EXPECT_EQ(resolution.experiment.get_int("hidden_size"), 96);
  EXPECT_EQ(resolution.experiment.get_int("num_experts"), 16);
  EXPECT_EQ(resolution.experiment.get_double("rotary_base"), 5000.0);
  EXPECT_NE(resolution.experiment.get_double("lr"), 0.5);  // is no setting of the model
  EXPECT_THAT(ResolveFixture::notes(resolution), HasSubstr("settings come from " + load() + "/experiment.json"));
  // The switch off, nothing is read.
  EXPECT_EQ(fixture_.resolve({"--load", load()}).experiment.get_int("hidden_size"), 64);
}

TEST_F(CheckpointSettingsTest, ContradictWhatAUserWrote) {
  checkpoint("ckpt", {"--hidden_size", "96"});
  const std::string problems = fixture_.problems({"--use_checkpoint_args", "--load", load(), "--hidden_size", "128"});
  EXPECT_THAT(problems, HasSubstr("hidden_size"));
  EXPECT_THAT(problems, HasSubstr("is not what the checkpoint was trained with"));
  EXPECT_THAT(problems, HasSubstr("expected 96"));
  EXPECT_EQ(fixture_.problems({"--use_checkpoint_args", "--load", load(), "--hidden_size", "96"}), "");
}

TEST_F(CheckpointSettingsTest, ComeFromTheStepThatIsLoaded) {
  checkpoint("ckpt/iter_0000010", {"--hidden_size", "32"});
  checkpoint("ckpt/iter_0000020", {"--hidden_size", "96"});
  std::filesystem::create_symlink("iter_0000020", load() + "/latest");
  const std::vector<std::string> words = {"--use_checkpoint_args", "--load", load()};
  EXPECT_EQ(fixture_.resolve(words).experiment.get_int("hidden_size"), 96);
  std::vector<std::string> of_step = words;
  of_step.insert(of_step.end(), {"--ckpt_step", "10"});
  EXPECT_EQ(fixture_.resolve(of_step).experiment.get_int("hidden_size"), 32);
}

TEST_F(CheckpointSettingsTest, TokenizerAndParallelSizesHaveSwitchesOfTheirOwn) {
  checkpoint("ckpt", {"--null_tokenizer_eod_id", "5", "--pipeline_model_parallel_size", "2"});
  const auto resolved = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--use_checkpoint_args", "--load", load()});
    return fixture_.resolve(more).experiment;
  };
  EXPECT_EQ(resolved({}).get_optional_int("null_tokenizer_eod_id"), 5);
  EXPECT_EQ(resolved({}).get_int("pipeline_model_parallel_size"), 1);
  EXPECT_EQ(resolved({"--use_mp_args_from_checkpoint_args"}).get_int("pipeline_model_parallel_size"), 2);
  EXPECT_TRUE(resolved({"--use_tokenizer_model_from_checkpoint_args", "false"}).is_null("null_tokenizer_eod_id"));
}

TEST_F(CheckpointSettingsTest, NeedACheckpoint) {
  EXPECT_THAT(fixture_.problems({"--use_checkpoint_args"}), HasSubstr("needs a checkpoint to read"));
  EXPECT_THAT(ResolveFixture::notes(fixture_.resolve({"--use_checkpoint_args", "--load", load()})),
              HasSubstr("nothing is taken over"));
  fixture_.folder().write("ckpt/experiment.json", "{\"what\": 1}");
  EXPECT_THAT(fixture_.problems({"--use_checkpoint_args", "--load", load()}), HasSubstr("use_checkpoint_args"));
}

}  // namespace
}  // namespace primus::config
