#include "checkpoint/upcycle.hpp"

#include <cmath>
#include <cstring>
#include <map>

#include "data/temporary_folder.hpp"

namespace primus::checkpoint {
namespace {

/// A dense model in memory; every element a number of its own.
class DenseWeights final : public Weights {
 public:
  explicit DenseWeights(const model::ModelSpec& spec) : Weights(model::model_parameters(spec)) {
    double next = 1.0;
    for (const auto& parameter : parameters()) {
      values_.emplace_back(static_cast<std::size_t>(parameter.num_elements()));
      for (double& value : values_.back()) value = std::sin(next++);
    }
  }
  DType dtype(std::size_t) const override { return DType::kFloat64; }
  void stream(std::size_t parameter, DType dtype, const Sink& sink) const override {
    EXPECT_EQ(dtype, DType::kFloat64);
    sink(std::as_bytes(std::span(values_[parameter])));
  }
  void read(std::size_t parameter, std::int64_t begin, DType, std::span<std::byte> out) const override {
    const auto all = std::as_bytes(std::span(values_[parameter]));
    std::ranges::copy(all.subspan(static_cast<std::size_t>(begin) * sizeof(double), out.size()), out.begin());
  }

 private:
  std::vector<std::vector<double>> values_;
};

model::ModelSpec dense_spec() {
  model::ModelSpec spec;
  spec.hidden_size = 6;
  spec.seq_length = 8;
  spec.vocab_size = spec.padded_vocab_size = 10;
  spec.layers = {model::LayerKind::kDense, model::LayerKind::kDense};
  spec.dense_ffn_hidden_size = 8;
  spec.attention = model::GqaSpec{.num_heads = 2, .num_query_groups = 1, .head_dim = 4};
  return spec;
}

model::ModelSpec expert_spec(std::int64_t granularity) {
  model::ModelSpec spec = dense_spec();
  spec.layers[1] = model::LayerKind::kMoe;
  spec.moe.emplace();
  spec.moe->router.num_experts = 4;
  spec.moe->router.top_k = 2;
  spec.moe->ffn_hidden_size = spec.dense_ffn_hidden_size / granularity;
  return spec;
}

StoredModel dense_model() {
  StoredModel stored;
  stored.folder = "dense";
  stored.spec = dense_spec();
  stored.weights = std::make_unique<DenseWeights>(stored.spec);
  return stored;
}

std::vector<double> values(const Weights& weights, const std::string& name) {
  std::vector<double> all;
  const auto index = weights.find(name);
  EXPECT_TRUE(index.has_value()) << name;
  weights.stream(*index, DType::kFloat64, [&](std::span<const std::byte> bytes) {
    const auto* begin = reinterpret_cast<const double*>(bytes.data());
    all.insert(all.end(), begin, begin + bytes.size() / sizeof(double));
  });
  return all;
}

constexpr const char* kInput = "decoder.layers.1.mlp.experts.linear_fc1.weight";
constexpr const char* kOutput = "decoder.layers.1.mlp.experts.linear_fc2.weight";
constexpr const char* kRouter = "decoder.layers.1.mlp.router.weight";

TEST(Upcycle, ExpertsAreShardsOfTheDenseMlp) {
  const StoredModel dense = dense_model();
  const auto input = values(*dense.weights, "decoder.layers.1.mlp.linear_fc1.weight");
  const auto output = values(*dense.weights, "decoder.layers.1.mlp.linear_fc2.weight");
  for (const std::int64_t granularity : {1, 2, 4}) {
    model::ModelSpec spec = expert_spec(granularity);
    if (granularity == 4) spec.moe->router.top_k = 4;
    const auto made = upcycle(dense, spec, {});
    const std::int64_t width = 8 / granularity;
    const double scale = std::cbrt(static_cast<double>(granularity));
    const auto fc1 = values(*made, kInput);
    const auto fc2 = values(*made, kOutput);
    for (std::int64_t expert = 0; expert < 4; ++expert) {
      const std::int64_t shard = expert % granularity;
      for (std::int64_t half = 0; half < 2; ++half) {
        for (std::int64_t unit = 0; unit < width; ++unit) {
          for (std::int64_t h = 0; h < 6; ++h) {
            const auto here = static_cast<std::size_t>((expert * 2 * width + half * width + unit) * 6 + h);
            const auto there = static_cast<std::size_t>((half * 8 + shard * width + unit) * 6 + h);
            EXPECT_DOUBLE_EQ(fc1[here], scale * input[there]);
          }
        }
      }
      for (std::int64_t h = 0; h < 6; ++h) {
        for (std::int64_t unit = 0; unit < width; ++unit) {
          const auto here = static_cast<std::size_t>((expert * 6 + h) * width + unit);
          EXPECT_DOUBLE_EQ(fc2[here], scale * output[static_cast<std::size_t>(h * 8 + shard * width + unit)]);
        }
      }
    }
    // Shards of a copy are chosen together, copies by different rows.
    const auto router = values(*made, kRouter);
    for (std::int64_t expert = 0; expert < 4; ++expert) {
      for (std::int64_t other = 0; other < 4; ++other) {
        const bool same =
            std::equal(router.begin() + expert * 6, router.begin() + expert * 6 + 6, router.begin() + other * 6);
        EXPECT_EQ(same, expert / granularity == other / granularity);
      }
    }
    for (const char* kept : {"decoder.layers.0.mlp.linear_fc1.weight", "embedding.word_embeddings.weight",
                             "decoder.layers.1.self_attention.linear_qkv.weight", "decoder.final_layernorm.weight"})
      EXPECT_EQ(values(*made, kept), values(*dense.weights, kept)) << kept;
  }
}

TEST(Upcycle, DropsAsManyUnitsAsAskedInEveryExpertAndTheSameInAllMatrices) {
  const StoredModel dense = dense_model();
  const auto plain = upcycle(dense, expert_spec(1), {});
  const auto dropped = upcycle(dense, expert_spec(1), {.drop_fraction = 0.5});
  const auto fc1_before = values(*plain, kInput);
  const auto fc1 = values(*dropped, kInput);
  const auto fc2_before = values(*plain, kOutput);
  const auto fc2 = values(*dropped, kOutput);
  std::set<std::vector<int>> masks;
  for (std::size_t expert = 0; expert < 4; ++expert) {
    std::vector<int> mask;
    for (std::size_t unit = 0; unit < 8; ++unit) {
      const std::size_t gate = (expert * 16 + unit) * 6;
      const std::size_t up = (expert * 16 + 8 + unit) * 6;
      const std::size_t down = expert * 48 + unit;
      const bool is_new = fc1[gate] != fc1_before[gate];
      mask.push_back(is_new ? 1 : 0);
      for (std::size_t h = 0; h < 6; ++h) {
        EXPECT_EQ(fc1[gate + h] != fc1_before[gate + h], is_new);
        EXPECT_EQ(fc1[up + h] != fc1_before[up + h], is_new);
        EXPECT_EQ(fc2[down + 8 * h] != fc2_before[down + 8 * h], is_new);
      }
    }
    EXPECT_EQ(std::count(mask.begin(), mask.end(), 1), 4);
    masks.insert(mask);
  }
  EXPECT_GT(masks.size(), 1U);  // experts differ
}

TEST(Upcycle, NoiseHasTheSizeThatWasAskedForAndFollowsTheSeed) {
  const StoredModel dense = dense_model();
  const auto of = [&](double noise, std::uint64_t seed) {
    return values(*upcycle(dense, expert_spec(1), {.seed = seed, .noise_std = noise}), kInput);
  };
  const auto plain = of(0.0, 1);
  const auto noisy = of(0.1, 1);
  EXPECT_EQ(of(0.1, 1), noisy);
  EXPECT_NE(of(0.1, 2), noisy);
  double squares = 0.0;
  double sum = 0.0;
  double dense_squares = 0.0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    squares += (noisy[i] - plain[i]) * (noisy[i] - plain[i]);
    sum += plain[i];
    dense_squares += plain[i] * plain[i];
  }
  const auto count = static_cast<double>(plain.size());
  const double std = std::sqrt(dense_squares / count - sum / count * sum / count);
  EXPECT_NEAR(std::sqrt(squares / count) / std, 0.1, 0.015);
}

TEST(Upcycle, SizesThatDoNotFitAreNamed) {
  const StoredModel dense = dense_model();
  const auto refused = [&](const model::ModelSpec& spec) {
    return data::user_error([&] { upcycle(dense, spec, {}); });
  };
  model::ModelSpec spec = expert_spec(1);
  spec.moe->ffn_hidden_size = 3;
  EXPECT_NE(refused(spec).find("moe_ffn_hidden_size: does not divide"), std::string::npos);
  spec = expert_spec(2);
  spec.moe->router.num_experts = 5;
  EXPECT_NE(refused(spec).find("num_experts: experts are whole copies"), std::string::npos);
  spec = expert_spec(2);
  spec.moe->router.top_k = 3;
  EXPECT_NE(refused(spec).find("moe_router_topk: a token uses whole copies"), std::string::npos);
  spec = expert_spec(1);
  spec.moe->shared_ffn_hidden_size = 4;
  EXPECT_NE(refused(spec).find("decoder.layers.1.mlp.shared_experts.linear_fc1.weight: has nothing"),
            std::string::npos);
  spec = expert_spec(1);
  spec.hidden_size = 4;
  EXPECT_NE(refused(spec).find("embedding.word_embeddings.weight: has nothing"), std::string::npos);
}

}  // namespace
}  // namespace primus::checkpoint
