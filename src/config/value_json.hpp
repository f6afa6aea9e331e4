#pragma once
// A configuration value as JSON: in the run's folder, and in what programs read from primus-cli.
#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

#include "config/value.hpp"

namespace primus::config {

inline nlohmann::ordered_json json_of(const Value& value) {
  using Json = nlohmann::ordered_json;
  return std::visit(
      [](const auto& data) -> Json {
        using T = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, Value::List>) {
          Json list = Json::array();
          for (const Value& item : data) list.push_back(json_of(item));
          return list;
        } else if constexpr (std::is_same_v<T, Value::Map>) {
          Json map = Json::object();
          for (const auto& [key, item] : data) map[key] = json_of(item);
          return map;
        } else {
          return data;
        }
      },
      value.data);
}

}  // namespace primus::config
