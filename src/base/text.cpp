#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

namespace primus {
namespace {

char folded(char c) {
  return c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

std::string three_digits(double value) {
  const double magnitude = std::abs(value);
  if (magnitude >= 99.95) return fmt::format("{:.0f}", value);
  if (magnitude >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

std::string scaled(double value, double base, std::span<const std::string_view> units) {
  std::size_t unit = 0;
  while (std::abs(value) >= base && unit + 1 < units.size()) {
    value /= base;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f}{}", value, units[0]);
  return three_digits(value) + std::string(units[unit]);
}

std::string all_folded(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), folded);
  return result;
}

// Anything above `limit` for a distance above it: a table row whose smallest entry is above it need not be continued.
std::size_t folded_distance(std::string_view a, std::string_view b, std::size_t limit) {
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  std::size_t least_before = 0;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    std::size_t least = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool equal = a[i - 1] == b[j - 1];
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (equal ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
      least = std::min(least, current[j]);
    }
    // Two rows, because a swap of neighbours looks two rows back.
    if (std::min(least, least_before) > limit) return limit + 1;
    least_before = least;
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

}  // namespace

std::string format_bytes(std::int64_t num_bytes) {
  static constexpr std::array<std::string_view, 6> kUnits = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(static_cast<double>(num_bytes), 1024.0, kUnits);
}

std::string format_count(std::int64_t count) {
  std::string digits = std::to_string(count);
  const std::size_t first = digits.front() == '-' ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, 1, ',');
  }
  return digits;
}

std::string counted(std::int64_t count, std::string_view noun) {
  const std::string_view plural = count == 1 ? "" : noun.ends_with("ch") ? "es" : "s";
  return fmt::format("{} {}{}", format_count(count), noun, plural);
}

std::string format_short_count(double count) {
  static constexpr std::array<std::string_view, 5> kUnits = {"", " K", " M", " B", " T"};
  return scaled(count, 1000.0, kUnits);
}

std::string format_duration(double seconds) {
  if (seconds >= 3600.0) {
    const auto minutes = static_cast<std::int64_t>(seconds / 60.0);
    return fmt::format("{} h {:02d} min", minutes / 60, minutes % 60);
  }
  if (seconds >= 60.0) {
    const auto whole = static_cast<std::int64_t>(seconds);
    return fmt::format("{} min {:02d} s", whole / 60, whole % 60);
  }
  if (seconds >= 1.0) return three_digits(seconds) + " s";
  if (seconds >= 1e-3) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds * 1e6) + " µs";
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  return folded_distance(all_folded(a), all_folded(b), std::max(a.size(), b.size()));
}

std::optional<std::string> nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  const std::size_t limit = std::max<std::size_t>(1, name.size() / 3);
  const std::string wanted = all_folded(name);
  std::size_t best_distance = limit + 1;
  std::string_view best;
  for (const std::string_view candidate : candidates) {
    const std::size_t longer = std::max(candidate.size(), name.size());
    const std::size_t shorter = std::min(candidate.size(), name.size());
    if (longer - shorter >= best_distance) continue;
    const std::size_t distance = folded_distance(wanted, all_folded(candidate), best_distance - 1);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (best_distance > limit) return std::nullopt;
  return std::string(best);
}

std::string csv_field(std::string_view text) {
  return text.find_first_of(",\"\r\n") == text.npos ? std::string(text) : csv_quoted(text);
}

std::string csv_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(separator, begin);
    if (end == std::string_view::npos) {
      parts.emplace_back(text.substr(begin));
      return parts;
    }
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

bool is_utf8(std::string_view text) {
  // Lowest code point of a sequence of 2, 3 and 4 bytes: anything lower is an overlong form (Unicode 15, table 3-7).
  constexpr std::array<std::uint32_t, 3> kLowest = {0x80, 0x800, 0x10000};
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) continue;
    const std::size_t num_following = lead >= 0xF8 ? 4 : lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
    if (num_following == 0 || num_following > 3 || i + num_following > text.size()) return false;
    std::uint32_t point = lead & (0x3F >> num_following);
    for (std::size_t k = 0; k < num_following; ++k) {
      const auto next = static_cast<unsigned char>(text[i++]);
      if ((next & 0xC0) != 0x80) return false;
      point = point << 6 | (next & 0x3F);
    }
    if (point < kLowest[num_following - 1] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return false;
  }
  return true;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

}  // namespace primus
