// The shipped presets and examples resolve, and mean the models that they are named after.
#include <gtest/gtest.h>

#include "config/resolve.hpp"
#include "config/test_folder.hpp"
#include "model/model_spec.hpp"
#include "model/parameters.hpp"

namespace primus::config {
namespace {

const std::filesystem::path kSource = PRIMUS_SOURCE_DIR;

class Example : public testing::TestWithParam<const char*> {};

TEST_P(Example, Resolves) {
  const Resolution resolution = resolve({kSource / "examples" / GetParam(), {}, Purpose::kPlan, {}});
  EXPECT_GT(model::count_parameters(model::build_model_spec(resolution.experiment)).total, 0);
  EXPECT_TRUE(batch_plan(resolution.experiment, resolution.world.size));
}

INSTANTIATE_TEST_SUITE_P(All, Example,
                         testing::Values("quickstart/deepseek_v2_tiny.yaml",
                                         "moe_package/configs/MI355X/deepseek_v2_lite-pretrain-baseline.yaml",
                                         "moe_package/configs/MI355X/deepseek_v2-pretrain-baseline.yaml",
                                         "megatron/configs/MI355X/deepseek_v2_lite-BF16-pretrain.yaml",
                                         "megatron/configs/MI355X/deepseek_v3-BF16-pretrain.yaml"));

struct Published {
  const char* preset;
  std::int64_t num_parameters;
};

class ModelPreset : public testing::TestWithParam<Published> {};

TEST_P(ModelPreset, HasThePublishedParameters) {
  const test::TestFolder folder;
  const std::string file = folder.write(
      "exp.yaml", std::string("work_group: a\nuser_name: b\nexp_name: c\nworkspace: d\nmodules:\n  pre_trainer:\n"
                              "    framework: megatron\n    config: pre_trainer\n    model: ") +
                      GetParam().preset + "\n");
  const Resolution resolution = resolve({file, {}, Purpose::kPlan, {}});
  EXPECT_EQ(model::count_parameters(model::build_model_spec(resolution.experiment)).total, GetParam().num_parameters);
}

INSTANTIATE_TEST_SUITE_P(All, ModelPreset,
                         testing::Values(Published{"deepseek_v2_lite", 15'706'484'224},
                                         Published{"deepseek_v2", 235'741'434'880},
                                         Published{"deepseek_v3", 671'026'419'200}));

TEST(ModulePreset, ChainOfThePreTrainer) {
  const Experiment experiment =
      resolve({kSource / "examples/quickstart/deepseek_v2_tiny.yaml", {}, Purpose::kPlan, {}}).experiment;
  EXPECT_TRUE(experiment.get_bool("trainable"));
  EXPECT_EQ(experiment.get_string("dataloader_type"), "cyclic");
  EXPECT_EQ(experiment.get_string("lr_decay_style"), "cosine");
  EXPECT_DOUBLE_EQ(experiment.get_double("adam_eps"), 1e-8);
  EXPECT_DOUBLE_EQ(experiment.get_double("norm_epsilon"), 1e-6);
  EXPECT_EQ(to_text(experiment.setting("torch_compile").value),
            "{backend: inductor, enable: false, fullgraph: false, mode: default}");
}

// The quickstart's data does not exist here; everything else about it must be ready to run.
TEST(Quickstart, TrainsInThisRelease) {
  const Resolution resolution = resolve({kSource / "examples/quickstart/deepseek_v2_tiny.yaml",
                                         {"--mock_data"},
                                         Purpose::kTrain,
                                         WorldSize{1, "--nproc"}});
  EXPECT_TRUE(resolution.planned.empty());
  EXPECT_EQ(batch_plan(resolution.experiment, 1)->data_parallel, 1);
}

TEST(DeepSeekV3, RefusesToTrainByNamingThePart) {
  try {
    resolve({kSource / "examples/megatron/configs/MI355X/deepseek_v3-BF16-pretrain.yaml",
             {"--pipeline_model_parallel_size=1", "--expert_model_parallel_size=1"},
             Purpose::kTrain,
             WorldSize{1, "--nproc"}});
    FAIL() << "expected a refusal";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    for (const char* part : {"use_turbo_deepep"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part;
    }
  }
}

}  // namespace
}  // namespace primus::config
