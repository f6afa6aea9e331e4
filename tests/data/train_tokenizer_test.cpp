#include "data/train_tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "data/temporary_folder.hpp"
#include "data/tokenizers/bpe_trainer.hpp"
#include "data/tokenizers/make_tokenizer.hpp"

namespace primus::data {
namespace {

using testing::HasSubstr;

/// The definition, without anything kept up to date: count all pairs, join the best, begin again.
std::vector<std::pair<std::int32_t, std::int32_t>> learn_slowly(const std::vector<std::pair<std::string, int>>& words,
                                                                std::size_t num_merges) {
  std::vector<std::vector<std::int32_t>> tokens;
  for (const auto& [word, count] : words) {
    tokens.emplace_back();
    for (const char c : word) tokens.back().push_back(static_cast<unsigned char>(c));
  }
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;
  while (merges.size() < num_merges) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> counts;
    for (std::size_t w = 0; w < words.size(); ++w) {
      for (std::size_t i = 0; i + 1 < tokens[w].size(); ++i)
        counts[{tokens[w][i], tokens[w][i + 1]}] += words[w].second;
    }
    std::pair<std::int32_t, std::int32_t> best;
    std::int64_t most = 1;
    for (const auto& [pair, count] : counts) {
      if (count > most) {
        most = count;
        best = pair;
      }
    }
    if (most == 1) break;
    const auto joined = static_cast<std::int32_t>(256 + merges.size());
    merges.push_back(best);
    for (auto& word : tokens) {
      std::vector<std::int32_t> next;
      for (std::size_t i = 0; i < word.size(); ++i) {
        if (i + 1 < word.size() && word[i] == best.first && word[i + 1] == best.second) {
          next.push_back(joined);
          ++i;
        } else {
          next.push_back(word[i]);
        }
      }
      word = next;
    }
  }
  return merges;
}

TEST(LearnMerges, IsTheDefinition) {
  std::uint32_t state = 7;
  const auto draw = [&state](std::uint32_t below) {
    state = state * 1664525 + 1013904223;
    return (state >> 16) % below;
  };
  for (int round = 0; round < 20; ++round) {
    std::map<std::string, int> words;
    for (int i = 0; i < 60; ++i) {
      std::string word;
      for (std::uint32_t length = draw(9); length-- > 0;) word += static_cast<char>('a' + draw(3));
      words[word] = static_cast<int>(1 + draw(20));
    }
    WordCounts counts(1000);
    for (const auto& [word, count] : words) counts.add(word, count);
    const auto learnt = learn_merges(counts, {.num_merges = 80}, {});
    const auto expected = learn_slowly({words.begin(), words.end()}, 80);
    ASSERT_EQ(learnt.size(), expected.size());
    for (std::size_t i = 0; i < learnt.size(); ++i) {
      ASSERT_EQ(std::pair(learnt[i].left, learnt[i].right), expected[i]) << round << " " << i;
    }
  }
}

TEST(WordCounts, ForgetsRareWordsWhenFull) {
  WordCounts counts(100);
  counts.add("often", 50);
  for (int i = 0; i < 500; ++i) counts.add(std::to_string(i), 1);
  EXPECT_LE(counts.num_words(), 100U);
  EXPECT_GT(counts.num_forgotten(), 300);
  const auto sorted = counts.sorted();
  EXPECT_EQ(
      std::count_if(sorted.begin(), sorted.end(), [](const auto& e) { return e.first == "often" && e.second == 50; }),
      1);
}

class TrainTokenizer : public testing::Test {
 protected:
  TrainTokenizer() {
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += fmt::format("the licence number {} of the software é 中文\n", i * 7919 % 1000);
    write_file(folder_ / "a.txt", text);
    write_file(folder_ / "b.jsonl", "{\"text\": \"the other licence\"}\n{\"text\": \"and the third\"}\n");
    options_.inputs = {folder_ / "a.txt", folder_ / "b.jsonl"};
    options_.output = folder_ / "out";
    options_.vocab_size = 400;
  }

  TemporaryFolder folder_;
  TrainTokenizerOptions options_;
};

TEST_F(TrainTokenizer, WritesATokenizerThatReadsItsText) {
  options_.special_tokens = {"<|endoftext|>", "<pad>"};
  const TrainTokenizerSummary summary = train_tokenizer(options_, {});
  const auto tokenizer = make_tokenizer({.type = "HuggingFaceTokenizer", .model = options_.output});
  EXPECT_EQ(tokenizer->vocab_size(), summary.vocab_size);
  EXPECT_EQ(tokenizer->eod(), summary.vocab_size - 2);
  const std::string text = "the licence of 中文 and \x01 é ½";
  std::vector<std::int64_t> ids;
  tokenizer->encode(text, ids);
  EXPECT_LT(ids.size(), text.size() / 2);
  EXPECT_EQ(tokenizer->decode(ids), text);
}

TEST_F(TrainTokenizer, GivesTheSameWithAnyNumberOfThreads) {
  std::string first;
  for (const int num_threads : {1, 2, 5}) {
    options_.num_threads = num_threads;
    options_.output = folder_ / fmt::format("out{}", num_threads);
    train_tokenizer(options_, {});
    const std::string content = read_file(options_.output + "/tokenizer.json");
    if (first.empty()) first = content;
    EXPECT_EQ(content, first);
  }
}

TEST_F(TrainTokenizer, KnowsTheUsualSplits) {
  for (const std::string_view name : split_patterns()) {
    options_.pattern = name;
    options_.output = folder_ / std::string(name);
    EXPECT_GT(train_tokenizer(options_, {}).num_merges, 30) << name;
  }
  options_.pattern = R"(\w+|\W)";
  options_.normalizer = "NFKC";
  EXPECT_GT(train_tokenizer(options_, {}).num_merges, 30);
}

TEST_F(TrainTokenizer, RefusesWhatCannotBe) {
  const auto message = [&] { return user_error([&] { train_tokenizer(options_, {}); }); };
  options_.vocab_size = 100;
  EXPECT_THAT(message(), HasSubstr("--vocab-size"));
  options_.vocab_size = 300;
  options_.pattern = "[a";
  EXPECT_THAT(message(), HasSubstr("--pattern"));
  options_.pattern = "gpt2";
  options_.special_tokens = {"a", "a"};
  EXPECT_THAT(message(), HasSubstr("--special-tokens"));
  options_.special_tokens = {"the"};
  options_.vocab_size = 400;
  EXPECT_THAT(message(), HasSubstr("found the"));
  options_.special_tokens = {};
  options_.normalizer = "NFX";
  EXPECT_THAT(message(), HasSubstr("--normalizer"));
  options_.normalizer = "none";
  options_.inputs = {folder_ / "empty"};
  write_file(folder_ / "empty", "");
  EXPECT_THAT(message(), HasSubstr("no text"));
}

}  // namespace
}  // namespace primus::data
