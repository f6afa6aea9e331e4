// Rotary tables against transformers' own (golden), against tables of each token, and at their limits.
#include "nn/rope_tables.hpp"

#include <gtest/gtest.h>

#include "data/golden_file.hpp"
#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;

/// The spec that a golden case describes.
model::RopeSpec spec_of(const data::GoldenCase& golden) {
  const auto number = [&](const char* key, double otherwise) {
    return golden.has(key) ? std::stod(golden.words(key).at(0)) : otherwise;
  };
  model::RopeSpec rope;
  rope.rotary_dim = golden.integer("rotary_dim");
  rope.base = number("base", 0.0);
  const std::string kind = golden.words("kind").at(0);
  if (kind == "linear") {
    rope.interpolation = number("factor", 0.0);
    return rope;
  }
  rope.type = kind == "yarn" ? model::RopeType::kYarn : model::RopeType::kLlama3;
  rope.scaling_factor = number("factor", 0.0);
  rope.original_max_position = golden.integer("original_max_position_embeddings");
  rope.beta_fast = number("beta_fast", 32.0);
  rope.beta_slow = number("beta_slow", 1.0);
  // Absent: the whole temperature is in cos and sin, none of it in the softmax scale.
  rope.mscale = number("mscale", 1.0);
  rope.mscale_all_dim = number("mscale_all_dim", 0.0);
  rope.rounded_range = number("truncate", 1.0) != 0.0 ? model::Part::kPresent : model::Part::kAbsent;
  return rope;
}

TEST(RopeTablesTest, FrequenciesAndMagnitudeAreThoseOfTransformers) {
  for (const data::GoldenCase& golden : data::golden_cases("rope_tables.txt", "")) {
    SCOPED_TRACE(golden.name);
    const model::RopeSpec rope = spec_of(golden);
    const std::vector<double> frequencies = nn::inverse_frequencies(rope);
    const std::vector<std::string>& expected = golden.words("frequency");
    ASSERT_EQ(frequencies.size(), expected.size());
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      // transformers computes in fp32.
      EXPECT_NEAR(frequencies[i] / std::stod(expected[i]), 1.0, 2e-6) << i;
    }
    const nn::RopeTables tables = nn::rope_tables(rope, 1, at::kDouble);
    EXPECT_NEAR(tables.cos_SP[0][0].item<double>(), std::stod(golden.words("cos_factor").at(0)), 1e-12);
  }
}

TEST(RopeTablesTest, RowsOfPositionsAreTheRowsOfTheTables) {
  const model::RopeSpec rope{.type = model::RopeType::kYarn, .rotary_dim = 16, .scaling_factor = 4.0};
  const nn::RopeTables tables = nn::rope_tables(rope, 9, at::kFloat);
  std::mt19937_64 generator(1);
  const Tensor positions = test::random_int({30}, at::kLong, 0, 9, generator);
  const nn::RopeTables rows = nn::at_positions(tables, positions);
  for (std::int64_t t = 0; t < 30; ++t) {
    const auto position = positions[t].item<std::int64_t>();
    EXPECT_TRUE(at::equal(rows.cos_SP[t], tables.cos_SP[position]));
    EXPECT_TRUE(at::equal(rows.sin_SP[t], tables.sin_SP[position]));
  }
  EXPECT_EQ(nn::without_rotation(tables).sin_SP.abs().max().item<double>(), 0.0);
  EXPECT_EQ(nn::without_rotation(tables).cos_SP.min().item<double>(), 1.0);
}

// A scale of one, or an interpolation of one, is plain rotary embedding.
TEST(RopeTablesTest, ScalingsAtTheirLimitsAreNone) {
  const model::RopeSpec plain{.type = model::RopeType::kRope, .rotary_dim = 32};
  const std::vector<double> expected = nn::inverse_frequencies(plain);
  for (const auto type : {model::RopeType::kYarn, model::RopeType::kLlama3}) {
    model::RopeSpec scaled = plain;
    scaled.type = type;
    const std::vector<double> frequencies = nn::inverse_frequencies(scaled);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(frequencies[i] / expected[i], 1.0, 1e-15);
    EXPECT_EQ(nn::softmax_scale(scaled, 64), 0.125);
  }
}

}  // namespace
}  // namespace primus
