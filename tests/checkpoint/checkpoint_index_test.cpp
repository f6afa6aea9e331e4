#include "checkpoint/checkpoint_index.hpp"

#include "data/temporary_folder.hpp"

namespace primus::checkpoint {
namespace {

CheckpointIndex example() {
  CheckpointIndex index{
      .iteration = 7, .consumed_samples = 112, .made_by = "import", .tensors = {}, .training = {}, .files = {}};
  GlobalTensor split{.name = "a", .kind = "weight", .type = find_element_type("BF16"), .shape = {4, 6}, .pieces = {}};
  split.pieces = {{"one.safetensors", "a", {0, 0}, {4, 2}, 0x1U},
                  {"two.safetensors", "a", {0, 2}, {1, 4}, 0xFFFFFFFFU},
                  {"two.safetensors", "a.1", {1, 2}, {3, 4}, 0x12345678U}};
  GlobalTensor scalar{.name = "b", .kind = "weight", .type = find_element_type("F32"), .shape = {}, .pieces = {}};
  scalar.pieces = {{"one.safetensors", "b", {}, {}, 0U}};
  index.tensors = {split, scalar};
  return index;
}

TEST(CheckpointIndex, WhatIsWrittenIsRead) {
  const std::string text = index_text(example());
  const CheckpointIndex index = parse_index(text, "checkpoint.json");
  EXPECT_EQ(index_text(index), text);
  EXPECT_EQ(index.iteration, 7);
  ASSERT_NE(index.find("a"), nullptr);
  EXPECT_EQ(index.find("a")->pieces[1].crc32c, 0xFFFFFFFFU);
  EXPECT_EQ(index.find("c"), nullptr);
}

TEST(CheckpointIndex, IndicesThatAreRefused) {
  const auto refused = [](const std::string& from, const std::string& to) {
    std::string text = index_text(example());
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return data::user_error([&] { parse_index(text, "checkpoint.json"); });
  };
  const std::vector<std::tuple<const char*, const char*, const char*>> cases = {
      {"primus-checkpoint", "other", "format: is no checkpoint of ours (expected primus-checkpoint, found other)"},
      {"\"version\": 2", "\"version\": 3", "version: is of another release (expected 2, found 3)"},
      {"\"iteration\": 7", "\"iteration\": \"x\"", "cannot be read"},
      {"\"BF16\"", "\"BF61\"", "a: unknown dtype"},
      {"\"name\": \"b\"", "\"name\": \"a\"", "a: comes twice"},
      {"12345678", "1234567", "crc32c is no checksum"},
      {"12345678", "1234567g", "crc32c is no checksum"},
      {"\"file\": \"one.safetensors\"", "\"file\": \"../x\"", "names a file outside the folder"},
      {"1,\n      2\n     ],\n     \"shape\": [\n      3,", "1,\n      2\n     ],\n     \"shape\": [\n      2,",
       "a: its pieces do not cover it (expected 48 bytes, found 40)"},
      {"1,\n      2\n     ],\n     \"shape\": [\n      3,", "0,\n      2\n     ],\n     \"shape\": [\n      3,",
       "a: pieces 1 and 2 overlap"},
      {"1,\n      2\n     ],\n     \"shape\": [\n      3,", "1,\n      2\n     ],\n     \"shape\": [\n      4,",
       "a: piece 2 lies outside the tensor"},
      {"1,\n      2\n     ],\n     \"shape\": [\n      3,",
       "18446744073709551615,\n      2\n     ],\n     \"shape\": [\n      3,", "a size is no integer from 0 on"},
      {"1,\n      2\n     ],\n     \"shape\": [\n      3,",
       "1,\n      2\n     ],\n     \"shape\": [\n      9223372036854775808,", "a size is no integer from 0 on"},
  };
  for (const auto& [from, to, expected] : cases) {
    const std::string message = refused(from, to);
    EXPECT_NE(message.find(expected), std::string::npos) << from << "\n" << message;
  }
  const std::string whole = index_text(example());
  for (std::size_t length = 0; length + 1 < whole.size(); length += 13)
    EXPECT_FALSE(data::user_error([&] { parse_index(whole.substr(0, length), "checkpoint.json"); }).empty());
}

}  // namespace
}  // namespace primus::checkpoint
