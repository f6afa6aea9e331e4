#include "engine/loss_scaler.hpp"

#include <gtest/gtest.h>

namespace primus::engine {
namespace {

using Step = LossScaler::Step;

LossScaleSettings dynamic(double initial) {
  return {.initial = initial, .smallest = 1.0, .window = 3, .hysteresis = 2, .kind = LossScaleSettings::Kind::kDynamic};
}

void repeat(LossScaler& scaler, Step step, int times) {
  for (int i = 0; i < times; ++i) scaler.update(step);
}

TEST(LossScaler, BearsOneOverflowThenHalvesWithEach) {
  LossScaler scaler(dynamic(64.0));
  scaler.update(Step::kOverflow);
  EXPECT_EQ(scaler.scale(), 64.0);
  scaler.update(Step::kOverflow);
  EXPECT_EQ(scaler.scale(), 32.0);
  scaler.update(Step::kOverflow);
  EXPECT_EQ(scaler.scale(), 16.0);
}

TEST(LossScaler, AWindowOfGoodStepsDoublesAndGivesTheHysteresisBack) {
  LossScaler scaler(dynamic(64.0));
  repeat(scaler, Step::kOverflow, 2);
  repeat(scaler, Step::kGood, 2);
  scaler.update(Step::kOverflow);  // the hysteresis is spent, and the good steps are forgotten
  EXPECT_EQ(scaler.scale(), 16.0);
  repeat(scaler, Step::kGood, 3);
  EXPECT_EQ(scaler.scale(), 32.0);
  scaler.update(Step::kOverflow);
  EXPECT_EQ(scaler.scale(), 32.0);
  scaler.update(Step::kOverflow);
  EXPECT_EQ(scaler.scale(), 16.0);
}

TEST(LossScaler, NeverFallsBelowTheSmallest) {
  LossScaler scaler(dynamic(4.0));
  repeat(scaler, Step::kOverflow, 20);
  EXPECT_EQ(scaler.scale(), 1.0);
}

TEST(LossScaler, AConstantScaleStays) {
  LossScaler scaler({.initial = 8.0, .smallest = 8.0});
  repeat(scaler, Step::kOverflow, 5);
  repeat(scaler, Step::kGood, 5000);
  EXPECT_EQ(scaler.scale(), 8.0);
}

}  // namespace
}  // namespace primus::engine
