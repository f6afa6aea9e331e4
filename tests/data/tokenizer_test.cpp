#include "data/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "data/temporary_folder.hpp"

namespace primus::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ByteTokenizer, RoundTripsEveryByte) {
  const auto tokenizer = make_plain_tokenizer({"ByteTokenizer", "", 0});
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eod(), 256);
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  std::vector<std::int64_t> ids = {256};
  tokenizer->encode(text, ids);
  ASSERT_EQ(ids.size(), 257U);
  EXPECT_EQ(ids[1], 0);
  EXPECT_EQ(ids[256], 255);
  EXPECT_EQ(tokenizer->decode(ids), text);
  const std::vector<std::int64_t> bad = {257};
  EXPECT_THAT(user_error([&] { tokenizer->decode(bad); }), HasSubstr("257"));
}

TEST(NullTokenizer, ReadsIds) {
  const auto tokenizer = make_plain_tokenizer({"NullTokenizer", "", 100});
  EXPECT_EQ(tokenizer->vocab_size(), 100);
  EXPECT_EQ(tokenizer->eod(), 99);
  std::vector<std::int64_t> ids;
  tokenizer->encode(" 1 2\n98 ", ids);
  EXPECT_THAT(ids, ElementsAre(1, 2, 98));
  ids.push_back(99);
  EXPECT_EQ(tokenizer->decode(ids), "1 2 98");
  for (const char* bad : {"100", "-1", "x", "1x", "99999999999999999999"}) {
    EXPECT_THAT(user_error([&] { tokenizer->encode(bad, ids); }), HasSubstr(bad));
  }
  EXPECT_THAT(user_error([] { make_plain_tokenizer({"NullTokenizer", "", 1}); }), HasSubstr("vocab_size"));
}

TEST(MakeTokenizer, NamesTheNearest) {
  const std::string message = user_error([] { make_plain_tokenizer({"ByteTokeniser", "", 0}); });
  EXPECT_THAT(message, HasSubstr("tokenizer_type"));
  EXPECT_THAT(message, HasSubstr("did you mean 'ByteTokenizer'?"));
}

}  // namespace
}  // namespace primus::data
