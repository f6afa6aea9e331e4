#include "train/metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace primus::train {
namespace {

using ::testing::HasSubstr;

IterationRecord sample() {
  return {.iteration = 7,
          .train_iters = 300,
          .consumed_samples = 112,
          .elapsed_ms = 123.44,
          .tokens_per_s = 4567.8,
          .tflops = 0.1234,
          .learning_rate = 1e-4,
          .global_batch_size = 16,
          .lm_loss = 5.95,
          .load_balancing_loss = 1.05,
          .grad_norm = 1.5,
          .num_skipped = 1,
          .num_nan = 1,
          .held_bytes = 3 << 20,
          .reserved_bytes = 4 << 20,
          .expert_loads = {{1, 1.25, 0, {5, 5}, 0.95}, {2, 2.5, 3, {10, 0}, 0.25}}};
}

TEST(MetricsTest, ConsoleLineHasMegatronsShape) {
  EXPECT_EQ(console_line(sample()),
            " iteration        7/     300 | consumed samples:          112 | elapsed time per iteration (ms): 123.4 |"
            " throughput per GPU (TFLOP/s/GPU): 0.1234 | tokens/s/GPU: 4567.8 |"
            " learning rate: 1.000000E-04 | global batch size:    16 | lm loss: 5.950000E+00 |"
            " load_balancing_loss: 1.050000E+00 | loss scale: 1.0 | grad norm: 1.500 |"
            " expert load max/mean: 2.50 | expert load entropy: 0.250 | dead experts: 3 |"
            " number of skipped iterations:   1 | number of nan iterations:   1 | memory: 3.00 MiB |");
}

TEST(MetricsTest, EachPredictionDepthHasALossOfItsOwn) {
  IterationRecord record = sample();
  record.mtp_losses = {6.5, 7.0};
  record.loss_scale = 4096.0;
  record.num_zero_gradients = 12;
  record.params_norm = 2.5;
  EXPECT_THAT(console_line(record), HasSubstr("grad norm: 1.500 | num zeros: 12 | params norm: 2.500 |"));
  EXPECT_THAT(
      console_line(record),
      HasSubstr("lm loss: 5.950000E+00 | mtp_1 loss: 6.500000E+00 | mtp_2 loss: 7.000000E+00 | load_balancing"));
  EXPECT_THAT(console_line(record), HasSubstr("loss scale: 4096.0 |"));
  const nlohmann::json json = nlohmann::json::parse(json_line(record));
  EXPECT_EQ(json["mtp_2_loss"], 7.0);
  EXPECT_EQ(json["loss_scale"], 4096.0);
}

TEST(MetricsTest, WithACapacityTheDroppedShareIsTold) {
  IterationRecord record = sample();
  record.expert_loads[0].num_dropped = 1;
  record.expert_loads[1].num_dropped = 4;
  EXPECT_THAT(console_line(record), HasSubstr("dead experts: 3 | dropped choices: 25.00 % |"));
  EXPECT_EQ(
      expert_lines(record),
      "   layer   1 | expert load max/mean: 1.25 | expert load entropy: 0.950 | dead experts: 0 | dropped choices: "
      "10.00 % |\n"
      "   layer   2 | expert load max/mean: 2.50 | expert load entropy: 0.250 | dead experts: 3 | dropped choices: "
      "40.00 % |\n");
  const nlohmann::json json = nlohmann::json::parse(json_line(record));
  EXPECT_EQ(json["expert_load"][0]["dropped_share"], 0.1);
  const auto values = named_values(record);
  const auto dropped = std::ranges::find(values, "moe/dropped share", &std::pair<std::string, double>::first);
  ASSERT_NE(dropped, values.end());
  EXPECT_EQ(dropped->second, 0.25);
}

TEST(MetricsTest, DenseModelsHaveNoRouterFields) {
  IterationRecord record = sample();
  record.load_balancing_loss.reset();
  record.expert_loads.clear();
  EXPECT_THAT(console_line(record), ::testing::Not(HasSubstr("expert load")));
  EXPECT_EQ(expert_lines(record), "");
  EXPECT_FALSE(nlohmann::json::parse(json_line(record)).contains("expert_load"));
}

TEST(MetricsTest, JsonHoldsEveryLayerAndStaysReadableWithoutNumbers) {
  IterationRecord record = sample();
  record.lm_loss = std::numeric_limits<double>::quiet_NaN();
  const nlohmann::json json = nlohmann::json::parse(json_line(record));
  EXPECT_TRUE(json["lm_loss"].is_null());
  EXPECT_EQ(json["iteration"], 7);
  EXPECT_EQ(json["expert_load"].size(), 2U);
  EXPECT_EQ(json["expert_load"][1]["dead_experts"], 3);
  EXPECT_EQ(json["expert_load"][1]["entropy"], 0.25);
  EXPECT_FALSE(json["expert_load"][1].contains("dropped_share"));
  const nlohmann::json evaluation = nlohmann::json::parse(
      json_line(EvaluationRecord{.iteration = 7, .split = "validation", .loss = 2.0, .num_tokens = 10}));
  EXPECT_EQ(evaluation["eval_loss"], 2.0);
}

}  // namespace
}  // namespace primus::train
