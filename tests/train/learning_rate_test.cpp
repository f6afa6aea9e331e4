// Learning-rate curves against their closed forms (semantics.md 2.5).
#include "train/learning_rate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace primus::train {
namespace {

LearningRateSchedule schedule(DecayStyle style) {
  return {.max_rate = 1.0,
          .min_rate = 0.1,
          .warmup_init = 0.2,
          .style = style,
          .warmup_samples = 100,
          .decay_samples = 1100,
          .wsd_decay_samples = 200};
}

TEST(LearningRateTest, WarmUpIsLinearFromItsStart) {
  const LearningRateSchedule cosine = schedule(DecayStyle::kCosine);
  EXPECT_DOUBLE_EQ(cosine.at(0), 0.2);
  EXPECT_DOUBLE_EQ(cosine.at(50), 0.6);
  EXPECT_DOUBLE_EQ(cosine.at(100), 1.0);
}

TEST(LearningRateTest, Shapes) {
  EXPECT_DOUBLE_EQ(schedule(DecayStyle::kConstant).at(5000), 1.0);
  EXPECT_DOUBLE_EQ(schedule(DecayStyle::kLinear).at(600), 0.55);
  EXPECT_DOUBLE_EQ(schedule(DecayStyle::kCosine).at(350), 0.1 + 0.9 * 0.5 * (std::cos(std::numbers::pi / 4) + 1));
  EXPECT_DOUBLE_EQ(schedule(DecayStyle::kInverseSquareRoot).at(400), std::sqrt(100.0 / 400.0));
  EXPECT_DOUBLE_EQ(schedule(DecayStyle::kInverseSquareRoot).at(1100), std::sqrt(100.0 / 1100.0));
  for (const DecayStyle style :
       {DecayStyle::kLinear, DecayStyle::kCosine, DecayStyle::kInverseSquareRoot, DecayStyle::kWsd}) {
    EXPECT_DOUBLE_EQ(schedule(style).at(1101), 0.1);
  }
}

TEST(LearningRateTest, WarmupStableDecay) {
  LearningRateSchedule wsd = schedule(DecayStyle::kWsd);
  EXPECT_DOUBLE_EQ(wsd.at(900), 1.0);
  EXPECT_DOUBLE_EQ(wsd.at(1000), 0.1 + 0.9 * (2.0 * std::pow(0.5, 0.5) - 1.0));
  wsd.wsd_style = WsdStyle::kLinear;
  EXPECT_DOUBLE_EQ(wsd.at(1000), 0.55);
  wsd.wsd_style = WsdStyle::kMinusSqrt;
  EXPECT_DOUBLE_EQ(wsd.at(1000), 0.1 + 0.9 * (1.0 - std::sqrt(0.5)));
  wsd.wsd_style = WsdStyle::kCosine;
  EXPECT_NEAR(wsd.at(1100), 0.1, 1e-12);
}

TEST(WeightDecayTest, RampsFollowMegatronsCurves) {
  using Style = WeightDecaySchedule::Style;
  WeightDecaySchedule ramp{.style = Style::kLinear, .start = 0.1, .end = 0.5, .num_samples = 100};
  EXPECT_DOUBLE_EQ(ramp.at(0), 0.1);
  EXPECT_DOUBLE_EQ(ramp.at(25), 0.2);
  EXPECT_DOUBLE_EQ(ramp.at(100), 0.5);
  EXPECT_DOUBLE_EQ(ramp.at(200), 0.5);
  ramp.style = Style::kCosine;
  EXPECT_NEAR(ramp.at(0), 0.1, 1e-15);
  EXPECT_NEAR(ramp.at(50), 0.3, 1e-15);
  EXPECT_NEAR(ramp.at(25), 0.1 + 0.4 * 0.5 * (std::cos(std::numbers::pi * 0.75) + 1.0), 1e-15);
  const WeightDecaySchedule constant{.style = Style::kConstant, .start = 0.1, .end = 0.1, .num_samples = 100};
  EXPECT_DOUBLE_EQ(constant.at(7), 0.1);
}

TEST(LearningRateTest, WithoutWarmUpItStartsAtTheTop) {
  LearningRateSchedule linear = schedule(DecayStyle::kLinear);
  linear.warmup_samples = 0;
  EXPECT_DOUBLE_EQ(linear.at(0), 1.0);
}

}  // namespace
}  // namespace primus::train
