#include "config/number_list.hpp"

#include "base/error.hpp"

namespace primus::config {

std::vector<double> numbers_of(const Value& value) {
  if (value.is_null()) return {};
  if (const auto* integer = std::get_if<std::int64_t>(&value.data)) return {static_cast<double>(*integer)};
  if (const auto* real = std::get_if<double>(&value.data)) return {*real};
  const auto* list = std::get_if<Value::List>(&value.data);
  PRIMUS_CHECK(list != nullptr, "{} is no list of numbers", to_text(value));
  std::vector<double> numbers;
  for (const Value& item : *list) {
    const std::vector<double> number = numbers_of(item);
    numbers.insert(numbers.end(), number.begin(), number.end());
  }
  return numbers;
}

}  // namespace primus::config
