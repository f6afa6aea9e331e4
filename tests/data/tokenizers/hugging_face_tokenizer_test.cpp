#include "data/tokenizers/hugging_face_tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "data/temporary_folder.hpp"
#include "data/tokenizers/make_tokenizer.hpp"

namespace primus::data {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// A byte-level vocabulary: 0..9 letters and signs, then merges, then special tokens.
Json byte_level() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
    "added_tokens": [{"id": 20, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
              "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "Ã": 4, "©": 5, "ab": 6, "Ġa": 7, "Ġab": 8, "bc": 9, "abc": 10},
              "merges": ["a b", ["Ġ", "ab"], "b c", "ab c"]}})");
}

std::unique_ptr<HuggingFaceTokenizer> make(const Json& json, std::int64_t eod = kNoEod) {
  return std::make_unique<HuggingFaceTokenizer>(
      json, "tokenizer.json", HuggingFaceTokenizer::Setting{.name = "HuggingFaceTokenizer", .eod = eod});
}

std::vector<std::int64_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int64_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

TEST(HuggingFaceTokenizer, JoinsTheBestPairFirst) {
  const auto tokenizer = make(byte_level());
  EXPECT_EQ(tokenizer->vocab_size(), 21);
  EXPECT_THAT(encode(*tokenizer, "abc"), ElementsAre(10));
  EXPECT_THAT(encode(*tokenizer, "abc ab"), ElementsAre(10, 8));
  EXPECT_THAT(encode(*tokenizer, "bcabab"), ElementsAre(9, 6, 6));
  EXPECT_THAT(encode(*tokenizer, "é"), ElementsAre(4, 5));
  EXPECT_THAT(encode(*tokenizer, "axb"), ElementsAre(6));  // no token and no unk_token: passed over
  EXPECT_THAT(encode(*tokenizer, ""), ElementsAre());
}

TEST(HuggingFaceTokenizer, DecodesWholeCharactersFromTheirParts) {
  const auto tokenizer = make(byte_level(), 20);
  const std::vector<std::int64_t> ids = {10, 4, 5, 8, 20};
  EXPECT_EQ(tokenizer->decode(ids), "abcé ab");
  const std::vector<std::int64_t> bad = {21};
  EXPECT_THAT(user_error([&] { tokenizer->decode(bad); }), HasSubstr("21"));
}

TEST(HuggingFaceTokenizer, LongWordsGiveWhatShortOnesGive) {
  // Beyond 48 symbols pairs come from a heap; the ids of a repeated word must not depend on that.
  const auto tokenizer = make(byte_level());
  std::string text;
  std::vector<std::int64_t> expected;
  for (int i = 0; i < 500; ++i) {
    text += "cab";
    for (const std::int64_t id : {2, 6}) expected.push_back(id);
  }
  // "cabcab": c, then abc ab c…: the pair (ab, c) joins across.
  const auto ids = encode(*tokenizer, text);
  EXPECT_EQ(ids.front(), 2);
  EXPECT_EQ(ids.back(), 6);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 10), 499);
  EXPECT_EQ(std::ssize(ids), 501);
}

TEST(HuggingFaceTokenizer, OffsetsAreThoseOfTheGivenText) {
  Json json = byte_level();
  json["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = make(json);
  std::vector<std::int64_t> ids;
  std::vector<TextRange> offsets;
  const std::string text = "ab e\u0301<|end|> abc";
  tokenizer->encode_with_offsets(text, ids, offsets);
  EXPECT_THAT(ids, ElementsAre(6, 3, 4, 5, 20, 8, 2));
  const std::vector<TextRange> expected = {{0, 2}, {2, 3}, {3, 6}, {3, 6}, {6, 13}, {13, 16}, {16, 17}};
  EXPECT_EQ(offsets, expected);
}

TEST(HuggingFaceTokenizer, PutsTokensAroundATextWhenAsked) {
  Json json = byte_level();
  json["post_processor"] = Json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [], "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [20], "tokens": ["<|end|>"]}}})");
  EXPECT_THAT(encode(*make(json), "ab"), ElementsAre(20, 6));
  const HuggingFaceTokenizer without(
      json, "tokenizer.json", {.name = "HuggingFaceTokenizer", .around_text = TokenizerOptions::AroundText::kLeftOut});
  EXPECT_THAT(encode(without, "ab"), ElementsAre(6));
}

TEST(HuggingFaceTokenizer, ThreadsShareOne) {
  const auto tokenizer = make(byte_level());
  std::vector<std::thread> threads;
  std::vector<std::vector<std::int64_t>> results(4);
  for (std::size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 300; ++k) results[i] = encode(*tokenizer, "abc ab bc é<|end|>cab");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, results.front());
}

struct Fault {
  const char* pointer;  // what is replaced
  const char* value;
  const char* told;
};

TEST(HuggingFaceTokenizer, NamesEveryPartThatItDoesNotUnderstand) {
  const Fault faults[] = {
      {"/normalizer", R"({"type": "Lowercase"})", "normalizer.type"},
      {"/normalizer", R"({"type": "NFC", "strength": 2})", "normalizer.strength"},
      {"/normalizer", R"x({"type": "Replace", "pattern": {"Regex": "(?<a>b)"}, "content": ""})x",
       "normalizer.pattern.Regex"},
      {"/pre_tokenizer", R"({"type": "BertPreTokenizer"})", "pre_tokenizer.type"},
      {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "Whitespace"}]})",
       "pre_tokenizer.pretokenizers[1].type"},
      {"/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "[a"}, "behavior": "Isolated", "invert": false})",
       "pre_tokenizer.pattern.Regex"},
      {"/pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Sideways"})",
       "pre_tokenizer.behavior"},
      {"/post_processor", R"({"type": "BertProcessing", "sep": ["a", 0], "cls": ["a", 0]})", "post_processor.type"},
      {"/decoder", R"({"type": "WordPiece"})", "decoder.type"},
      {"/model/type", R"("Unigram")", "model.type"},
      {"/model/dropout", "0.1", "model.dropout"},
      {"/model/end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix"},
      {"/model/unk_token", R"("<unk>")", "<unk>"},
      {"/model/merges", R"(["a zz"])", "model.merges"},
      {"/model/merges", R"(["a b c"])", "model.merges[0]"},
      {"/model/vocab", R"({"a": -1})", "model.vocab"},
      {"/model/vocab", R"({"a": 99999999999})", "model.vocab"},
      {"/model/curl", "1", "model.curl"},
      {"/added_tokens", R"([{"id": 0, "content": "x"}])", "added_tokens"},
      {"/added_tokens", R"([{"id": 21, "content": "x", "weight": 3}])", "added_tokens[0].weight"},
      {"/surprise", "{}", "surprise"},
  };
  for (const Fault& fault : faults) {
    Json json = byte_level();
    json[Json::json_pointer(fault.pointer)] = Json::parse(fault.value);
    const std::string message = user_error([&] { make(json); });
    EXPECT_THAT(message, HasSubstr(fault.told));
    EXPECT_THAT(message, HasSubstr("tokenizer.json"));
  }
}

TEST(MakeTokenizer, FindsTheFilesOfAFolder) {
  TemporaryFolder folder;
  write_file(folder / "tokenizer.json", byte_level().dump());
  write_file(folder / "tokenizer_config.json", R"({"eos_token": {"content": "<|end|>"}})");
  const auto tokenizer = make_tokenizer({.type = "HuggingFaceTokenizer", .model = folder.path()});
  EXPECT_EQ(tokenizer->eod(), 20);
  EXPECT_EQ(tokenizer->vocab_size(), 21);
  write_file(folder / "config.json", R"({"vocab_size": 64})");
  EXPECT_EQ(make_tokenizer({.type = "Llama3Tokenizer", .model = folder / "tokenizer.json"})->vocab_size(), 64);
}

TEST(MakeTokenizer, ReadsGpt2sTwoFiles) {
  TemporaryFolder folder;
  write_file(folder / "vocab.json", R"({"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "<|endoftext|>": 5})");
  write_file(folder / "merges.txt", "#version: 0.2\na b\nĠ ab\n");
  const auto tokenizer = make_tokenizer(
      {.type = "GPT2BPETokenizer", .vocab_file = folder / "vocab.json", .merge_file = folder / "merges.txt"});
  EXPECT_THAT(encode(*tokenizer, "ab ab<|endoftext|>b"), ElementsAre(3, 4, 5, 1));
  EXPECT_EQ(tokenizer->eod(), 5);
}

TEST(MakeTokenizer, NamesWhatIsMissing) {
  TemporaryFolder folder;
  const auto message = [](const std::string& model) {
    return user_error([&] { make_tokenizer({.type = "HuggingFaceTokenizer", .model = model}); });
  };
  EXPECT_THAT(message(""), HasSubstr("tokenizer_model"));
  EXPECT_THAT(message("some/hub-name"), HasSubstr("hub"));
  EXPECT_THAT(message(folder.path()), HasSubstr("holds no tokenizer"));
  EXPECT_THAT(message(folder / "tokenizer.json"), HasSubstr("does not exist"));
  write_file(folder / "tokenizer.json", "{\"model\": ");
  EXPECT_THAT(message(folder / "tokenizer.json"), HasSubstr("no JSON"));
  write_file(folder / "tokenizer.json", std::string(100000, '['));
  EXPECT_THAT(message(folder / "tokenizer.json"), HasSubstr("nested"));
  write_file(folder / "broken.model", "no model at all");
  EXPECT_THAT(message(folder / "broken.model"), HasSubstr("sentencepiece"));
}

}  // namespace
}  // namespace primus::data
