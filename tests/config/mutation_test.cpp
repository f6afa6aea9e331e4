// Damaged and hostile experiments, overrides and layouts resolve or are refused with a reason; nothing else happens.
// PRIMUS_SOAK=1: 200,000 of each.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "base/text.hpp"
#include "config/fuzz_input.hpp"
#include "config/key_table.hpp"
#include "config/overrides.hpp"
#include "config/resolve_fixture.hpp"
#include "config/yaml_reader.hpp"
#include "support/mutation.hpp"
#include "support/processor_time.hpp"
#include "support/soak.hpp"

namespace primus::config {
namespace {

constexpr unsigned kSeed = 20240229;

int rounds(int in_short) {
  return test::rounds(in_short, 200'000);
}

// What YAML, overrides and layouts mind.
constexpr std::string_view kPieces[] = {"&a ", "*a", "<<: ", "[",    "]",    "{",    "}",        "\n",   "  ",
                                        ": ",  "- ", "\"",   "'",    "${",   "}",    "#",        "|\n",  "---\n",
                                        "\t",  "?",  "!!s ", "\xff", "\xc3", "\r\n", "1e999",    "null", "*9999",
                                        "(",   ")",  "|",    "E",    "t",    "L",    "99999999", "-1",   "\0"};

std::string mutated(std::string text, std::mt19937& random) {
  return test::mutated(std::move(text), random, kPieces);
}

// Every setting that rules compute with, so that a damaged number reaches them.
constexpr const char* kOverrides =
    "mock_data: true\nlr: 1e-3\nprofile_ranks: [0, 2]\nmoe_layer_freq: ([0]*1+[1]*7)\nnum_layers: 8\n"
    "torch_compile: {mode: *x}\nexp_avg_dtype: ${PRIMUS_TEST_UNSET:bf16}\npipeline_model_parallel_size: 2\n"
    "pipeline_model_parallel_layout: Et*2|(t*2|)*2,t*2L\nmicro_batch_size: 1\nglobal_batch_size: 16\n"
    "recompute_layer_ids: 0,3\nrampup_batch_size: [8, 8, 64]\ntrain_samples: "
    "640\nnum_virtual_stages_per_pipeline_rank: 2\n"
    "expert_model_parallel_size: 2\ncontext_parallel_size: 1\nmoe_router_num_groups: 4\nmoe_router_group_topk: 2\n"
    "microbatch_group_size_per_vp_stage: 4\nhierarchical_context_parallel_sizes: [1]\n";

TEST(Mutation, ExperimentsResolveOrAreRefused) {
  std::mt19937 random(kSeed);
  ResolveFixture fixture;
  const std::string original = "env: {A: &x default}\n" + ResolveFixture::experiment_with(kOverrides);
  fixture.write_experiment(original);
  ASSERT_EQ(fixture.problems(), "");
  for (int i = 0; i < rounds(1000); ++i) {
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
  const double begin_s = test::processor_seconds();
  for (int i = 0; i < rounds(20'000); ++i) {
    std::vector<Problem> problems;
    const std::string text = mutated(original, random);
    ASSERT_NO_THROW(read_yaml(text, "f.yaml", problems)) << text;
  }
  EXPECT_LT(test::processor_seconds() - begin_s, 600.0);
}

TEST(Mutation, OverridesResolveOrAreRefused) {
  std::mt19937 random(kSeed);
  const ResolveFixture fixture;
  for (int i = 0; i < rounds(1000); ++i) {
    const std::vector<std::string> words = {mutated("--moe_layer_freq", random),
                                            mutated("([0]*1+[1]*26)", random),
                                            mutated("--torch_compile.mode={a: [b, c]}", random),
                                            mutated("lr=1e-5", random),
                                            mutated("--tensor_model_parallel_size=2", random),
                                            mutated("--micro_batch_size=100000000", random),
                                            mutated("--cp_comm_type=(p2p,a2a)", random)};
    try {
      fixture.resolve(words);
    } catch (const ConfigError&) {
      // Refused with a reason.
    }
  }
}

TEST(Mutation, LayoutsAreReadOrRefused) {
  std::mt19937 random(kSeed);
  constexpr std::string_view kLayouts[] = {"Et*3|(tt|)*29,m|L", "Et*14|t*15|t*15|t*16,L", "E((t|)*2t|)*3L",
                                           "Et|||t*4,m*2,L"};
  for (int i = 0; i < rounds(20'000); ++i) {
    check_layout(mutated(std::string(kLayouts[static_cast<std::size_t>(i) % std::size(kLayouts)]), random));
  }
}

// A value that the key may well take: one of its words, or what other keys take.
std::string random_value(const Key& key, std::mt19937& random) {
  constexpr const char* kValues[] = {"null", "true", "false", "0", "1", "2", "3", "4", "8", "16", "0.5", "1e-4"};
  std::vector<std::string> values(std::begin(kValues), std::end(kValues));
  const bool has_words = key.allowed.find('|') != std::string_view::npos;
  if (has_words) values = split(key.allowed, '|');
  values.emplace_back(key.default_text);
  return values[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random)];
}

// Whatever a few settings are, the rules either refuse them or leave a plan that its readers can read.
TEST(Mutation, RandomSettingsResolveOrAreRefused) {
  std::mt19937 random(kSeed);
  const ResolveFixture fixture;
  std::vector<const Key*> keys;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) keys.push_back(&key);
  }
  int num_resolved = 0;
  for (int i = 0; i < rounds(2'000); ++i) {
    std::vector<std::string> words;
    for (int j = 0; j < 1 + i % 6; ++j) {
      const Key& key = *keys[std::uniform_int_distribution<std::size_t>(0, keys.size() - 1)(random)];
      words.push_back(fmt::format("--{}={}", key.name, random_value(key, random)));
    }
    try {
      const Resolution resolution = fixture.resolve(words);
      const Experiment& experiment = resolution.experiment;
      EXPECT_TRUE(batch_plan(experiment, resolution.world.size)) << fmt::format("{}", fmt::join(words, " "));
      EXPECT_GE(virtual_pipeline_size(experiment), 1);
      EXPECT_NE(experiment.is_null("train_iters"), experiment.is_null("train_samples"));
      ++num_resolved;
    } catch (const ConfigError&) {
      // Refused with a reason.
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << fmt::format("{}", fmt::join(words, " "));
    }
  }
  EXPECT_GT(num_resolved, 100);
}

struct Hostile {
  const char* name;
  std::string text;
  const char* told;  // part of the first message
};

std::string repeated(std::string_view piece, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += piece;
  return text;
}

std::string alias_bomb() {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 20; ++i) {
    const std::string below = " *a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + repeated(below + ",", 9) + below + "]\n";
  }
  return text;
}

std::string merge_bomb() {
  std::string text = "a0: &a0 {x: y}\n";
  for (int i = 1; i < 40; ++i) {
    const std::string below = "*a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + "\n  <<: [" + below + ", " + below +
            "]\n  k: " + below + "\n";
  }
  return text;
}

class HostileFile : public testing::TestWithParam<Hostile> {};

TEST_P(HostileFile, IsRefusedAtOnce) {
  ResolveFixture fixture;
  fixture.write_experiment(GetParam().text);
  const double begin_s = test::processor_seconds();
  const std::string problems = fixture.problems();
  EXPECT_LT(test::processor_seconds() - begin_s, 5.0);
  EXPECT_NE(problems.find(GetParam().told), std::string::npos) << problems.substr(0, 1000);
  EXPECT_LT(problems.size(), 100'000U);
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileFile,
    testing::Values(Hostile{"alias_bomb", alias_bomb(), "aliases expand to more than"},
                    Hostile{"merge_bomb", merge_bomb(), "unknown key"},
                    Hostile{"deep_lists", "a: " + repeated("[", 10'000), "a key must be a plain name"},
                    Hostile{"deep_maps", "a: " + repeated("{b: ", 10'000), "nested deeper than"},
                    Hostile{"deep_dashes", repeated("- ", 10'000) + "x", "nested deeper than"},
                    Hostile{"deep_keys", repeated("? ", 10'000) + "x", "a key must be a plain name"},
                    Hostile{"deep_blocks",
                            [] {
                              std::string text;
                              for (std::size_t i = 0; i < 1'000; ++i) text += std::string(i, ' ') + "a:\n";
                              return text;
                            }(),
                            "nested deeper than"},
                    Hostile{"large_scalar", "a: " + std::string(100'000'000, 'x'), "too large"},
                    Hostile{"large_quoted", "a: \"" + std::string(1'000'000, 'x') + "\"\n", "unknown key"},
                    Hostile{"long_open_quote", "a: \"" + std::string(1'000'000, 'x'), "never closed"},
                    Hostile{"many_entries",
                            [] {
                              std::string text;
                              for (int i = 0; i < 30'000; ++i) text += "k" + std::to_string(i) + ": 1\n";
                              return text;
                            }(),
                            "holds more than"},
                    Hostile{"many_unknown_keys",
                            [] {
                              std::string lines;
                              for (int i = 0; i < 9'000; ++i) lines += "k" + std::to_string(i) + ": 1\n";
                              return ResolveFixture::experiment_with(lines);
                            }(),
                            "unknown key"},
                    Hostile{"invalid_utf8", "work_group: \"\xff\xfe\xc3\"\n", "exp.yaml"},
                    Hostile{"utf16",
                            std::string("\xff\xfe"
                                        "a\0:\0 \0b\0\n\0",
                                        12),
                            "NUL byte"},
                    Hostile{"nul", std::string("a: b\0c\n", 7), "NUL byte"},
                    Hostile{"tags", "a: " + repeated("!!x ", 100'000) + "b", "not valid YAML"},
                    Hostile{"anchors", "a: " + repeated("&a ", 100'000) + "b", "not valid YAML"},
                    Hostile{"documents", repeated("---\n", 100'000), "exp.yaml"},
                    Hostile{"directives", repeated("%YAML 1.2\n", 50'000), "exp.yaml"}),
    [](const auto& hostile) { return hostile.param.name; });

TEST(Hostile, CarriageReturnsAndByteOrderMarksAreNoFaults) {
  std::string text = ResolveFixture::experiment_with("mock_data: true\nlr: 1e-3\n");
  for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 2)) text.insert(at, "\r");
  ResolveFixture fixture;
  fixture.write_experiment("\xef\xbb\xbf" + text);
  EXPECT_EQ(fixture.problems(), "");
}

TEST(Hostile, DevicesAndFoldersAreNoFiles) {
  ResolveFixture fixture;
  for (const char* path : {"/dev/zero", "/dev", "/dev/null"}) {
    EXPECT_THROW(resolve({path, {}, Purpose::kPlan, {}}), ConfigError) << path;
  }
}

TEST(Hostile, OverridesThatAreHugeOrDeep) {
  const ResolveFixture fixture;
  const std::string deep = repeated("[", 10'000) + repeated("]", 10'000);
  for (const std::string& value :
       {deep, std::string(10'000'000, 'x'), "([0]*" + repeated("9", 1'000'000) + ")", repeated("(", 100'000)}) {
    EXPECT_NE(fixture.problems({"--moe_layer_freq", value}), "");
    EXPECT_NE(fixture.problems({"--lr", value}), "");
    EXPECT_NE(fixture.problems({"--" + value.substr(0, 100'000), "1"}), "");
  }
  std::vector<std::string> words(20'000, "--nope=1");
  EXPECT_NE(fixture.problems(words), "");
}

}  // namespace
}  // namespace primus::config
