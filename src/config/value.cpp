#include "config/value.hpp"

#include <fmt/format.h>

#include "base/visible.hpp"
#include "config/parse.hpp"

namespace primus::config {
namespace {

// Quoted where plain text would be read back as something else, so that a written value means itself.
std::string quoted_if_needed(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_of(":#{}[],&*!|>'\"%@`\n\t\\") == std::string::npos &&
                     visible(text) == text && text.front() != ' ' && text.back() != ' ' && text.front() != '-' &&
                     text.front() != '?' && std::holds_alternative<std::string>(parse_scalar(text).data);
  if (plain) return text;
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else {
      result += c;
    }
  }
  return visible(result) + '"';
}

std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

struct TextOf {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return real_text(value); }
  std::string operator()(const std::string& value) const { return quoted_if_needed(value); }
  std::string operator()(const Value::List& values) const {
    std::string text = "[";
    for (const Value& value : values) text += (text.size() > 1 ? ", " : "") + to_text(value);
    return text + "]";
  }
  std::string operator()(const Value::Map& values) const {
    std::string text = "{";
    for (const auto& [key, value] : values)
      text += (text.size() > 1 ? ", " : "") + quoted_if_needed(key) + ": " + to_text(value);
    return text + "}";
  }
};

}  // namespace

std::string to_text(const Value& value) {
  return std::visit(TextOf{}, value.data);
}

std::string_view layer_text(Layer layer) {
  switch (layer) {
    case Layer::kDefault:
      return "default";
    case Layer::kModulePreset:
      return "module preset";
    case Layer::kModelPreset:
      return "model preset";
    case Layer::kExperiment:
      return "experiment";
    case Layer::kCommandLine:
      return "command line";
    case Layer::kRule:
      return "rule";
  }
  return "";
}

}  // namespace primus::config
