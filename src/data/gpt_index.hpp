#pragma once
// Megatron's sample order: which tokens make up sample i, as three tables that depend on lengths, counts and seed only.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace primus::data {

/// The parts of the data; the values are their places in a split string.
enum class Split : std::uint8_t { kTrain = 0, kValid = 1, kTest = 2 };
inline constexpr std::size_t kNumSplits = 3;

/// "training", "validation", "test".
std::string_view to_text(Split split);

/// Sequences [begin, end) of a data set.
struct SequenceRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

/// Shares of the splits, summing to 1, from a split string such as "969,30,1". Throws ConfigError.
std::array<double, kNumSplits> split_fractions(std::string_view split);

/// The ranges that a split string gives, boundaries rounded half to even. Throws ConfigError.
std::array<SequenceRange, kNumSplits> split_ranges(std::string_view split, std::int64_t num_sequences);

/// What becomes of the tokens after the last whole sample.
enum class PartialSample { kDropped, kKept };

struct GptIndexOptions {
  SequenceRange range;
  std::int64_t seq_length = 0;
  std::optional<std::int64_t> num_samples;  // absent: one epoch
  std::uint32_t seed = 1234;
  PartialSample partial_sample = PartialSample::kDropped;
};

/// Where a sample begins; it ends one token after the next one's beginning.
struct SampleStart {
  std::int64_t position = 0;  // in the document index
  std::int64_t offset = 0;    // in tokens
  bool operator==(const SampleStart&) const = default;
};

/// How many times the tokens are gone through, and whether the last time is shuffled apart.
struct EpochPlan {
  std::int64_t num_epochs = 1;
  enum class FinalEpoch { kShuffledWithOthers, kShuffledApart } final_epoch = FinalEpoch::kShuffledWithOthers;
  std::int64_t num_samples_before_final = 0;  // counted only when the final epoch is apart
};

struct GptIndex {
  std::vector<std::int32_t> documents;  // sequence numbers in the order in which they are concatenated
  std::vector<SampleStart> samples;     // num_samples() + 1 entries, none when there are no samples
  std::vector<std::int64_t> shuffle;    // sample i is the stretch from samples[shuffle[i]] to the next
  EpochPlan epochs;

  std::int64_t num_samples() const { return static_cast<std::int64_t>(shuffle.size()); }
};

/// Smallest number of epochs that yields `num_samples`.
EpochPlan plan_epochs(std::int64_t num_tokens_per_epoch, std::int64_t seq_length,
                      std::optional<std::int64_t> num_samples);

/// The three tables for sequences of the given lengths (of the whole data set, not of the range alone). A range without
/// tokens has no samples.
GptIndex build_gpt_index(std::span<const std::int32_t> lengths, const GptIndexOptions& options);

}  // namespace primus::data
