#include "data/tokenizers/bpe_trainer.hpp"

#include <algorithm>
#include <queue>

namespace primus::data {
namespace {

constexpr std::int32_t kNumBytes = 256;

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

struct PairHash {
  std::size_t operator()(std::uint64_t pair) const {
    pair *= 0x9E3779B97F4A7C15;
    return static_cast<std::size_t>(pair ^ (pair >> 29));
  }
};

/// The words as tokens, with the counts of all pairs kept up to date from merge to merge.
class Corpus {
 public:
  Corpus(const WordCounts& counts, const BpeTrainerOptions& options) : options_(options), lengths_(kNumBytes, 1) {
    const auto sorted = counts.sorted();
    words_.reserve(sorted.size());
    for (const auto& [text, count] : sorted) {
      Word word{.tokens = {}, .count = count};
      word.tokens.reserve(text.size());
      for (const char c : text) word.tokens.push_back(static_cast<unsigned char>(c));
      words_.push_back(std::move(word));
    }
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const auto& tokens = words_[i].tokens;
      for (std::size_t k = 0; k + 1 < tokens.size(); ++k) change(tokens[k], tokens[k + 1], words_[i].count, i);
    }
    for (const auto& [pair, entry] : pairs_) queue_.push({entry.count, pair});
    changed_.clear();
  }

  /// The next merge; count 0: there is none worth it.
  LearntMerge learn() {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(best.pair);
      if (found == pairs_.end() || found->second.count != best.count) continue;  // an older count of the pair
      if (best.count < options_.least_count) return {};
      const auto left = static_cast<std::int32_t>(best.pair >> 32);
      const auto right = static_cast<std::int32_t>(best.pair & 0xFFFFFFFF);
      const std::size_t length = lengths_[static_cast<std::size_t>(left)] + lengths_[static_cast<std::size_t>(right)];
      if (length > options_.longest_bytes) continue;
      lengths_.push_back(length);
      join(left, right);
      return {left, right, best.count};
    }
    return {};
  }

 private:
  struct Word {
    std::vector<std::int32_t> tokens;
    std::int64_t count;
  };
  struct Pair {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // where it is or was; may name a word twice
  };
  struct Candidate {
    std::int64_t count;
    std::uint64_t pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void change(std::int32_t left, std::int32_t right, std::int64_t by, std::size_t word) {
    const std::uint64_t pair = pair_of(left, right);
    Pair& entry = pairs_[pair];
    entry.count += by;
    if (by > 0 && (entry.words.empty() || entry.words.back() != word)) {
      entry.words.push_back(static_cast<std::uint32_t>(word));
    }
    changed_.push_back(pair);
  }

  void join(std::int32_t left, std::int32_t right) {
    const auto joined = static_cast<std::int32_t>(lengths_.size() - 1);
    const std::uint64_t pair = pair_of(left, right);
    std::vector<std::uint32_t> places = std::move(pairs_[pair].words);
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    changed_.clear();
    for (const std::uint32_t place : places) join_in(place, left, right, joined);
    pairs_.erase(pair);
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const std::uint64_t other : changed_) {
      const auto entry = pairs_.find(other);
      if (entry == pairs_.end()) continue;
      if (entry->second.count <= 0) {
        pairs_.erase(entry);
      } else {
        queue_.push({entry->second.count, other});
      }
    }
  }

  void join_in(std::uint32_t place, std::int32_t left, std::int32_t right, std::int32_t joined) {
    Word& word = words_[place];
    std::vector<std::int32_t>& tokens = word.tokens;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < tokens.size();) {
      if (i + 1 == tokens.size() || tokens[i] != left || tokens[i + 1] != right) {
        tokens[kept++] = tokens[i++];
        continue;
      }
      if (kept > 0) {
        change(tokens[kept - 1], left, -word.count, place);
        change(tokens[kept - 1], joined, word.count, place);
      }
      if (i + 2 < tokens.size()) {
        change(right, tokens[i + 2], -word.count, place);
        change(joined, tokens[i + 2], word.count, place);
      }
      tokens[kept++] = joined;
      i += 2;
    }
    tokens.resize(kept);
  }

  const BpeTrainerOptions& options_;
  std::vector<std::size_t> lengths_;  // bytes of each token
  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Pair, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<std::uint64_t> changed_;  // pairs whose counts the last merge changed
};

}  // namespace

void WordCounts::add(std::string_view word, std::int64_t count) {
  const auto found = counts_.find(word);
  if (found != counts_.end()) {
    found->second += count;
    return;
  }
  if (counts_.size() >= most_words_) forget_rare();
  counts_.emplace(word, count);
}

void WordCounts::merge(const WordCounts& other) {
  for (const auto& [word, count] : other.counts_) add(word, count);
  num_forgotten_ += other.num_forgotten_;
}

void WordCounts::forget_rare() {
  // The bound rises until at least half is gone.
  for (std::int64_t bound = 1; counts_.size() > most_words_ / 2; ++bound) {
    const std::size_t before = counts_.size();
    std::erase_if(counts_, [bound](const auto& entry) { return entry.second <= bound; });
    num_forgotten_ += static_cast<std::int64_t>(before - counts_.size());
  }
}

std::vector<std::pair<std::string, std::int64_t>> WordCounts::sorted() const {
  std::vector<std::pair<std::string, std::int64_t>> result(counts_.begin(), counts_.end());
  std::sort(result.begin(), result.end());
  return result;
}

std::vector<LearntMerge> learn_merges(const WordCounts& counts, const BpeTrainerOptions& options,
                                      const std::function<void(std::int64_t)>& progress) {
  Corpus corpus(counts, options);
  std::vector<LearntMerge> merges;
  while (std::ssize(merges) < options.num_merges) {
    const LearntMerge merge = corpus.learn();
    if (merge.count == 0) break;
    merges.push_back(merge);
    if (progress) progress(std::ssize(merges));
  }
  return merges;
}

}  // namespace primus::data
