#include "data/blended_dataset.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.hpp"
#include "base/text.hpp"

namespace primus::data {
namespace {

std::optional<double> parse_number(std::string_view text) {
  text = trim(text);
  double value = 0.0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> result;
  for (const std::string& word : split(text, ' ')) {
    if (!trim(word).empty()) result.emplace_back(trim(word));
  }
  return result;
}

[[noreturn]] void fail_blend(const std::string& key, std::string message, std::string found) {
  Problem problem;
  problem.key = key;
  problem.message = std::move(message);
  problem.expected = "a prefix, prefixes, or weight and prefix in turn";
  problem.found = std::move(found);
  throw ConfigError({problem});
}

}  // namespace

BlendSpec parse_blend(const std::vector<std::string>& entries, const std::string& key) {
  std::vector<std::string> list;
  if (entries.size() == 1) {
    list = words(entries.front());
  } else {
    for (const std::string& entry : entries) list.emplace_back(trim(entry));
  }
  if (list.empty()) fail_blend(key, "names no data set", "an empty list");

  BlendSpec spec;
  const bool may_have_weights = list.size() % 2 == 0;
  std::size_t num_weights = 0;
  for (std::size_t i = 0; may_have_weights && i < list.size(); i += 2) num_weights += parse_number(list[i]) ? 1 : 0;
  const auto is_number = [](const std::string& word) { return parse_number(word).has_value(); };
  if (!may_have_weights && std::any_of(list.begin(), list.end(), is_number) &&
      !std::all_of(list.begin(), list.end(), is_number)) {
    fail_blend(key, "gives some prefixes a weight and others none", fmt::format("{}", fmt::join(list, " ")));
  }
  if (num_weights == 0) {
    spec.prefixes = std::move(list);
    return spec;
  }
  if (num_weights != list.size() / 2) {
    fail_blend(key, "gives some prefixes a weight and others none", fmt::format("{}", fmt::join(list, " ")));
  }
  spec.weights.emplace();
  for (std::size_t i = 0; i < list.size(); i += 2) {
    const double weight = *parse_number(list[i]);
    if (!std::isfinite(weight) || weight < 0.0) fail_blend(key, "has a weight that is not a number >= 0", list[i]);
    spec.weights->push_back(weight);
    spec.prefixes.push_back(list[i + 1]);
  }
  if (std::accumulate(spec.weights->begin(), spec.weights->end(), 0.0) <= 0.0) {
    fail_blend(key, "has no weight above zero", fmt::format("{}", fmt::join(list, " ")));
  }
  return spec;
}

std::vector<double> normalized(std::vector<double> weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= total;
  return weights;
}

std::int64_t blend_target(std::int64_t num_samples, double weight) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(num_samples) * weight));
}

std::int64_t blend_surplus(std::int64_t target) {
  constexpr double kSurplus = 0.005;
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(target) * (1.0 + kSurplus)));
}

std::vector<BlendEntry> build_blend(const std::vector<double>& weights, const std::vector<std::int64_t>& limits,
                                    std::int64_t num_samples) {
  PRIMUS_CHECK(weights.size() == limits.size());
  PRIMUS_CHECK(weights.size() <= static_cast<std::size_t>(std::numeric_limits<std::int16_t>::max()));
  std::vector<std::int64_t> counts(weights.size(), 0);
  std::vector<BlendEntry> entries;
  entries.reserve(static_cast<std::size_t>(num_samples));
  for (std::int64_t place = 0; place < num_samples; ++place) {
    const auto so_far = static_cast<double>(std::max<std::int64_t>(place, 1));
    double largest_lag = std::numeric_limits<double>::lowest();
    std::size_t chosen = weights.size();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (counts[i] == limits[i] || weights[i] == 0.0) continue;
      const double lag = weights[i] * so_far - static_cast<double>(counts[i]);
      if (lag > largest_lag) {
        largest_lag = lag;
        chosen = i;
      }
    }
    PRIMUS_CHECK(chosen < weights.size(), "a blend of {} samples has only {}", num_samples, place);
    entries.push_back({static_cast<std::int16_t>(chosen), counts[chosen]++});
  }
  return entries;
}

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<SampleSet>> datasets,
                               std::optional<std::vector<double>> weights, std::optional<std::int64_t> num_samples)
    : datasets_(std::move(datasets)) {
  name_ = fmt::format("a blend of {} data sets", datasets_.size());
  std::vector<std::int64_t> limits;
  for (const auto& dataset : datasets_) limits.push_back(dataset->num_samples());
  const std::int64_t available = std::accumulate(limits.begin(), limits.end(), std::int64_t{0});
  std::int64_t size = 0;
  std::vector<double> shares;
  if (weights) {
    PRIMUS_CHECK(num_samples.has_value(), "weights without a number of samples");
    shares = normalized(std::move(*weights));
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const std::int64_t target = blend_target(*num_samples, shares[i]);
      size += target;
      if (target > 0 && limits[i] == 0) {
        throw UserError(fmt::format("{}: has no sample for this split, but a weight of {:.4g} in the blend",
                                    datasets_[i]->name(), shares[i]));
      }
    }
  } else {
    size = num_samples ? std::min(*num_samples, available) : available;
    for (const std::int64_t limit : limits) shares.push_back(static_cast<double>(limit));
    if (available > 0) shares = normalized(std::move(shares));
  }
  entries_ = build_blend(shares, limits, size);
}

void BlendedDataset::read(std::int64_t sample, std::span<std::int64_t> out) const {
  PRIMUS_CHECK(sample >= 0 && sample < num_samples(), "sample {} of {} in {}", sample, num_samples(), name_);
  const BlendEntry entry = entries_[static_cast<std::size_t>(sample)];
  datasets_[static_cast<std::size_t>(entry.dataset)]->read(entry.sample, out);
}

}  // namespace primus::data
