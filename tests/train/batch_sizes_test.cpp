#include "train/batch_sizes.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "train/outlier_watch.hpp"

namespace primus::train {
namespace {

BatchSizes sizes(std::vector<std::pair<const char*, config::Value>> settings) {
  config::Experiment experiment;
  const auto set = [&](const char* key, const config::Value& value) {
    experiment.set(key, value, {config::Layer::kCommandLine, "", 0});
  };
  set("micro_batch_size", {std::int64_t{2}});
  set("global_batch_size", {std::int64_t{12}});
  set("seq_length", {std::int64_t{10}});
  for (const char* key : {"rampup_batch_size", "step_batch_size_schedule"}) set(key, {});
  set("decrease_batch_size_if_needed", {false});
  for (const auto& [key, value] : settings) set(key, value);
  return BatchSizes::from(experiment);
}

config::Value list(std::initializer_list<std::int64_t> numbers) {
  config::Value::List values;
  for (const std::int64_t number : numbers) values.push_back({number});
  return {values};
}

TEST(BatchSizes, OneSize) {
  const BatchSizes one = sizes({});
  EXPECT_TRUE(one.is_constant());
  EXPECT_EQ(one.at(0), 12);
  EXPECT_EQ(one.at(1'000'000), 12);
  EXPECT_EQ(one.steps_of(59), 4);
  EXPECT_EQ(one.samples_of(5), 60);
}

// Megatron's example: from 4 by 4 to 12 in two equal parts of 40 samples; a size lasts until the next place is reached.
TEST(BatchSizes, ARampRisesAfterEqualSharesOfTheSamples) {
  const BatchSizes ramp = sizes({{"rampup_batch_size", list({4, 4, 40})}});
  EXPECT_FALSE(ramp.is_constant());
  EXPECT_EQ(ramp.at(0), 4);
  EXPECT_EQ(ramp.at(19), 4);
  EXPECT_EQ(ramp.at(20), 8);
  EXPECT_EQ(ramp.at(39), 8);
  EXPECT_EQ(ramp.at(40), 12);
  // 5 steps of 4 to 20, 3 of 8 to 44, then 12 each.
  EXPECT_EQ(ramp.samples_of(8), 44);
  EXPECT_EQ(ramp.samples_of(10), 68);
  EXPECT_EQ(ramp.steps_of(68), 10);
  EXPECT_EQ(ramp.steps_of(67), 9);
}

TEST(BatchSizes, PlacesInTokens) {
  const BatchSizes places = sizes({{"step_batch_size_schedule", {std::string("0:2 0.1K:4 1K:6")}}});
  EXPECT_EQ(places.at(9), 2);
  EXPECT_EQ(places.at(10), 4);
  EXPECT_EQ(places.at(100), 6);
  for (std::int64_t steps = 0; steps < 60; ++steps) EXPECT_EQ(places.steps_of(places.samples_of(steps)), steps);
  for (const char* wrong : {"", "5:2", "0:2 0:4", "0:2 20:4 10:6", "0:2 x:4", "0:2 10", "0:0", "0:2 10:"}) {
    EXPECT_THROW(sizes({{"step_batch_size_schedule", {std::string(wrong)}}}), UserError) << wrong;
  }
}

TEST(BatchSizes, AreWholeMicroBatches) {
  const config::Value odd = {std::string("0:3 1K:7")};
  EXPECT_THROW(sizes({{"step_batch_size_schedule", odd}}), UserError);
  const BatchSizes rounded = sizes({{"step_batch_size_schedule", odd}, {"decrease_batch_size_if_needed", {true}}});
  EXPECT_EQ(rounded.at(0), 2);
  EXPECT_EQ(rounded.at(100), 6);
  EXPECT_THROW(sizes({{"global_batch_size", {std::int64_t{1}}}, {"decrease_batch_size_if_needed", {true}}}), UserError);
}

TEST(OutlierWatch, TellsTenfoldValuesAfterAHundred) {
  OutlierWatch watch("loss");
  EXPECT_FALSE(watch.look(std::nan("")));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(watch.look(i == 50 ? 3.0 : 1000.0 / (1000.0 + i)));
  EXPECT_FALSE(watch.look(29.9));
  EXPECT_FALSE(watch.look(INFINITY)) << "that is told as such";
  EXPECT_TRUE(watch.look(30.0));
  EXPECT_TRUE(watch.look(-31.0));
  EXPECT_FALSE(watch.look(1.0));
}

}  // namespace
}  // namespace primus::train
