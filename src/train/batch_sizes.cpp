#include "train/batch_sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/text.hpp"
#include "config/number_list.hpp"
#include "config/parse.hpp"

namespace primus::train {
namespace {

using Sizes = std::vector<std::pair<std::int64_t, std::int64_t>>;

[[noreturn]] void refuse(const std::string& text, const std::string& part) {
  throw UserError(fmt::format("step_batch_size_schedule: '{}' in '{}' is no place and size (expected TOKENS:SEQUENCES, "
                              "as in \"0:64 2B:128\", the first from 0 and rising)",
                              part, text),
                  ExitCode::kWrongInput);
}

/// "1.5B" tokens.
std::optional<double> tokens_of(std::string_view word) {
  constexpr std::pair<char, double> kSuffixes[] = {{'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'T', 1e12}};
  double factor = 1.0;
  for (const auto& [suffix, value] : kSuffixes) {
    if (!word.ends_with(suffix)) continue;
    factor = value;
    word.remove_suffix(1);
  }
  const auto number = config::parse_real(word);
  return number ? std::optional(*number * factor) : std::nullopt;
}

/// Start, increment and samples: sizes rise by the increment after equal shares of the samples.
Sizes ramp(const std::vector<double>& numbers, std::int64_t global_batch_size) {
  const auto start = static_cast<std::int64_t>(numbers.at(0));
  const auto increment = static_cast<std::int64_t>(numbers.at(1));
  const std::int64_t num_increments = (global_batch_size - start) / increment;
  Sizes sizes = {{0, start}};
  for (std::int64_t i = 1; i <= num_increments; ++i) {
    const double place = numbers.at(2) / static_cast<double>(num_increments) * static_cast<double>(i);
    sizes.emplace_back(static_cast<std::int64_t>(std::ceil(place)), start + i * increment);
  }
  return sizes;
}

}  // namespace

Sizes parse_batch_schedule(const std::string& text, std::int64_t seq_length) {
  Sizes sizes;
  for (const std::string& word : split(text, ' ')) {
    if (trim(word).empty()) continue;
    const std::size_t colon = word.find(':');
    const auto tokens = tokens_of(word.substr(0, std::min(colon, word.size())));
    const auto size = colon == std::string::npos ? std::nullopt : config::parse_int(word.substr(colon + 1));
    if (!tokens || *tokens < 0.0 || !size || *size < 1) refuse(text, word);
    const std::int64_t samples = static_cast<std::int64_t>(*tokens) / seq_length;
    const bool follows = sizes.empty() ? *tokens == 0.0 : samples > sizes.back().first;
    if (!follows) refuse(text, word);
    sizes.emplace_back(samples, *size);
  }
  if (sizes.empty()) refuse(text, text);
  return sizes;
}

BatchSizes BatchSizes::from(const config::Experiment& experiment) {
  BatchSizes sizes;
  sizes.micro_batch_ = experiment.get_int("micro_batch_size");
  const std::int64_t global = experiment.get_int("global_batch_size");
  if (const auto schedule = experiment.get_optional_string("step_batch_size_schedule")) {
    sizes.from_samples_ = parse_batch_schedule(*schedule, experiment.get_int("seq_length"));
  } else if (!experiment.is_null("rampup_batch_size")) {
    sizes.from_samples_ = ramp(config::numbers_of(experiment.setting("rampup_batch_size").value), global);
  } else {
    sizes.from_samples_ = {{0, global}};
  }
  for (const auto& [from, size] : sizes.from_samples_) {
    if (size % sizes.micro_batch_ == 0) continue;
    if (!experiment.get_bool("decrease_batch_size_if_needed")) {
      throw UserError(
          fmt::format("a global batch of {} sequences (from sample {} on) is no multiple of micro_batch_size "
                      "{}; choose sizes that are, or set decrease_batch_size_if_needed",
                      size, from, sizes.micro_batch_),
          ExitCode::kWrongInput);
    }
    if (size < sizes.micro_batch_) {
      throw UserError(fmt::format("a global batch of {} sequences (from sample {} on) is less than micro_batch_size {}",
                                  size, from, sizes.micro_batch_),
                      ExitCode::kWrongInput);
    }
  }
  return sizes;
}

std::int64_t BatchSizes::at(std::int64_t consumed_samples) const {
  const auto next = std::find_if(from_samples_.begin(), from_samples_.end(),
                                 [&](const auto& entry) { return entry.first > consumed_samples; });
  return std::prev(next)->second / micro_batch_ * micro_batch_;
}

std::int64_t BatchSizes::steps_of(std::int64_t samples) const {
  std::int64_t consumed = 0;
  std::int64_t steps = 0;
  for (; consumed < from_samples_.back().first && consumed + at(consumed) <= samples; ++steps) consumed += at(consumed);
  return steps + (samples - consumed) / at(consumed);
}

std::int64_t BatchSizes::samples_of(std::int64_t steps) const {
  std::int64_t consumed = 0;
  for (; steps > 0 && consumed < from_samples_.back().first; --steps) consumed += at(consumed);
  return consumed + steps * at(consumed);
}

}  // namespace primus::train
