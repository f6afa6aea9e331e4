#pragma once
// Values as they are written into an experiment, so that reading it gives the same ones.
#include <string>
#include <string_view>

#include "config/value.hpp"

namespace primus::config {

inline std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

/// A value whose reader fills in ${NAME}.
inline std::string file_text(const Value& value) {
  return replaced(to_text(value), "${", "$${");
}

/// A value of the map env, whose reader fills in $NAME as well.
inline std::string variable_file_text(const std::string& value) {
  return file_text({replaced(value, "$", "$$")});
}

}  // namespace primus::config
