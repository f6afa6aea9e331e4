#include "data/tokenizers/json_part.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace primus::data {
namespace {

const nlohmann::json kNull;

std::string excerpt(const nlohmann::json& value) {
  constexpr std::size_t kLongest = 60;
  // Dumping an object of a whole vocabulary for one message would be slow.
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "…";
  return text;
}

}  // namespace

void JsonPart::fail(std::string message, std::string expected) const {
  throw ConfigError({{.file = file_,
                      .key = path_,
                      .message = std::move(message),
                      .expected = std::move(expected),
                      .found = excerpt(*value_)}});
}

JsonPart JsonPart::at(std::string_view key) const {
  JsonPart part = maybe(key);
  if (part.value_ == &kNull) fail(fmt::format("lacks '{}'", key));
  return part;
}

JsonPart JsonPart::maybe(std::string_view key) const {
  if (!value_->is_object()) fail("is no object", "an object");
  const auto found = value_->find(key);
  const std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  return {found == value_->end() ? kNull : *found, file_, path};
}

std::vector<JsonPart> JsonPart::items() const {
  if (!value_->is_array()) fail("is no list", "a list");
  std::vector<JsonPart> parts;
  parts.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i)
    parts.emplace_back((*value_)[i], file_, fmt::format("{}[{}]", path_, i));
  return parts;
}

const std::string& JsonPart::text() const {
  if (!value_->is_string()) fail("is no text", "a text");
  return value_->get_ref<const std::string&>();
}

std::int64_t JsonPart::integer() const {
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 62;
  if (!value_->is_number_integer()) fail("is no whole number", "an integer");
  if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > kLargest) fail("is too large", "an integer");
  return value_->get<std::int64_t>();
}

bool JsonPart::boolean() const {
  if (!value_->is_boolean()) fail("is neither true nor false", "true or false");
  return value_->get<bool>();
}

bool JsonPart::boolean_or(std::string_view key, bool absent) const {
  const JsonPart part = maybe(key);
  return part.is_null() ? absent : part.boolean();
}

std::string JsonPart::text_or(std::string_view key, std::string absent) const {
  const JsonPart part = maybe(key);
  return part.is_null() ? absent : part.text();
}

void JsonPart::has_only(std::initializer_list<std::string_view> keys) const {
  if (!value_->is_object()) fail("is no object", "an object");
  for (const auto& [key, member] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    JsonPart(member, file_, path_.empty() ? key : fmt::format("{}.{}", path_, key))
        .fail("is not understood", fmt::format("one of {}", fmt::join(keys, ", ")));
  }
}

}  // namespace primus::data
