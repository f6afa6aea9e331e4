// Comparing and averaging models whose values are known.
#include "checkpoint/compare.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "checkpoint/average.hpp"
#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/convert.hpp"
#include "data/temporary_folder.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = TensorDifference::Kind;
using Values = std::vector<double>;

/// Weights of given values; a parameter has one axis.
class GivenWeights final : public Weights {
 public:
  struct Parameter {
    std::string name;
    DType dtype = DType::kFloat32;
    Values values;
  };

  explicit GivenWeights(std::vector<Parameter> given) : Weights(descriptors(given)), given_(std::move(given)) {}

  DType dtype(std::size_t i) const override { return given_[i].dtype; }
  void read(std::size_t i, std::int64_t begin, DType dtype, std::span<std::byte> out) const override {
    const auto count = out.size() / static_cast<std::size_t>(size_bytes(dtype));
    const auto values = std::span(given_[i].values).subspan(static_cast<std::size_t>(begin), count);
    convert(DType::kFloat64, std::as_bytes(values), dtype, out);
  }
  void stream(std::size_t i, DType dtype, const Sink& sink) const override {
    std::vector<std::byte> bytes(given_[i].values.size() * static_cast<std::size_t>(size_bytes(dtype)));
    read(i, 0, dtype, bytes);
    sink(bytes);
  }

 private:
  static std::vector<model::ParameterDescriptor> descriptors(const std::vector<Parameter>& given) {
    std::vector<model::ParameterDescriptor> result;
    for (const Parameter& parameter : given) {
      model::ParameterDescriptor& descriptor = result.emplace_back();
      descriptor.name = parameter.name;
      descriptor.shape = {std::ssize(parameter.values)};
    }
    return result;
  }

  std::vector<Parameter> given_;
};

StoredModel model_of(std::vector<GivenWeights::Parameter> given, const fs::path& folder = "nowhere") {
  StoredModel model;
  model.folder = folder;
  model.weights = std::make_unique<GivenWeights>(std::move(given));
  return model;
}

Comparison compare_quietly(const StoredModel& first, const StoredModel& second) {
  return compare(first, second, [](std::int64_t, std::int64_t) {});
}

TEST(Compare, MeasuresValues) {
  const Comparison comparison =
      compare_quietly(model_of({{"a", DType::kFloat32, {1, 2, 3, 4}}, {"b", DType::kFloat32, {5, 6}}}),
                      model_of({{"b", DType::kFloat32, {5, 6}}, {"a", DType::kFloat32, {1, 2.5, 3, 3}}}));
  EXPECT_EQ(comparison.num_equal, 1);
  ASSERT_EQ(comparison.tensors.size(), 1U);
  const TensorDifference& a = comparison.tensors.front();
  EXPECT_EQ(a.kind, Kind::kOtherValues);
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.num_elements, 4);
  EXPECT_EQ(a.num_different, 2);
  EXPECT_EQ(a.largest, 1.0);
  EXPECT_NEAR(*a.relative, std::sqrt(0.25 + 1.0) / std::sqrt(1 + 6.25 + 9 + 9), 1e-15);
}

TEST(Compare, SeesSignsAndWhatIsNoNumber) {
  const double nan = std::nan("");
  const Comparison comparison = compare_quietly(model_of({{"zero", DType::kFloat32, {0.0, 1}},
                                                          {"nan", DType::kFloat32, {nan, 1}},
                                                          {"one", DType::kFloat32, {nan, 1}},
                                                          {"inf", DType::kFloat32, {HUGE_VAL}}}),
                                                model_of({{"zero", DType::kFloat32, {-0.0, 1}},
                                                          {"nan", DType::kFloat32, {nan, 1}},
                                                          {"one", DType::kFloat32, {2, 1}},
                                                          {"inf", DType::kFloat32, {HUGE_VAL}}}));
  ASSERT_EQ(comparison.tensors.size(), 2U);
  EXPECT_EQ(comparison.tensors[0].name, "zero");
  EXPECT_EQ(comparison.tensors[0].largest, 0.0);
  EXPECT_EQ(comparison.tensors[1].name, "one");
  EXPECT_TRUE(std::isnan(comparison.tensors[1].largest));
  EXPECT_EQ(comparison.tensors[1].num_different, 1);
}

TEST(Compare, NamesShapesTypesAndAbsence) {
  const Comparison comparison = compare_quietly(
      model_of({{"a", DType::kFloat32, {1, 2}}, {"b", DType::kFloat32, {1}}, {"c", DType::kFloat32, {1}}}),
      model_of({{"a", DType::kFloat32, {1}}, {"b", DType::kBFloat16, {1}}, {"d", DType::kFloat32, {1}}}));
  ASSERT_EQ(comparison.tensors.size(), 4U);
  EXPECT_EQ(comparison.tensors[0].kind, Kind::kOtherShape);
  EXPECT_EQ(comparison.tensors[0].first, "F32 [2]");
  EXPECT_EQ(comparison.tensors[1].kind, Kind::kOtherType);
  EXPECT_EQ(comparison.tensors[1].second, "BF16 [1]");
  EXPECT_EQ(comparison.tensors[1].num_different, 0);
  EXPECT_EQ(comparison.tensors[2].kind, Kind::kOnlyInFirst);
  EXPECT_EQ(comparison.tensors[3].kind, Kind::kOnlyInSecond);
  EXPECT_EQ(comparison.tensors[3].name, "d");
}

// ---- of training ----

TensorSource state(const std::string& kind, const char* type, std::vector<std::uint8_t> bytes, std::int64_t elements) {
  return {"w", kind, find_element_type(type), {elements}, [bytes](const Sink& sink) {
            sink(std::as_bytes(std::span(bytes)));
          }};
}

TEST(Compare, ComparesWhatTrainingAdds) {
  const data::TemporaryFolder folder;
  // Field by field: GCC 12 takes the fields that a list of initialisers leaves out for uninitialised.
  CheckpointContent content;
  content.iteration = 7;
  content.consumed_samples = 70;
  content.experiment_json = "{}\n";
  content.training.schedule = {{"lr", "0.001"}};
  content.training.log_interval.seconds = 1.5;
  const std::vector<std::uint8_t> two = {0, 0, 0, 64};  // 2.0F
  const std::vector<std::uint8_t> three = {0, 0, 64, 64};
  content.tensors = {state(kMaster, "F32", two, 1), state(kFirstMoment, "F8_E4M3", {1, 2, 3}, 3),
                     state(kSecondMoment, "F32", two, 1)};
  write_training_checkpoint(folder / "a", content);
  content.training.log_interval.seconds = 9.0;  // of the clock: no difference
  write_training_checkpoint(folder / "same", content);
  content.iteration = 8;
  content.training.schedule = {{"lr", "0.002"}, {"min_lr", "0"}};
  content.tensors = {state(kMaster, "F32", three, 1), state(kFirstMoment, "F8_E4M3", {1, 9, 9}, 3)};
  write_training_checkpoint(folder / "b", content);

  const StoredModel a = model_of({}, folder / "a");
  EXPECT_TRUE(compare_quietly(a, model_of({}, folder / "same")).is_equal());
  const Comparison comparison = compare_quietly(a, model_of({}, folder / "b"));
  ASSERT_EQ(comparison.tensors.size(), 3U);
  EXPECT_EQ(comparison.tensors[0].part, kMaster);
  EXPECT_EQ(comparison.tensors[0].largest, 1.0);
  EXPECT_EQ(comparison.tensors[1].part, kFirstMoment);
  EXPECT_EQ(comparison.tensors[1].num_different, 2);
  EXPECT_FALSE(comparison.tensors[1].relative.has_value());  // bytes, without their scales no numbers
  EXPECT_EQ(comparison.tensors[2].kind, Kind::kOnlyInFirst);
  std::vector<std::string> fields;
  for (const FieldDifference& field : comparison.fields)
    fields.push_back(field.name + " " + field.first + " " + field.second);
  EXPECT_THAT(fields, ElementsAre("iteration 7 8", "schedule.lr 0.001 0.002", "schedule.min_lr  0"));
}

// ---- the mean ----

Values values_of(const Weights& weights, std::size_t parameter, DType dtype) {
  Values values;
  weights.stream(parameter, dtype, [&](std::span<const std::byte> bytes) {
    const std::size_t count = bytes.size() / static_cast<std::size_t>(size_bytes(dtype));
    Values part(count);
    convert(dtype, bytes, DType::kFloat64, std::as_writable_bytes(std::span(part)));
    values.insert(values.end(), part.begin(), part.end());
  });
  return values;
}

TEST(Average, IsTheWeightedMeanRoundedOnce) {
  std::vector<StoredModel> models;
  models.push_back(model_of({{"a", DType::kFloat32, {1, 3}}, {"b", DType::kFloat32, {256}}}));
  models.push_back(model_of({{"b", DType::kFloat32, {257}}, {"a", DType::kFloat32, {5, 7}}}));
  const auto mean = average(models, {0.75, 0.25});
  EXPECT_THAT(values_of(*mean, *mean->find("a"), DType::kFloat32), ElementsAre(2.0, 4.0));
  EXPECT_THAT(values_of(*mean, *mean->find("b"), DType::kFloat64), ElementsAre(256.25));
  EXPECT_THAT(values_of(*mean, *mean->find("b"), DType::kBFloat16), ElementsAre(256.0));
  EXPECT_EQ(mean->dtype(0), DType::kFloat32);
}

TEST(Average, GoesThroughLongParametersInBlocks) {
  constexpr std::size_t kCount = (std::size_t{1} << 20) + 5;
  Values ramp(kCount);
  for (std::size_t i = 0; i < kCount; ++i) ramp[i] = static_cast<double>(i % 1000);
  std::vector<StoredModel> models;
  models.push_back(model_of({{"a", DType::kFloat32, Values(kCount, 1.0)}}));
  models.push_back(model_of({{"a", DType::kFloat32, ramp}}));
  const Values mean = values_of(*average(models, {0.5, 0.5}), 0, DType::kFloat32);
  ASSERT_EQ(mean.size(), kCount);
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(mean[i], (1.0 + ramp[i]) / 2.0) << i;
}

TEST(Average, NamesParametersThatDoNotFit) {
  std::vector<StoredModel> models;
  models.push_back(model_of({{"a", DType::kFloat32, {1, 3}}, {"b", DType::kFloat32, {1}}}, "first"));
  models.push_back(model_of({{"a", DType::kFloat32, {1}}, {"c", DType::kFloat32, {1}}}, "second"));
  const std::string message = data::user_error([&] { average(models, {0.5, 0.5}); });
  EXPECT_THAT(message, HasSubstr("a: has another shape than in second"));
  EXPECT_THAT(message, HasSubstr("b: is a parameter that second does not have"));
  EXPECT_THAT(message, HasSubstr("c: is missing"));
}

}  // namespace
}  // namespace primus::checkpoint
