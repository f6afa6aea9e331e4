// DeepSeek-V4's attention against transformers' own (tools/golden/compressed_attention.py), and what is its alone:
// indexers that are taught or not, evaluation, memory that grows with the sequence alone. Layers and models of random
// sizes are in mixer_test.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "model/op_scratch.hpp"
#include "nn/compressed_attention.hpp"
#include "nn/mixer_specs.hpp"
#include "nn/model_run.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

/// One case of the golden file.
struct GoldenCase {
  std::string name;
  model::BatchShape batch;
  std::int64_t ratio = 0;
  std::vector<double> y, dx;
  struct Weight {
    int number;
    std::string name;
    std::vector<double> gradient;  // empty: none flows
  };
  std::vector<Weight> weights;
};

std::vector<double> numbers(std::istringstream& line) {
  std::vector<double> values;
  for (double value = 0.0; line >> value;) values.push_back(value);
  return values;
}

std::vector<GoldenCase> golden_cases() {
  std::ifstream file(std::string(PRIMUS_SOURCE_DIR) + "/tools/golden/compressed_attention.txt");
  std::vector<GoldenCase> cases;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string key;
    line >> key;
    if (key == "case") {
      std::getline(line >> std::ws, cases.emplace_back().name);
    } else if (key == "sizes") {
      line >> cases.back().batch.num_sequences >> cases.back().batch.seq_length >> cases.back().ratio;
    } else if (key == "y") {
      cases.back().y = numbers(line);
    } else if (key == "dx") {
      cases.back().dx = numbers(line);
    } else if (key == "parameter") {
      GoldenCase::Weight& weight = cases.back().weights.emplace_back();
      line >> weight.number >> weight.name;
    } else if (key == "gradient") {
      cases.back().weights.back().gradient = numbers(line);
    }
  }
  return cases;
}

/// The file's formula, rounded to fp32 as there.
Tensor formula(int number, at::IntArrayRef shape, double scale) {
  Tensor values = at::empty(shape, at::kDouble);
  auto* data = values.data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const double angle = 1.0 + number + 0.37 * static_cast<double>(i + 1) * (number + 2);
    data[i] = static_cast<double>(static_cast<float>(scale * std::sin(angle)));
  }
  return values;
}

model::ModelSpec golden_spec(std::int64_t ratio) {
  model::ModelSpec spec;
  spec.hidden_size = 12;
  spec.layers = {model::LayerKind::kDense};
  spec.mixers = {model::MixerKind::kCompressed};
  spec.norm_epsilon = 1e-6;
  spec.rope = {.type = model::RopeType::kRope, .rotary_dim = 4, .pairs = model::RopePairs::kNeighbours};
  spec.compressed = {.num_heads = 4,
                     .head_dim = 10,
                     .q_lora_rank = 6,
                     .output_groups = 2,
                     .output_rank = 3,
                     .window = 5,
                     .sinks = model::Part::kPresent,
                     .ratios = {ratio},
                     .entry_rope = {.type = model::RopeType::kYarn,
                                    .rotary_dim = 4,
                                    .base = 500.0,
                                    .scaling_factor = 4.0,
                                    .original_max_position = 32,
                                    .mscale = 0.0},
                     .indexer = {.num_heads = 7, .head_dim = 6, .top_k = 2}};
  return spec;
}

/// Rows of `tensor` that are the published tensor `name`, in a parameter of ours.
struct Place {
  nn::Parameter* parameter = nullptr;
  model::HuggingFaceSlice slice;
  Tensor of(const Tensor& whole) const { return whole.narrow(0, slice.begin, slice.end - slice.begin); }
};

Place place_of(nn::ParameterStore& store, const std::string& name) {
  for (const auto& parameter : store.all()) {
    for (const model::HuggingFaceSlice& slice : parameter->descriptor.hugging_face) {
      if (slice.name == "model.layers.0.self_attn." + name) return {parameter.get(), slice};
    }
  }
  return {};
}

TEST(CompressedAttentionGolden, OutputsAndGradientsAreThoseOfTransformers) {
  const std::vector<GoldenCase> cases = golden_cases();
  ASSERT_EQ(cases.size(), 4U);
  for (const GoldenCase& c : cases) {
    SCOPED_TRACE(c.name);
    const model::ModelSpec spec = golden_spec(c.ratio);
    const model::NumericPolicy policy = model::float64_policy();
    nn::ParameterStore store(model::mixer_parameters(spec, 0), policy, 1);
    for (const GoldenCase::Weight& weight : c.weights) {
      const Place place = place_of(store, weight.name);
      ASSERT_NE(place.parameter, nullptr) << weight.name;
      Tensor rows = place.of(place.parameter->weight);
      const bool is_norm = weight.name.ends_with("norm.weight");
      rows.copy_(formula(weight.number, rows.sizes(), 0.6).add(is_norm ? 1.0 : 0.0));
    }
    nn::CompressedAttention attention(spec, 0, store);
    const nn::StepContext step = step_context(spec, c.batch, {}, at::kDouble, nn::WeightGradTiming::kWithBackward);
    nn::Saved saved(model::mixer_saved(spec, policy, c.batch, 0));
    const Tensor x = formula(50, {c.batch.num_tokens(), 12}, 1.0);
    Tensor y = at::zeros_like(x);
    attention.forward(x, saved, step, y);
    Tensor dx = poisoned({c.batch.num_tokens(), 12}, at::kDouble);
    attention.backward(formula(51, {c.batch.num_tokens(), 12}, 1.0), x, saved, step, dx);

    // The other side computes in fp32.
    const auto expect_near = [](const Tensor& ours, const std::vector<double>& theirs, const std::string& what) {
      const Tensor expected = at::from_blob(const_cast<double*>(theirs.data()), ours.sizes(), at::kDouble);
      EXPECT_LE(relative_error(ours, expected), 1e-5) << what;
    };
    ASSERT_EQ(static_cast<std::int64_t>(c.y.size()), y.numel());
    expect_near(y, c.y, "y");
    expect_near(dx, c.dx, "dx");
    for (const GoldenCase::Weight& weight : c.weights) {
      const Place place = place_of(store, weight.name);
      const Tensor gradient = place.of(place.parameter->main_grad);
      if (weight.gradient.empty() || gradient.numel() == 0) {
        EXPECT_EQ(gradient.abs().max().item<double>(), 0.0) << weight.name;
      } else {
        expect_near(gradient, weight.gradient, weight.name);
      }
    }
  }
}

/// Four layers of all kinds, and a prediction depth in every other model.
model::ModelSpec deep_spec(std::uint64_t seed) {
  model::ModelSpec spec = random_spec(seed);
  using enum model::LayerKind;
  spec.layers = {kDense, kMoe, kMoe, kDense};
  spec.num_mtp_layers = static_cast<std::int64_t>(seed % 2);
  randomise_mixers(spec, seed);
  spec.mixers.assign(4, model::MixerKind::kCompressed);
  spec.compressed.ratios = {0, 4, 3, 4, 2};
  return spec;
}

class CompressedAttentionModel : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
  }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 60; }
};

TEST_P(CompressedAttentionModel, LossesAndEveryGradientMatchAutograd) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = deep_spec(seed());
  spec.num_hash_layers = GetParam() % 3;
  expect_step_matches_autograd(spec, {.num_sequences = 2, .seq_length = 7 + 2 * GetParam()}, generator);
}

TEST_P(CompressedAttentionModel, AnIndexerThatIsNotTaughtStandsStill) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = deep_spec(seed());
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 21};
  const Data data = random_data(spec, batch, generator);
  for (const double coefficient : {0.0, 0.4}) {
    spec.compressed.indexer.loss_coefficient = coefficient;
    Rig rig(spec, model::float64_policy(), model::LossFusion::kFused, batch);
    const engine::StepResult result = rig.step(data, batch.num_sequences);
    EXPECT_EQ(result.indexer_loss.has_value(), coefficient > 0.0);
    double largest = 0.0;
    for (const auto& parameter : rig.store.all()) {
      if (parameter->descriptor.name.find(".indexer.") == std::string::npos) continue;
      largest = std::max(largest, parameter->main_grad.abs().max().item<double>());
    }
    EXPECT_EQ(largest > 0.0, coefficient > 0.0);
  }
}

TEST_P(CompressedAttentionModel, EvaluationIsTrainingsForwardAndKeepsNothing) {
  std::mt19937_64 generator(seed());
  expect_evaluation_is_trainings_forward(deep_spec(seed()), {.num_sequences = 2, .seq_length = 25}, generator);
}

TEST_P(CompressedAttentionModel, TrainsInBf16) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = deep_spec(seed());
  spec.num_hash_layers = 2;
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 25};
  const Data data = random_data(spec, batch, generator);
  const model::NumericPolicy bf16{.parameters = DType::kBFloat16, .activations = DType::kBFloat16};
  Rig rig(spec, bf16, model::LossFusion::kFused, batch);
  Rig wide(spec, {}, model::LossFusion::kFused, batch);
  const double first = rig.step(data, batch.num_sequences, 1e-2).loss;
  EXPECT_NEAR(first, wide.step(data, batch.num_sequences).loss, 0.05 * first);
  double last = first;
  for (int i = 0; i < 10; ++i) last = rig.step(data, batch.num_sequences, 1e-2).loss;
  EXPECT_LT(last, first);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CompressedAttentionModel, ::testing::Range(0, 10));

/// What forward and backward take for a moment grows with the sequence, not with its square: of a sequence eight times
/// as long, at most about eight times as much, though every query sees a quarter as many entries as there are tokens.
TEST(CompressedAttentionFixed, LongSequencesHoldNoSquares) {
  const auto scratch = [](std::int64_t length) {
    const model::AttentionSizes sizes{1, length, 4, 1, 64, 64};
    const model::OpScratch ops;
    return static_cast<double>(std::max(ops.compressed_attention_forward(sizes, length / 4, DType::kFloat32),
                                        ops.compressed_attention_backward(sizes, length / 4, DType::kFloat32)));
  };
  EXPECT_LE(scratch(1 << 20), 8.1 * scratch(1 << 17));
}

}  // namespace
}  // namespace primus
