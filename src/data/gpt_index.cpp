#include "data/gpt_index.hpp"

#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.hpp"
#include "data/numpy_random.hpp"

namespace primus::data {
namespace {

using FinalEpoch = EpochPlan::FinalEpoch;

[[noreturn]] void fail_split(std::string_view split, std::string message) {
  Problem problem;
  problem.key = "split";
  problem.message = std::move(message);
  problem.expected = "up to three parts, none negative, not all zero, for instance 969,30,1";
  problem.found = std::string(split);
  throw ConfigError({problem});
}

/// The sequences of the range, once an epoch, shuffled as a whole.
std::vector<std::int32_t> shuffled_epochs(SequenceRange range, std::int64_t num_epochs, NumpyRandomState& random) {
  std::vector<std::int32_t> documents(static_cast<std::size_t>(num_epochs * range.size()));
  for (std::int64_t epoch = 0; epoch < num_epochs; ++epoch) {
    const auto begin = documents.begin() + epoch * range.size();
    std::iota(begin, begin + range.size(), static_cast<std::int32_t>(range.begin));
  }
  random.shuffle(std::span(documents));
  return documents;
}

std::vector<SampleStart> walk_samples(std::span<const std::int32_t> lengths, std::span<const std::int32_t> documents,
                                      std::int64_t num_samples, std::int64_t seq_length) {
  std::vector<SampleStart> samples;
  samples.reserve(static_cast<std::size_t>(num_samples) + 1);
  SampleStart at;
  samples.push_back(at);
  const auto last = static_cast<std::int64_t>(documents.size()) - 1;
  for (std::int64_t sample = 0; sample < num_samples; ++sample) {
    std::int64_t wanted = seq_length + 1;
    while (true) {
      const std::int64_t document_length =
          lengths[static_cast<std::size_t>(documents[static_cast<std::size_t>(at.position)])];
      const std::int64_t left = document_length - at.offset;
      if (left >= wanted) {
        // Neighbours share a token: the last label of one is the first input of the next.
        at.offset += wanted - 1;
        break;
      }
      if (at.position == last) {
        PRIMUS_CHECK(sample == num_samples - 1, "sample {} of {} runs past the data", sample, num_samples);
        at.offset = document_length - 1;
        break;
      }
      wanted -= left;
      ++at.position;
      at.offset = 0;
    }
    samples.push_back(at);
  }
  return samples;
}

}  // namespace

std::string_view to_text(Split split) {
  switch (split) {
    case Split::kTrain:
      return "training";
    case Split::kValid:
      return "validation";
    case Split::kTest:
      return "test";
  }
  return "unknown";
}

std::array<double, kNumSplits> split_fractions(std::string_view split) {
  std::array<double, kNumSplits> parts{};
  std::size_t num_parts = 0;
  const char* next = split.data();
  const char* const end = split.data() + split.size();
  const auto is_separator = [](char c) { return c == ',' || c == ' ' || c == '/'; };
  while (next != end) {
    if (is_separator(*next)) {
      ++next;
      continue;
    }
    if (num_parts == kNumSplits) fail_split(split, "has too many parts");
    double part = 0.0;
    const auto [stop, error] = std::from_chars(next, end, part);
    if (error != std::errc{} || (stop != end && !is_separator(*stop)) || !std::isfinite(part) || part < 0.0) {
      fail_split(split, "cannot be read as numbers");
    }
    parts[num_parts++] = part;
    next = stop;
  }
  const double total = std::accumulate(parts.begin(), parts.end(), 0.0);
  if (total <= 0.0) fail_split(split, "leaves every part empty");
  for (double& part : parts) part /= total;
  return parts;
}

std::array<SequenceRange, kNumSplits> split_ranges(std::string_view split, std::int64_t num_sequences) {
  const std::array<double, kNumSplits> fractions = split_fractions(split);
  std::array<SequenceRange, kNumSplits> ranges;
  double boundary = 0.0;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < kNumSplits; ++i) {
    boundary += fractions[i];
    // nearbyint rounds half to even, as Python's round.
    const auto end = static_cast<std::int64_t>(std::nearbyint(boundary * static_cast<double>(num_sequences)));
    ranges[i] = {begin, std::min(end, num_sequences)};
    begin = ranges[i].end;
  }
  return ranges;
}

EpochPlan plan_epochs(std::int64_t num_tokens_per_epoch, std::int64_t seq_length,
                      std::optional<std::int64_t> num_samples) {
  PRIMUS_CHECK(num_tokens_per_epoch > 0 && seq_length > 0, "{} {}", num_tokens_per_epoch, seq_length);
  EpochPlan plan;
  if (!num_samples) return plan;
  const std::int64_t num_tokens = *num_samples * seq_length + 1;
  plan.num_epochs = std::max<std::int64_t>(1, (num_tokens + num_tokens_per_epoch - 1) / num_tokens_per_epoch);
  if (plan.num_epochs == 1) return plan;

  // A final epoch of which only a small part is used would otherwise spread over the whole run and leave its documents
  // seen once more often than others from the beginning on.
  constexpr double kThreshold = 0.80;
  const std::int64_t before_final = ((plan.num_epochs - 1) * num_tokens_per_epoch - 1) / seq_length;
  const std::int64_t per_epoch = (num_tokens_per_epoch - 1) / seq_length;
  if (*num_samples - before_final < static_cast<std::int64_t>(kThreshold * static_cast<double>(per_epoch))) {
    plan.final_epoch = FinalEpoch::kShuffledApart;
    plan.num_samples_before_final = before_final;
  }
  return plan;
}

GptIndex build_gpt_index(std::span<const std::int32_t> lengths, const GptIndexOptions& options) {
  const SequenceRange range = options.range;
  PRIMUS_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= static_cast<std::int64_t>(lengths.size()));
  PRIMUS_CHECK(lengths.size() <= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()));
  GptIndex index;
  std::int64_t num_tokens_per_epoch = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) num_tokens_per_epoch += lengths[static_cast<std::size_t>(i)];
  if (num_tokens_per_epoch == 0) return index;

  index.epochs = plan_epochs(num_tokens_per_epoch, options.seq_length, options.num_samples);
  NumpyRandomState random(options.seed);
  if (index.epochs.final_epoch == FinalEpoch::kShuffledApart) {
    index.documents = shuffled_epochs(range, index.epochs.num_epochs - 1, random);
    const std::vector<std::int32_t> final_epoch = shuffled_epochs(range, 1, random);
    index.documents.insert(index.documents.end(), final_epoch.begin(), final_epoch.end());
  } else {
    index.documents = shuffled_epochs(range, index.epochs.num_epochs, random);
  }

  const std::int64_t num_steps = index.epochs.num_epochs * num_tokens_per_epoch - 1;
  const std::int64_t rounding = options.partial_sample == PartialSample::kKept ? options.seq_length - 1 : 0;
  const std::int64_t num_samples = (num_steps + rounding) / options.seq_length;
  if (num_samples == 0) return index;
  index.samples = walk_samples(lengths, index.documents, num_samples, options.seq_length);

  index.shuffle.resize(static_cast<std::size_t>(num_samples));
  std::iota(index.shuffle.begin(), index.shuffle.end(), 0);
  const std::span shuffle(index.shuffle);
  if (index.epochs.final_epoch == FinalEpoch::kShuffledApart) {
    const auto boundary = static_cast<std::size_t>(index.epochs.num_samples_before_final);
    random.shuffle(shuffle.first(boundary));
    random.shuffle(shuffle.subspan(boundary));
  } else {
    random.shuffle(shuffle);
  }
  return index;
}

}  // namespace primus::data
