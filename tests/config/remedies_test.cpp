// What a message says to write instead is legal: who does it does not meet the same problem again.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/text.hpp"
#include "config/key_table.hpp"
#include "config/resolve_fixture.hpp"

namespace primus::config {
namespace {

using Words = std::vector<std::string>;

/// A key and the value that a problem proposes for it.
struct Remedy {
  std::string key;
  std::string value;
};

std::string plain_key(const std::string& key) {
  return key.substr(key.find_last_of(".-") + 1);  // of "--lr" and "modules.pre_trainer.overrides.lr"
}

/// "nearest: 4", "write KEY: VALUE", "for instance KEY: VALUE without OTHER"; nothing where the hint says it in another
/// way.
std::vector<Remedy> remedies_of(const Problem& problem) {
  std::string text = problem.nearest;
  std::vector<Remedy> remedies;
  if (text.starts_with("nearest: ")) {
    text = text.substr(text.find_last_of(' ') + 1);
    return {{plain_key(problem.key), text}};
  }
  text = text.substr(0, std::min(text.find(", or "), text.find("; ")));
  for (const char* opening : {"write ", "for instance "}) {
    if (text.starts_with(opening)) text = text.substr(std::string_view(opening).size());
  }
  if (const std::size_t at = text.find(" without "); at != std::string::npos) {
    for (const std::string& other : split(text.substr(at + 9), ' ')) {
      if (other == "and") continue;
      remedies.push_back({other, default_value(*find_key(other)).is_null() ? "null" : "false"});
    }
    text.erase(at);
  }
  const std::size_t colon = text.find(": ");
  if (colon == std::string::npos || find_key(text.substr(0, colon)) == nullptr) return {};
  remedies.push_back({text.substr(0, colon), text.substr(colon + 2)});
  return remedies;
}

Words with(Words words, const Remedy& remedy) {
  const std::string begin = "--" + remedy.key + "=";
  std::erase_if(words, [&](const std::string& word) { return word.starts_with(begin); });
  words.push_back(begin + remedy.value);
  return words;
}

std::vector<Problem> problems_of(const ResolveFixture& fixture, const Words& words, std::int64_t world) {
  try {
    fixture.resolve(words, Purpose::kPlan, world);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

std::string texts(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) text += to_text(problem) + "\n";
  return text;
}

std::string beginning(const Problem& problem) {
  return problem.key + problem.message.substr(0, 12);
}

/// Was it not there before, or is it the one that was to be mended?
bool is_new(const Problem& problem, const std::vector<Problem>& before, const Problem& mended) {
  if (problem.message == mended.message) return true;
  return std::none_of(before.begin(), before.end(),
                      [&](const Problem& old) { return beginning(old) == beginning(problem); });
}

/// Follows every remedy; counts them.
int check_remedies(const ResolveFixture& fixture, const Words& words, std::int64_t world) {
  int num_remedies = 0;
  const std::vector<Problem> before = problems_of(fixture, words, world);
  for (const Problem& problem : before) {
    const std::vector<Remedy> remedies = remedies_of(problem);
    if (remedies.empty()) continue;
    ++num_remedies;
    Words mended = words;
    for (const Remedy& remedy : remedies) mended = with(mended, remedy);
    const std::vector<Problem> after = problems_of(fixture, mended, world);
    std::string all;
    for (const std::string& word : words) all += word + " ";
    for (const Problem& other : after) {
      const bool is_about_it = plain_key(other.key) == remedies.back().key || other.key == problem.key;
      EXPECT_FALSE(is_about_it && is_new(other, before, problem))
          << all << "\n"
          << to_text(problem) << "\nand with " << mended.back() << ":\n"
          << texts(after);
    }
  }
  return num_remedies;
}

// Sizes at random, most of which do not fit each other.
TEST(Remedies, OfSizesAreLegal) {
  const ResolveFixture fixture;
  std::mt19937 random(20);
  const auto pick = [&](std::initializer_list<const char*> values) {
    return std::string(*(values.begin() + random() % values.size()));
  };
  int num_remedies = 0;
  constexpr int kNumCases = 1500;
  for (int i = 0; i < kNumCases; ++i) {
    Words words = {"--moe_layer_freq=1", "--moe_shared_expert_overlap=false",
                   "--num_layers=" + pick({"12", "13", "24", "27"}),
                   "--pipeline_model_parallel_size=" + pick({"1", "2", "3", "4"}),
                   "--global_batch_size=" + pick({"48", "96", "100"})};
    const auto maybe = [&](const std::string& key, std::initializer_list<const char*> values) {
      if (random() % 4 == 0) words.push_back("--" + key + "=" + pick(values));
    };
    maybe("num_virtual_stages_per_pipeline_rank", {"2", "3", "4", "40"});
    maybe("num_layers_per_virtual_pipeline_stage", {"2", "5"});
    maybe("decoder_first_pipeline_num_layers", {"1", "2", "5"});
    maybe("decoder_last_pipeline_num_layers", {"1", "3", "4"});
    maybe("account_for_loss_in_pipeline_split", {"true"});
    maybe("num_attention_heads", {"4", "6", "8"});
    maybe("hidden_size", {"64", "72", "96"});
    maybe("tensor_model_parallel_size", {"2", "3"});
    maybe("expert_model_parallel_size", {"2", "3", "4"});
    maybe("num_experts", {"6", "8", "9"});
    maybe("micro_batch_size", {"2", "3"});
    maybe("seq_length", {"96", "100"});
    num_remedies += check_remedies(fixture, words, 0);
  }
  EXPECT_GT(num_remedies, kNumCases / 4);
}

TEST(Remedies, OfSchedulesAreLegal) {
  const ResolveFixture fixture;
  int num_remedies = 0;
  for (const char* schedule : {"--pp_algorithm=v-half", "--pp_algorithm=1f1b", "--pp_algorithm=zero-bubble"}) {
    for (const char* chunks : {"--num_virtual_stages_per_pipeline_rank=3", "--num_layers_per_virtual_pipeline_stage=2",
                               "--virtual_pipeline_model_parallel_size=3", "--num_virtual_stages_per_pipeline_rank=1",
                               "--pipeline_model_parallel_layout=Et*4|t*4|t*4|t*4|t*4|t*4,L"}) {
      num_remedies += check_remedies(fixture,
                                     {"--num_layers=24", "--moe_layer_freq=1", "--pipeline_model_parallel_size=2",
                                      "--patch_primus_pipeline", "--global_batch_size=96", schedule, chunks},
                                     0);
    }
  }
  EXPECT_GT(num_remedies, 10);
}

}  // namespace
}  // namespace primus::config
