// TikTokenizer's files, and special tokens that a tokenizer.json does not have.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "config/tokenizer_facts.hpp"
#include "data/temporary_folder.hpp"
#include "data/tokenizers/make_tokenizer.hpp"

namespace primus::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string base64(const std::string& bytes) {
  constexpr const char* kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    for (std::size_t j = 0; j < 4; ++j)
      text += i + j > bytes.size() ? '=' : kLetters[group >> (18 - 6 * static_cast<int>(j)) & 63U];
  }
  return text;
}

class TikToken : public testing::Test {
 protected:
  /// The 256 bytes, then these.
  std::string write(const std::vector<std::string>& longer) const {
    nlohmann::json list = nlohmann::json::array();
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    tokens.insert(tokens.end(), longer.begin(), longer.end());
    for (const std::string& token : tokens)
      list.push_back({{"rank", list.size()}, {"token_bytes", base64(token)}, {"token_str", nullptr}});
    write_file(folder_ / "vocab.json", list.dump());
    return folder_ / "vocab.json";
  }

  TokenizerOptions options(const std::string& file) const {
    TokenizerOptions options;
    options.type = "TikTokenizer";
    options.model = file;
    options.num_special_tokens = 10;
    options.vocab_size = 300;
    return options;
  }

  static std::vector<std::int64_t> ids(const Tokenizer& tokenizer, const std::string& text) {
    std::vector<std::int64_t> result;
    tokenizer.encode(text, result);
    return result;
  }

  TemporaryFolder folder_;
};

TEST_F(TikToken, SpecialTokensComeFirst) {
  const auto tokenizer = make_tokenizer(options(write({"ab", "abc", " x"})));
  EXPECT_EQ(tokenizer->vocab_size(), 300);
  EXPECT_EQ(tokenizer->eod(), 2);
  EXPECT_THAT(ids(*tokenizer, "abc x"), ElementsAre(10 + 257, 10 + 258));
  EXPECT_THAT(ids(*tokenizer, "</s>"), ElementsAre(10 + '<', 10 + '/', 10 + 's', 10 + '>'));  // text, not the token
  EXPECT_EQ(tokenizer->decode(ids(*tokenizer, "abc xé</s>")), "abc xé</s>");
}

// The lowest rank first, the left one of two; a join may be put together of any two parts.
TEST_F(TikToken, JoinsByTheRankOfTheResult) {
  const auto tokenizer = make_tokenizer(options(write({"yz", "zy", "yzy", "xzy"})));
  EXPECT_THAT(ids(*tokenizer, "yzyzy"), ElementsAre(10 + 256, 10 + 258));  // yz yz y, then (yz, y)
  EXPECT_THAT(ids(*tokenizer, "zyz"), ElementsAre(10 + 'z', 10 + 256));
  EXPECT_THAT(ids(*tokenizer, "xzyw"), ElementsAre(10 + 259, 10 + 'w'));  // (x, zy): xz is no token
}

TEST_F(TikToken, APatternCutsTheText) {
  TokenizerOptions second = options(write({"aB", "AB", "\n\n"}));
  EXPECT_THAT(ids(*make_tokenizer(second), "aB"), ElementsAre(10 + 'a', 10 + 'B'));  // v2 cuts at the capital
  second.pattern = "v1";
  EXPECT_THAT(ids(*make_tokenizer(second), "aB"), ElementsAre(10 + 256));
}

TEST_F(TikToken, LongVocabulariesAreCut) {
  TokenizerOptions small = options(write({"ab", "cd"}));
  small.vocab_size = 10 + 257;
  EXPECT_THAT(ids(*make_tokenizer(small), "ab cd"), ElementsAre(10 + 256, 10 + ' ', 10 + 'c', 10 + 'd'));
}

TEST_F(TikToken, RefusesWhatIsNoVocabulary) {
  const auto error = [&](const std::string& content) {
    write_file(folder_ / "bad.json", content);
    return user_error([&] { make_tokenizer(options(folder_ / "bad.json")); });
  };
  EXPECT_THAT(error("{}"), HasSubstr("is no list of tokens"));
  EXPECT_THAT(error("[]"), HasSubstr("has too few tokens"));
  EXPECT_THAT(error(R"([{"rank": 0, "token_bytes": "AQ=="}])"), HasSubstr("entry 0 is no token of that rank"));
  EXPECT_THAT(error(R"([{"rank": 0, "token_bytes": "A"}])"), HasSubstr("entry 0"));
  const std::string twice = write({"ab", "ab"});
  EXPECT_THAT(user_error([&] { make_tokenizer(options(twice)); }), HasSubstr("has a token twice"));
  TokenizerOptions wrong = options(write({}));
  wrong.special_tokens = {"<unk>", "<s>"};
  EXPECT_THAT(user_error([&] { make_tokenizer(wrong); }), HasSubstr("</s>"));
  wrong.special_tokens = {"<unk>", "<s>", "</s>", "<s>"};
  EXPECT_THAT(user_error([&] { make_tokenizer(wrong); }), HasSubstr("twice"));
  wrong.special_tokens = {"<unk>", "<s>", "</s>"};
  wrong.num_special_tokens = 2;
  EXPECT_THAT(user_error([&] { make_tokenizer(wrong); }), HasSubstr("does not fit"));
  EXPECT_THAT(user_error([&] { make_tokenizer(options(folder_ / "none.json")); }), HasSubstr("does not exist"));
}

TEST(SpecialTokens, StandBehindThoseOfATokenizerJson) {
  const TemporaryFolder folder;
  write_file(folder / "tokenizer.json",
             R"({"added_tokens": [{"id": 3, "content": "</s>", "special": true}], "pre_tokenizer": null,
                 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
  TokenizerOptions options;
  options.type = "HuggingFaceTokenizer";
  options.model = folder / "tokenizer.json";
  options.special_tokens = {"</s>", "<user>", "<tool>"};
  const auto tokenizer = make_tokenizer(options);
  EXPECT_EQ(tokenizer->vocab_size(), 6);
  std::vector<std::int64_t> ids;
  tokenizer->encode("ab<tool>a</s><user>", ids);
  EXPECT_THAT(ids, ElementsAre(2, 5, 0, 3, 4));
  const auto facts = config::read_tokenizer_facts(
      config::find_tokenizer_files({options.type, options.model, "", "", {.special_tokens = options.special_tokens}}));
  EXPECT_EQ(facts.vocab_size, 6);
}

}  // namespace
}  // namespace primus::data
