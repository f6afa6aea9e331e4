#pragma once
// Learning a byte-pair vocabulary: again and again, the most frequent pair of neighbours becomes a token.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace primus::data {

/// How often each word of a corpus occurs. Bounded: when there are too many, those met only once are forgotten.
class WordCounts {
 public:
  explicit WordCounts(std::size_t most_words) : most_words_(most_words) {}

  void add(std::string_view word, std::int64_t count);
  /// All of another's words.
  void merge(const WordCounts& other);

  std::size_t num_words() const { return counts_.size(); }
  /// Words left out when memory was full.
  std::int64_t num_forgotten() const { return num_forgotten_; }
  /// The words in an order that depends on them alone.
  std::vector<std::pair<std::string, std::int64_t>> sorted() const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  void forget_rare();

  std::size_t most_words_;
  std::int64_t num_forgotten_ = 0;
  std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> counts_;
};

/// A pair of tokens that becomes a token.
struct LearntMerge {
  std::int32_t left = 0;
  std::int32_t right = 0;
  std::int64_t count = 0;  // of the pair when it was learnt
};

struct BpeTrainerOptions {
  std::int64_t num_merges = 0;     // fewer where the corpus does not give as many
  std::int64_t least_count = 2;    // a rarer pair becomes no token
  std::size_t longest_bytes = 64;  // of a token; longer ones are rows of dashes and the like
};

/// Merges in the order in which they are learnt. Tokens 0 to 255 are the bytes, token 256 + i is merge i. Of equally
/// frequent pairs the one with the smaller tokens comes first, so that the result depends on the counts alone.
/// `progress` is called with the number of merges so far.
std::vector<LearntMerge> learn_merges(const WordCounts& counts, const BpeTrainerOptions& options,
                                      const std::function<void(std::int64_t)>& progress);

}  // namespace primus::data
