// Damaged .idx, tokenizer.json, JSON lines and .model files are read or refused: no crash, no hang, no allocation out
// of proportion. PRIMUS_SOAK=1: 1,000,000 of each but .model, which has 100,000.
#include "data/hostile_input.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <random>

#include "data/temporary_folder.hpp"
#include "support/mutation.hpp"
#include "support/soak.hpp"

namespace {

std::atomic<std::size_t> largest_allocation{0};

}  // namespace

// The largest single request of the program; its tests read it.
void* operator new(std::size_t num_bytes) {
  std::size_t largest = largest_allocation.load();
  while (num_bytes > largest && !largest_allocation.compare_exchange_weak(largest, num_bytes)) {
  }
  if (void* memory = std::malloc(num_bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace primus::data {
namespace {

// The word cache of an encoder is 4 MiB, whatever the file.
constexpr std::size_t kLargestBytes = std::size_t{16} << 20;

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
                                        "99999999999",
                                        "\\u0000",
                                        "\\ud8",
                                        "(",
                                        "(?:",
                                        "\\p{",
                                        "*+",
                                        "{1,9999}",
                                        "&&[",
                                        "\xff",
                                        "\xc3",
                                        "Ġ",
                                        "\\\\s+",
                                        "Sequence",
                                        "Split",
                                        "ByteLevel",
                                        "NFKC",
                                        "Regex",
                                        "\xff\xff\xff\x7f"};

void expect_calm(HostileKind kind, const std::string& whole, int num_rounds) {
  TemporaryFolder folder;
  write_file(folder / "x.bin", std::string(kBinBytes, '\1'));
  read_hostile(kind, whole, folder.path());
  largest_allocation = 0;
  std::mt19937 random(20261130);
  for (int i = 0; i < num_rounds; ++i) {
    const std::string content = test::mutated(whole, random, kPieces);
    const auto start = std::chrono::steady_clock::now();
    read_hostile(kind, content, folder.path());
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    ASSERT_LT(taken.count(), 10.0) << content;
    ASSERT_LT(largest_allocation.load(), kLargestBytes) << content;
  }
}

TEST(HostileInput, Index) {
  TemporaryFolder folder;
  IndexedWriter writer(folder / "a", TokenType::kUint16);
  for (std::size_t i = 0; i < 24; ++i) {
    writer.add_sequence(std::vector<std::int64_t>(i, 7));
    if (i % 3 == 0) writer.end_document();
  }
  writer.add_sequence(std::vector<std::int64_t>(24, 7));
  writer.end_document();
  writer.finish();
  const std::string whole = read_file(folder / "a.idx");
  ASSERT_EQ(read_file(folder / "a.bin").size(), kBinBytes);
  expect_calm(HostileKind::kIndex, whole, test::rounds(4000, 1'000'000));
}

TEST(HostileInput, TokenizerJson) {
  const char* const kWhole = R"x({"version": "1.0", "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"},
    {"type": "Replace", "pattern": {"Regex": "a{2,3}"}, "content": "b"}]},
    "added_tokens": [{"id": 12, "content": "<|end|>", "single_word": false, "lstrip": true, "rstrip": true,
                      "normalized": false, "special": true}, {"id": 13, "content": "  ", "normalized": true}],
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}+|[^\\s\\p{L}&&[^x]]+|\\s+(?!\\S)|\\w+"}, "behavior": "Isolated",
       "invert": false}, {"type": "Split", "pattern": {"String": "e"}, "behavior": "MergedWithNext", "invert": true},
      {"type": "Digits", "individual_digits": true},
      {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}]},
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [12]}}},
    "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "x"}, "content": "xx"},
      {"type": "ByteFallback"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}, {"type": "ByteLevel"}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "ignore_merges": true,
              "vocab": {"a": 0, "b": 1, "t": 2, "Ġ": 3, "Ã": 4, "©": 5, "ab": 6, "Ġa": 7, "Ġab": 8, "<unk>": 9, "1": 10,
                        "Ġt": 11}, "merges": ["a b", ["Ġ", "ab"], "Ġ a", "Ġ t"]}})x";
  expect_calm(HostileKind::kTokenizerJson, kWhole, test::rounds(3000, 1'000'000));
}

TEST(HostileInput, JsonLine) {
  expect_calm(HostileKind::kJsonLine,
              R"({"id": [1, {"text": null}], "meta": {"text": "no", "x": -1.5e3}, "text": "a\n\u00e9\ud83d\udc4d b"})",
              test::rounds(50'000, 1'000'000));
}

// --- a small model, written as the protocol buffer that sentencepiece reads ---

std::string varint(std::uint64_t value) {
  std::string result;
  for (; value >= 0x80; value >>= 7) result += static_cast<char>(static_cast<unsigned char>(value | 0x80));
  return result + static_cast<char>(value);
}
std::string number_field(int field, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(field) << 3) + varint(value);
}
std::string text_field(int field, const std::string& text) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(text.size()) + text;
}
std::string piece(const std::string& text, float score, int type) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &score, 4);
  return text_field(
      1, text_field(1, text) + varint(2 << 3 | 5) + bytes + number_field(3, static_cast<std::uint64_t>(type)));
}

TEST(HostileInput, SentencePieceModel) {
  constexpr int kNormal = 1, kUnknown = 2, kControl = 3, kUser = 4, kBpe = 2;
  std::string whole =
      piece("<unk>", 0, kUnknown) + piece("<s>", 0, kControl) + piece("</s>", 0, kControl) + piece("<|end|>", 0, kUser);
  float score = 0;
  for (const char* text : {"▁t", "he", "▁the", "▁", "t", "h", "e", "x", "a", "b", ",", "1", "2", "é", "中"}) {
    whole += piece(text, score -= 1, kNormal);
  }
  whole += text_field(2, number_field(3, kBpe)) + text_field(3, text_field(1, "identity") + number_field(3, 1));
  TemporaryFolder folder;
  write_file(folder / "x.model", whole);
  const auto tokenizer = make_tokenizer({.type = "SentencePieceTokenizer", .model = folder / "x.model"});
  EXPECT_EQ(tokenizer->vocab_size(), 19);
  EXPECT_EQ(tokenizer->eod(), 2);
  std::vector<std::int64_t> ids;
  tokenizer->encode("the x", ids);
  EXPECT_EQ(ids, (std::vector<std::int64_t>{6, 7, 11}));
  expect_calm(HostileKind::kModel, whole, test::rounds(2000, 100'000));
}

}  // namespace
}  // namespace primus::data
