// Damaged experiments and overrides resolve or are refused with a reason; nothing else happens.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "config/overrides.hpp"
#include "config/resolve_fixture.hpp"
#include "config/yaml_reader.hpp"

namespace primus::config {
namespace {

constexpr unsigned kSeed = 20240229;

// One to four small injuries: a byte changed, a piece removed, doubled or replaced by something that YAML cares about.
std::string mutated(std::string text, std::mt19937& random) {
  constexpr std::string_view kPieces[] = {"&a ", "*a",    "<<: ", "[",      "]",    "{",    "}",     "\n",
                                          "  ",  ": ",    "- ",   "\"",     "'",    "${",   "}",     "#",
                                          "|\n", "---\n", "\t",   "!!str ", "\xff", "\xc3", "1e999", "null"};
  const auto below = [&](std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
  };
  for (std::size_t i = 1 + below(4); i > 0 && !text.empty(); --i) {
    const std::size_t at = below(text.size());
    const std::size_t size = std::min(text.size() - at, 1 + below(12));
    switch (below(4)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.erase(at, size);
        break;
      case 2:
        text.insert(at, text.substr(below(text.size()), size));
        break;
      default:
        text.insert(at, kPieces[below(std::size(kPieces))]);
    }
  }
  return text;
}

TEST(Mutation, ExperimentsResolveOrAreRefused) {
  std::mt19937 random(kSeed);
  ResolveFixture fixture;
  const std::string original =
      "env: {A: &x b}\n" + ResolveFixture::experiment_with(
                               "mock_data: true\nlr: 1e-3\nprofile_ranks: [0, 2]\nmoe_layer_freq: ([0]*1+[1]*1)\n"
                               "torch_compile: {mode: *x}\nexp_avg_dtype: ${PRIMUS_TEST_UNSET:bf16}\n");
  fixture.write_experiment(original);
  ASSERT_EQ(fixture.problems(), "");
  for (int i = 0; i < 300; ++i) {
    const std::string text = mutated(original, random);
    fixture.write_experiment(text);
    try {
      fixture.resolve();
    } catch (const ConfigError& error) {
      for (const Problem& problem : error.problems()) EXPECT_FALSE(problem.message.empty()) << text;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << text;
    }
  }
}

TEST(Mutation, YamlIsReadOrRefusedInTime) {
  std::mt19937 random(kSeed);
  const std::string original =
      "a: &a {b: [1, 2, {c: d}], e: 'f'}\ng:\n  - *a\n  - <<: *a\n    h: \"i\\n\"\nj: |\n  k\n  l\n";
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20'000; ++i) {
    std::vector<Problem> problems;
    const std::string text = mutated(original, random);
    ASSERT_NO_THROW(read_yaml(text, "f.yaml", problems)) << text;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(Mutation, OverridesAreReadOrRefused) {
  std::mt19937 random(kSeed);
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<std::string> words = {mutated("--moe_layer_freq", random), mutated("([0]*1+[1]*26)", random),
                                            mutated("--torch_compile.mode={a: [b, c]}", random),
                                            mutated("lr=1e-5", random)};
    std::vector<Problem> problems;
    ASSERT_NO_THROW(parse_overrides(words, problems));
  }
}

}  // namespace
}  // namespace primus::config
