// Damaged safetensors files and headers, checkpoint.json and indices of shards are read or refused: no crash, no hang.
// PRIMUS_SOAK=1: 1,000,000 of those that need no file, 100,000 of the others.
#include "checkpoint/hostile_input.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "data/temporary_folder.hpp"
#include "support/mutation.hpp"
#include "support/soak.hpp"

namespace primus::checkpoint {
namespace {

// What these parsers mind.
constexpr std::string_view kPieces[] = {"\"",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "null",
                                        "true",
                                        "-1",
                                        "1e999",
                                        "4294967296",
                                        "18446744073709551615",
                                        "9223372036854775807",
                                        "0",
                                        "[]",
                                        "{}",
                                        "\\u0000",
                                        "\xff",
                                        "\"F4\"",
                                        "\"F64\"",
                                        "\"BOOL\"",
                                        "data_offsets",
                                        "__metadata__",
                                        "../x",
                                        "[[[[[[[[",
                                        "\xff\xff\xff\xff\xff\xff\xff\x7f"};

void expect_calm(HostileKind kind, const std::string& whole, int num_rounds) {
  const data::TemporaryFolder folder;
  prepare_hostile(folder.path());
  read_hostile(kind, whole, folder.path());
  std::mt19937 random(20261130);
  for (int i = 0; i < num_rounds; ++i) {
    const std::string content = test::mutated(whole, random, kPieces);
    const auto start = std::chrono::steady_clock::now();
    read_hostile(kind, content, folder.path());
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    ASSERT_LT(taken.count(), 10.0) << content;
  }
}

constexpr const char* kHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[16,32],"data_offsets":[0,2048]},)"
    R"("b":{"dtype":"BF16","shape":[1024],"data_offsets":[2048,4096]},"c":{"dtype":"F8_E4M3","shape":[0,7],)"
    R"("data_offsets":[4096,4096]}})";

TEST(HostileCheckpoint, Header) {
  EXPECT_EQ(parse_safetensors_header(kHeader, kDataBytes, "x").tensors.size(), 3U);
  expect_calm(HostileKind::kHeader, kHeader, test::rounds(20'000, 1'000'000));
}

TEST(HostileCheckpoint, File) {
  const data::TemporaryFolder folder;
  write_shard(folder / "whole.safetensors", "one");
  expect_calm(HostileKind::kFile, read_file(folder / "whole.safetensors"), test::rounds(1500, 100'000));
}

TEST(HostileCheckpoint, Index) {
  CheckpointIndex index;
  index.iteration = 7;
  index.made_by = "train";
  index.training.emplace();
  index.training->schedule = {{"lr", "0.001"}};
  index.training->log_interval.mtp_sums = {0.5};
  index.files = {{"weights.safetensors", 100, 20, 0x12345678}};
  const ElementType* type = find_element_type("BF16");
  index.tensors.push_back({"a", kWeight, type, {4, 6}, {}});
  for (const std::int64_t row : {0, 1, 3})
    index.tensors.back().pieces.push_back({"weights.safetensors", "a", {row, 0}, {row == 1 ? 2 : 1, 6}, 1});
  index.tensors.push_back({"a", kMaster, find_element_type("F32"), {2}, {{"optimizer.safetensors", "m", {0}, {2}, 2}}});
  expect_calm(HostileKind::kIndex, index_text(index), test::rounds(8000, 1'000'000));
}

TEST(HostileCheckpoint, ShardIndex) {
  expect_calm(HostileKind::kShardIndex,
              R"({"metadata": {"total_size": 64}, "weight_map": {"one.a": "model-00001-of-00002.safetensors",)"
              R"("one.b": "model-00001-of-00002.safetensors", "two.a": "model-00002-of-00002.safetensors",)"
              R"("two.b": "model-00002-of-00002.safetensors"}})",
              test::rounds(1500, 100'000));
}

}  // namespace
}  // namespace primus::checkpoint
