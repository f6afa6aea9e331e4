#include "schedule/phases.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.hpp"

namespace primus::schedule {
namespace {

constexpr WeightGrad kAllWeightGrads[] = {WeightGrad::kIncluded, WeightGrad::kLate, WeightGrad::kApart};

double length(const std::vector<Phase>& phases, const PhaseTimes& times) {
  double end = 0.0;
  for (const Span& span : timed(phases, times, times)) end = std::max(end, span.end);
  return end;
}

TEST(PhasesTest, EveryPairIsSound) {
  for (int forward = 0; forward <= 5; ++forward) {
    for (int backward = 0; backward <= 5; ++backward) {
      for (const WeightGrad weight_grad : kAllWeightGrads) {
        EXPECT_NO_THROW(verify(pair_phases(forward, backward, weight_grad), forward, backward, weight_grad));
      }
    }
  }
}

// semantics.md 6.1: what every rank issues, stream by stream.
TEST(PhasesTest, StreamsCarryTheStatedOrder) {
  const auto text = [](const std::vector<Phase>& phases, Stream stream) {
    std::string result;
    for (const Phase& phase : phases) {
      if (phase.stream != stream) continue;
      result += phase.pass == Pass::kForward ? "F." : "B.";
      result += std::string(name(phase.kind)) + " ";
    }
    return result;
  };
  const std::vector<Phase> phases = pair_phases(1, 1, WeightGrad::kIncluded);
  EXPECT_EQ(text(phases, Stream::kExchange), "B.combine F.dispatch B.dispatch F.combine ");
  EXPECT_EQ(text(phases, Stream::kCompute),
            "F.attention B.experts B.experts_weight_grad F.experts B.attention B.attention_weight_grad ");
}

TEST(PhasesTest, ExchangeHidesBeneathArithmetic) {
  const PhaseTimes times{.attention = 4.0,
                         .experts = 4.0,
                         .exchange = 3.0,
                         .attention_backward = 4.0,
                         .experts_backward = 4.0,
                         .attention_weight_grad = 4.0,
                         .experts_weight_grad = 4.0};
  const double arithmetic = 6 * 4.0;
  const double apart = times.forward() + times.backward() + times.weight_grad();
  for (const int layers : {1, 3}) {
    const double paired = length(pair_phases(layers, layers, WeightGrad::kLate), times);
    EXPECT_LT(paired, layers * apart);
    EXPECT_GE(paired, layers * arithmetic);
    EXPECT_DOUBLE_EQ(paired, layers * arithmetic);
  }
}

TEST(PhasesTest, LateWeightGradientsNeverTakeLonger) {
  for (const double exchange : {0.0, 1.0, 3.0, 8.0}) {
    const PhaseTimes times{.attention = 2.0,
                           .experts = 3.0,
                           .exchange = exchange,
                           .attention_backward = 2.5,
                           .experts_backward = 3.0,
                           .attention_weight_grad = 1.0,
                           .experts_weight_grad = 3.0};
    const double late = length(pair_phases(2, 2, WeightGrad::kLate), times);
    const double included = length(pair_phases(2, 2, WeightGrad::kIncluded), times);
    EXPECT_LE(late, included) << exchange;
    EXPECT_LE(included, 2 * (times.forward() + times.backward() + times.weight_grad()));
  }
  const PhaseTimes slow{.attention = 1.0,
                        .experts = 1.0,
                        .exchange = 1.5,
                        .attention_backward = 1.0,
                        .experts_backward = 1.0,
                        .attention_weight_grad = 1.0,
                        .experts_weight_grad = 1.0};
  EXPECT_LT(length(pair_phases(2, 2, WeightGrad::kLate), slow), length(pair_phases(2, 2, WeightGrad::kIncluded), slow));
}

TEST(PhasesTest, VerifyFindsFaults) {
  std::vector<Phase> phases = pair_phases(1, 1, WeightGrad::kIncluded);
  EXPECT_THROW(verify(phases, 2, 1, WeightGrad::kIncluded), InternalError);
  std::vector<Phase> twice = pair_phases(1, 1, WeightGrad::kIncluded);
  twice[1] = twice[0];
  EXPECT_THROW(verify(twice, 1, 1, WeightGrad::kIncluded), InternalError);
  std::vector<Phase> early = pair_phases(1, 1, WeightGrad::kIncluded);
  early[0].after = {3};
  EXPECT_THROW(verify(early, 1, 1, WeightGrad::kIncluded), InternalError);
  std::vector<Phase> stream = pair_phases(1, 1, WeightGrad::kIncluded);
  stream[0].stream = Stream::kCompute;
  EXPECT_THROW(verify(stream, 1, 1, WeightGrad::kIncluded), InternalError);
}

}  // namespace
}  // namespace primus::schedule
