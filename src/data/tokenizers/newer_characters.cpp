#include "data/tokenizers/newer_characters.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.hpp"
#include "data/tokenizers/utf8.hpp"

namespace primus::data {
namespace {

enum class Category { kLu, kLl, kLm, kLo, kHan, kMn, kMc, kNd, kNo, kPd, kPo, kSm, kSo, kCf };

struct Range {
  char32_t first;
  char32_t last;
  Category category;
};

constexpr Range kRanges[] = {
#include "data/tokenizers/newer_characters.inc"
};

// Characters of Unicode 13 or older, of three and of four bytes.
struct Stand {
  Category category;
  char32_t three_bytes;
  char32_t four_bytes;
};
constexpr Stand kStands[] = {
    {Category::kLu, 0x1E00, 0x10400}, {Category::kLl, 0x1E01, 0x10428},  {Category::kLm, 0x10FC, 0x16B40},
    {Category::kLo, 0xA000, 0x10000}, {Category::kHan, 0x4E00, 0x20000}, {Category::kMn, 0x1DC0, 0x101FD},
    {Category::kMc, 0x0903, 0x11000}, {Category::kNd, 0x0966, 0x104A0},  {Category::kNo, 0x2070, 0x10107},
    {Category::kPd, 0x2013, 0x10EAD}, {Category::kPo, 0x2016, 0x10100},  {Category::kSm, 0x2200, 0x1D6C1},
    {Category::kSo, 0x2300, 0x10137}, {Category::kCf, 0x2061, 0x110BD},
};

// One bit for each 64 characters, so that nearly all text is passed over by a look at it.
constexpr int kBlockBits = 6;
constexpr std::size_t kNumBlocks = 0x110000 >> kBlockBits;

const std::vector<bool>& blocks_with_newer() {
  static const std::vector<bool> blocks = [] {
    std::vector<bool> result(kNumBlocks, false);
    for (const Range& range : kRanges) {
      for (std::size_t i = range.first >> kBlockBits; i <= range.last >> kBlockBits; ++i) result[i] = true;
    }
    return result;
  }();
  return blocks;
}

}  // namespace

char32_t older_character(char32_t character) {
  if (!blocks_with_newer()[character >> kBlockBits]) return character;
  const Range* range = std::lower_bound(std::begin(kRanges), std::end(kRanges), character,
                                        [](const Range& r, char32_t c) { return r.last < c; });
  if (range == std::end(kRanges) || character < range->first) return character;
  const Stand* stand = std::find_if(std::begin(kStands), std::end(kStands),
                                    [&](const Stand& s) { return s.category == range->category; });
  PRIMUS_CHECK(stand != std::end(kStands), "U+{:04X}", static_cast<std::uint32_t>(character));
  return character < 0x10000 ? stand->three_bytes : stand->four_bytes;
}

std::string_view with_older_characters(std::string_view text, std::string& storage) {
  enum class Copy { kNone, kBegun } copy = Copy::kNone;
  for (std::size_t at = skip_ascii(text, 0); at < text.size(); at = skip_ascii(text, at)) {
    const std::size_t begin = at;
    const char32_t character = next_character(text, at);
    const char32_t older = older_character(character);
    if (older == character) continue;
    if (copy == Copy::kNone) storage.assign(text);
    copy = Copy::kBegun;
    std::string bytes;
    append_character(older, bytes);
    std::copy(bytes.begin(), bytes.end(), storage.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  return copy == Copy::kBegun ? std::string_view(storage) : text;
}

}  // namespace primus::data
