#pragma once
// Finds texts that say the same: exact copies, near-copies, and texts that repeat what is held out.
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace primus::data {

/// Hashes of the runs of five words of a text (letters and digits, case folded): what two texts have in common does not
/// hang on layout, punctuation or order of paragraphs. A text of fewer words is one run.
std::unordered_set<std::uint64_t> shingles(std::string_view text);

/// Two texts are near-copies when they share at least this part of their joint shingles (Jaccard).
inline constexpr double kNearCopyResemblance = 0.8;

/// A training text repeats held-out text when at least this part of the held-out text's shingles occurs in it.
/// Unrelated licences share up to 5 % in stock phrases; two versions of one licence share 20 % and more.
inline constexpr double kHeldOutOverlap = 0.1;

/// Remembers the texts taken so far, each as the 512 smallest shingle hashes (4 KiB), which estimate resemblance to a
/// few percent and exactly for short texts.
class CopyFinder {
 public:
  /// Take a text, unless it is a copy or near-copy of one taken earlier.
  enum class Verdict { kNew, kCopy };
  Verdict take(std::string_view text);

 private:
  struct Sketch {
    std::vector<std::uint64_t> smallest;  // ascending
  };
  static double resemblance(const Sketch& a, const Sketch& b);

  std::vector<Sketch> sketches_;
  std::unordered_multimap<std::uint64_t, std::size_t> by_hash_;
};

/// The held-out texts, for the test whether a training text gives them away.
class HeldOutText {
 public:
  void add(std::string_view text);
  /// Does this training text hold a tell-tale part of any of them?
  bool is_repeated_in(std::string_view text) const;

 private:
  std::vector<std::unordered_set<std::uint64_t>> texts_;
};

}  // namespace primus::data
