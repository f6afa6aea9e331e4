#include "base/longer_name.hpp"

#include "base/text.hpp"

namespace primus {

std::optional<std::string> nearest_longer_name(std::string_view name, std::span<const std::string_view> candidates) {
  constexpr std::size_t kShortest = 3;
  if (name.size() < kShortest) return std::nullopt;
  const std::string wanted = lower(name);
  constexpr std::string_view kBounds = "-_.";
  std::string_view best;
  for (const std::string_view candidate : candidates) {
    if (candidate.size() <= name.size() || (!best.empty() && candidate.size() >= best.size())) continue;
    const std::string whole = lower(candidate);
    const std::size_t rest = whole.size() - wanted.size();
    const bool begins = whole.starts_with(wanted) && kBounds.find(whole[wanted.size()]) != std::string_view::npos;
    const bool ends = whole.ends_with(wanted) && kBounds.find(whole[rest - 1]) != std::string_view::npos;
    if (begins || ends) best = candidate;
  }
  return best.empty() ? std::nullopt : std::optional<std::string>(best);
}

}  // namespace primus
