#include "config/parse.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>

#include "base/text.hpp"

namespace primus::config {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Digits without the underscores that may stand between two of them; empty if the underscores stand elsewhere.
std::string without_separators(std::string_view text) {
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
      continue;
    }
    if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) return {};
  }
  return digits;
}

template <typename T>
std::optional<T> parse_number(std::string_view text) {
  std::string digits = without_separators(text);
  if (!digits.empty() && digits.front() == '+') digits.erase(0, 1);
  if (digits.empty() || digits.front() == '+') return std::nullopt;
  T value{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::int64_t> parse_int(std::string_view text) {
  return parse_number<std::int64_t>(text);
}

std::optional<double> parse_real(std::string_view text) {
  // from_chars also reads "inf", "nan" and "infinity"; only texts with a digit are numbers here.
  if (std::none_of(text.begin(), text.end(), is_digit)) return std::nullopt;
  const std::optional<double> value = parse_number<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<bool> parse_bool(std::string_view text) {
  if (text.size() > 5) return std::nullopt;
  const std::string folded = lower(text);
  if (folded == "true") return true;
  if (folded == "false") return false;
  return std::nullopt;
}

bool is_variable_name(std::string_view text) {
  return !text.empty() && !is_digit(text.front()) &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

bool is_null_text(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL" || text == "None";
}

Value parse_scalar(std::string_view text) {
  if (is_null_text(text)) return {};
  if (const auto truth = parse_bool(text)) return {*truth};
  if (const auto integer = parse_int(text)) return {*integer};
  if (const auto real = parse_real(text)) return {*real};
  return {std::string(text)};
}

Value parse_value(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return parse_scalar(text);
  Value::List values;
  const std::string_view inside = trim(text.substr(1, text.size() - 2));
  if (inside.empty()) return {values};
  for (const std::string& item : split(inside, ',')) values.push_back(parse_scalar(trim(item)));
  return {values};
}

}  // namespace primus::config
