#pragma once
// Small text helpers: sizes and counts for people, nearest names for error messages.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

/// "1.23 GiB"; binary units, three significant digits.
std::string format_bytes(std::int64_t num_bytes);

/// "15,706,484,224".
std::string format_count(std::int64_t count);

/// "1 rank", "2,000 ranks", "3 batches".
std::string counted(std::int64_t count, std::string_view noun);

/// "15.7 B" (thousand K, million M, billion B, trillion T).
std::string format_short_count(double count);

/// "1 h 02 min", "3 min 05 s", "12.3 s", "4.56 ms", "7.8 µs".
std::string format_duration(double seconds);

/// Levenshtein distance with adjacent transpositions; '-' and '_' count as equal, case does not matter.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `name`, if near enough to be a likely slip (distance at most a third of the length).
std::optional<std::string> nearest_name(std::string_view name, std::span<const std::string_view> candidates);

/// A field of comma-separated values, quoted where it must be (RFC 4180); and one that is quoted in any case.
std::string csv_field(std::string_view text);
std::string csv_quoted(std::string_view text);

std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string lower(std::string_view text);

/// Is the text well-formed UTF-8 (no overlong forms, no surrogates)?
bool is_utf8(std::string_view text);

}  // namespace primus
