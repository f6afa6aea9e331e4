// Rules that read files: lists of data paths, and tokenizers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/resolve_fixture.hpp"
#include "config/tokenizer_facts.hpp"

namespace primus::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class DataFiles : public testing::Test {
 protected:
  Resolution resolve(std::vector<std::string> words) const {
    words.push_back("--mock_data=False");
    return fixture_.resolve(words);
  }
  std::string problems(std::vector<std::string> words, Purpose purpose = Purpose::kPlan) const {
    words.push_back("--mock_data=False");
    return fixture_.problems(words, purpose);
  }
  std::string write(const std::string& name, const std::string& content) const {
    return fixture_.folder().write(name, content);
  }

  ResolveFixture fixture_;
};

TEST_F(DataFiles, WordsOfAFileAreDataPath) {
  const std::string path = write("paths.txt", "0.3 data/a\n  0.7\tdata/b\n");
  const Resolution resolution = resolve({"--vocab_size=257", "--data_args_path=" + path});
  EXPECT_THAT(resolution.experiment.get_strings("data_path"), ElementsAre("0.3", "data/a", "0.7", "data/b"));
  EXPECT_THAT(problems({"--vocab_size=257", "--data_args_path=" + write("empty.txt", " \n")}),
              HasSubstr("names no data"));
}

TEST_F(DataFiles, AWrongPrefixNamesTheOneThatWasMeant) {
  const std::string set = write("set_text_document.idx", "");
  write("set_text_document.bin", "");
  const std::string prefix = set.substr(0, set.size() - 4);
  const std::string hint = "did you mean 'set_text_document'?";  // the fixture takes its folder's name out
  const std::string named = set.substr(0, set.size() - std::string_view("_text_document.idx").size());
  for (const std::string& wrong : {named, named + ".bin", set, prefix + ".bin"}) {
    EXPECT_THAT(problems({"--vocab_size=257", "--data_path=" + wrong}, Purpose::kTrain), HasSubstr(hint)) << wrong;
  }
  EXPECT_THAT(problems({"--vocab_size=257", "--data_path=" + named + "x"}, Purpose::kTrain),
              HasSubstr("primus-cli data prepare"));
}

TEST_F(DataFiles, ListsOfAFileAreThePartsOwn) {
  const std::string path = write("parts.json", R"({"train": [0.3, "a", "0.7", "b"], "valid": ["c"], "test": null})");
  const Resolution resolution = resolve({"--vocab_size=257", "--per_split_data_args_path=" + path});
  EXPECT_THAT(resolution.experiment.get_strings("train_data_path"), ElementsAre("0.3", "a", "0.7", "b"));
  EXPECT_THAT(resolution.experiment.get_strings("valid_data_path"), ElementsAre("c"));
  EXPECT_TRUE(resolution.experiment.get_strings("test_data_path").empty());
  const auto told = [&](const std::string& content) {
    return problems({"--vocab_size=257", "--per_split_data_args_path=" + write("wrong.json", content)});
  };
  EXPECT_THAT(told("[\"a\"]"), HasSubstr("no JSON object"));
  EXPECT_THAT(told("{\"train\": "), HasSubstr("no JSON object"));
  EXPECT_THAT(told(R"({"validation": ["a"]})"), HasSubstr("'validation'"));
  EXPECT_THAT(told(R"({"train": []})"), HasSubstr("names no data for 'train'"));
}

constexpr const char* kTokenizer = R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
  "added_tokens": [{"id": 2, "content": "<|endoftext|>"}, {"id": 5, "content": "<x>"}]})";

TEST_F(DataFiles, AFolderGivesTheVocabulary) {
  const std::string file = write("tok/tokenizer.json", kTokenizer);
  const std::string folder = file.substr(0, file.rfind('/'));
  const std::vector<std::string> words = {"--tokenizer_type=HuggingFaceTokenizer", "--tokenizer_model=" + folder};
  EXPECT_EQ(resolve(words).experiment.get_int("vocab_size"), 6);
  write("tok/config.json", R"({"vocab_size": 64, "eos_token_id": [1, 2]})");
  EXPECT_EQ(resolve(words).experiment.get_int("vocab_size"), 64);
  std::vector<std::string> smaller = words;
  smaller.push_back("--vocab_size=5");
  EXPECT_THAT(problems(smaller), HasSubstr("smaller than the tokenizer's"));
  write("tok/tokenizer.json", "{");
  EXPECT_THAT(problems(words), HasSubstr("no JSON"));
}

TEST_F(DataFiles, TheEndOfADocumentIsWhatTheFilesSay) {
  const std::string file = write("tok/tokenizer.json", kTokenizer);
  const auto eod = [&] { return read_tokenizer_facts(find_tokenizer_files({"HuggingFaceTokenizer", file})).eod; };
  EXPECT_EQ(eod(), 2);  // the usual name
  write("tok/config.json", R"({"eos_token_id": 1})");
  EXPECT_EQ(eod(), 1);
  write("tok/tokenizer_config.json", R"({"eos_token": {"content": "<x>"}})");
  EXPECT_EQ(eod(), 5);
}

TEST_F(DataFiles, EncoderSeqLengthIsSeqLength) {
  const Resolution resolution = resolve({"--vocab_size=257", "--encoder_seq_length=64"});
  EXPECT_EQ(resolution.experiment.get_int("seq_length"), 64);
}

}  // namespace
}  // namespace primus::config
