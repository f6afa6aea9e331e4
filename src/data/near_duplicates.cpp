#include "data/near_duplicates.hpp"

#include <algorithm>
#include <array>

#include "base/philox.hpp"

namespace primus::data {
namespace {

constexpr std::size_t kShingleWords = 5;
constexpr std::size_t kSketchSize = 512;
// Texts that resemble each other by 0.8 share one of their 16 smallest hashes but for odds of about 0.2^16.
constexpr std::size_t kLookupSize = 16;

bool is_word_char(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || byte >= 0x80;
}

std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33);
}

}  // namespace

std::unordered_set<std::uint64_t> shingles(std::string_view text) {
  std::array<std::uint64_t, kShingleWords> last{};  // hashes of the last words, a ring
  std::unordered_set<std::uint64_t> result;
  std::size_t num_words = 0;
  const auto insert = [&](std::size_t length) {
    std::uint64_t hash = length;
    for (std::size_t i = num_words - length; i < num_words; ++i) hash = mix(hash * 31 + last[i % kShingleWords]);
    result.insert(hash);
  };
  std::string word;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && is_word_char(text[i])) {
      word += static_cast<char>(text[i] >= 'A' && text[i] <= 'Z' ? text[i] - 'A' + 'a' : text[i]);
    } else if (!word.empty()) {
      last[num_words++ % kShingleWords] = stream_id(word);
      word.clear();
      if (num_words >= kShingleWords) insert(kShingleWords);
    }
  }
  if (num_words > 0 && num_words < kShingleWords) insert(num_words);
  return result;
}

double CopyFinder::resemblance(const Sketch& a, const Sketch& b) {
  // Of the smallest hashes of the union, the part that both have.
  std::size_t i = 0, j = 0, num_union = 0, num_common = 0;
  while (num_union < kSketchSize && (i < a.smallest.size() || j < b.smallest.size())) {
    const bool take_a = j == b.smallest.size() || (i < a.smallest.size() && a.smallest[i] <= b.smallest[j]);
    const bool take_b = i == a.smallest.size() || (j < b.smallest.size() && b.smallest[j] <= a.smallest[i]);
    num_common += take_a && take_b ? 1 : 0;
    i += take_a ? 1 : 0;
    j += take_b ? 1 : 0;
    ++num_union;
  }
  return num_union == 0 ? 1.0 : static_cast<double>(num_common) / static_cast<double>(num_union);
}

CopyFinder::Verdict CopyFinder::take(std::string_view text) {
  const std::unordered_set<std::uint64_t> all = shingles(text);
  Sketch sketch{{all.begin(), all.end()}};
  // A text without a word, say a rule of dashes, is known by its bytes.
  if (sketch.smallest.empty()) sketch.smallest.push_back(mix(stream_id(text)));
  std::sort(sketch.smallest.begin(), sketch.smallest.end());
  if (sketch.smallest.size() > kSketchSize) sketch.smallest.resize(kSketchSize);
  sketch.smallest.shrink_to_fit();

  const std::size_t num_lookups = std::min(kLookupSize, sketch.smallest.size());
  for (std::size_t i = 0; i < num_lookups; ++i) {
    const auto [begin, end] = by_hash_.equal_range(sketch.smallest[i]);
    for (auto entry = begin; entry != end; ++entry) {
      if (resemblance(sketch, sketches_[entry->second]) >= kNearCopyResemblance) return Verdict::kCopy;
    }
  }
  for (std::size_t i = 0; i < num_lookups; ++i) by_hash_.emplace(sketch.smallest[i], sketches_.size());
  sketches_.push_back(std::move(sketch));
  return Verdict::kNew;
}

void HeldOutText::add(std::string_view text) {
  texts_.push_back(shingles(text));
}

bool HeldOutText::is_repeated_in(std::string_view text) const {
  if (texts_.empty()) return false;
  const std::unordered_set<std::uint64_t> given = shingles(text);
  return std::any_of(texts_.begin(), texts_.end(), [&given](const auto& held_out) {
    const auto num_common =
        std::count_if(held_out.begin(), held_out.end(), [&given](std::uint64_t hash) { return given.contains(hash); });
    return num_common > 0 && static_cast<double>(num_common) >= kHeldOutOverlap * static_cast<double>(held_out.size());
  });
}

}  // namespace primus::data
