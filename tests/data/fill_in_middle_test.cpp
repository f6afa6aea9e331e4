// Holes in documents: nothing is lost, each option does what it says, and no thread decides.
#include "data/fill_in_middle.hpp"

#include <gmock/gmock.h>

#include <algorithm>

#include "base/files.hpp"
#include "data/indexed_dataset.hpp"
#include "data/prepare.hpp"
#include "data/temporary_folder.hpp"

namespace primus::data {
namespace {

using testing::HasSubstr;

/// A token a byte, and 256 to 258 for the three texts.
class HoleTokens final : public Tokenizer {
 public:
  std::string_view name() const override { return "HoleTokens"; }
  std::int64_t vocab_size() const override { return 259; }
  std::int64_t eod() const override { return kNoEod; }
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override {
    for (std::int64_t i = 0; i < 3; ++i) {
      if (text == HoleOptions().tokens[static_cast<std::size_t>(i)]) return ids.push_back(256 + i);
    }
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  void encode_with_offsets(std::string_view text, std::vector<std::int64_t>& ids,
                           std::vector<TextRange>& /*offsets*/) const override {
    encode(text, ids);
  }
  std::string decode(std::span<const std::int64_t> ids) const override {
    std::string text;
    for (const std::int64_t id : ids) text += static_cast<char>(id);
    return text;
  }
};

constexpr std::int64_t kBefore = 256, kHole = 257, kAfter = 258;

struct Parts {
  std::string before, hole, after;
  enum class Order { kWhole, kBeginningFirst, kEndFirst } order = Order::kWhole;
};

/// What the tokens say; the three tokens stand where they must.
Parts parts_of(const std::vector<std::int64_t>& ids) {
  const HoleTokens tokenizer;
  const auto text = [&](auto begin, auto end) { return tokenizer.decode(std::vector(begin, end)); };
  Parts parts;
  if (ids.empty() || ids.front() != kBefore) return {text(ids.begin(), ids.end()), "", "", Parts::Order::kWhole};
  const auto hole = std::ranges::find(ids, kHole);
  const auto after = std::ranges::find(ids, kAfter);
  EXPECT_TRUE(hole != ids.end() && after != ids.end());
  if (after == ids.begin() + 1) {
    // Either order begins so where nothing comes before the hole; the end-first one has the rest behind the hole's
    // token.
    parts.order = Parts::Order::kEndFirst;
    parts.after = text(after + 1, hole);
    parts.hole = text(hole + 1, ids.end());  // with what comes before it in front
    return parts;
  }
  parts.order = Parts::Order::kBeginningFirst;
  parts.before = text(ids.begin() + 1, after);
  parts.after = text(after + 1, hole);
  parts.hole = text(hole + 1, ids.end());
  return parts;
}

std::string document(int number) {
  return fmt::format("The {}th document says é and 中, {} times.", number, number * 7919 % 1009);
}

TEST(Holes, LoseNothingAndCutBetweenCharacters) {
  const HoleTokens tokenizer;
  HoleOptions options;
  options.rate = 1.0;
  const HoleCutter cutter(options, tokenizer);
  int num_end_first = 0;
  std::vector<std::size_t> lengths;
  for (int i = 0; i < 2000; ++i) {
    const std::string text = document(i);
    std::vector<std::int64_t> ids;
    cutter.encode(text, ids);
    ASSERT_EQ(ids.size(), text.size() + 3);
    const Parts parts = parts_of(ids);
    ASSERT_NE(parts.order, Parts::Order::kWhole);
    ASSERT_EQ(parts.before + parts.hole + parts.after, text);
    for (const std::string& part : {parts.before, parts.hole, parts.after}) {
      if (!part.empty()) {
        ASSERT_NE(static_cast<unsigned char>(part.front()) & 0xC0U, 0x80U) << part;
      }
    }
    num_end_first += parts.order == Parts::Order::kEndFirst ? 1 : 0;
    lengths.push_back(parts.hole.size());
  }
  // A half by choice, and of the others those that have nothing before the hole (one in about 20).
  EXPECT_NEAR(num_end_first, 1000 + 50, 100);
  // The two ends are drawn evenly, so a hole takes a third on average; end-first ones hold the beginning, too.
  EXPECT_GT(*std::ranges::max_element(lengths), 30U);
}

TEST(Holes, AsManyAsAskedForAndTheSameOnesAgain) {
  const HoleTokens tokenizer;
  HoleOptions options;
  options.rate = 0.25;
  options.end_first_rate = 0.0;
  const auto encoded = [&](std::uint64_t seed, int i) {
    options.seed = seed;
    std::vector<std::int64_t> ids;
    HoleCutter(options, tokenizer).encode(document(i), ids);
    return ids;
  };
  int num_holes = 0;
  int num_other = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto ids = encoded(1, i);
    num_holes += ids.front() == kBefore ? 1 : 0;
    ASSERT_EQ(ids, encoded(1, i));
    num_other += ids != encoded(2, i) ? 1 : 0;
  }
  EXPECT_NEAR(num_holes, 500, 80);
  EXPECT_GT(num_other, 500);
  std::vector<std::int64_t> none;
  options.rate = 1.0;
  HoleCutter(options, tokenizer).encode("", none);
  EXPECT_TRUE(none.empty());
}

TEST(Holes, NeedTokensOfTheirOwn) {
  const ByteTokenizer bytes;
  EXPECT_THAT(user_error([&] { HoleCutter({}, bytes); }), HasSubstr("is no token of ByteTokenizer"));
}

// The number of threads changes nothing, and the tokens are those of a tokenizer.json with three more.
TEST(Holes, ArePreparedByAnyNumberOfThreads) {
  const TemporaryFolder folder;
  write_file(folder / "tokenizer.json",
             R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},
                 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "</s>": 4}, "merges": ["a b"]}})");
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += std::string(1 + i % 17, 'a') + "bc" + std::string(1 + i % 7, 'b') + "\n";
  write_file(folder / "in.txt", lines);
  PrepareOptions options;
  options.inputs = {folder / "in.txt"};
  options.documents = DocumentKind::kLines;
  options.tokenizer.type = "HuggingFaceTokenizer";
  options.tokenizer.model = folder / "tokenizer.json";
  options.tokenizer.special_tokens = HoleOptions().tokens;
  options.holes.emplace();
  options.holes->rate = 0.5;
  for (const int threads : {1, 3}) {
    options.num_threads = threads;
    options.output_prefix = folder / std::to_string(threads);
    prepare(options, {});
  }
  EXPECT_EQ(read_file(folder / "1_text_document.bin"), read_file(folder / "3_text_document.bin"));
  const IndexedDataset dataset(folder / "1_text_document");
  int num_holes = 0;
  for (std::int64_t i = 0; i < dataset.num_sequences(); ++i) {
    std::vector<std::int64_t> first(1);
    dataset.read(i, 0, first);
    num_holes += first.front() == 5 ? 1 : 0;  // <fim_prefix>, behind the file's five
  }
  EXPECT_NEAR(num_holes, 150, 40);
}

}  // namespace
}  // namespace primus::data
