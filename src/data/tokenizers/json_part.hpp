#pragma once
// A part of a JSON file that knows its place, so that every fault is named.
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus::data {

/// A value, its file and its path in it. Every accessor throws ConfigError naming both.
class JsonPart {
 public:
  JsonPart(const nlohmann::json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }

  /// The member, which must be there.
  JsonPart at(std::string_view key) const;
  /// The member, or a null.
  JsonPart maybe(std::string_view key) const;
  std::vector<JsonPart> items() const;

  const std::string& text() const;
  std::int64_t integer() const;
  bool boolean() const;
  /// For members that may be absent or null.
  bool boolean_or(std::string_view key, bool absent) const;
  std::string text_or(std::string_view key, std::string absent) const;

  /// Refuse an object with members other than these: a setting that is passed over would give other tokens.
  void has_only(std::initializer_list<std::string_view> keys) const;

  [[noreturn]] void fail(std::string message, std::string expected = "") const;

 private:
  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace primus::data
