#include "cli/key_text.hpp"

#include <fmt/format.h>

#include "base/text.hpp"
#include "config/value_json.hpp"

namespace primus::cli {
namespace {

using config::Key;

std::string words_of(std::string_view choices) {
  std::string text;
  for (const std::string& word : split(choices, '|')) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace

std::string state_with_reason(const Key& key) {
  const std::string note(key.note);
  switch (key.state) {
    case config::KeyState::kNoEffect:
      return "no effect: " + note;
    case config::KeyState::kPlanned:
      return note.empty() ? "planned" : "planned: " + note;
    case config::KeyState::kWorks:
      break;
  }
  std::string text =
      key.working.empty() ? "works" : fmt::format("works for {}, the rest is planned", words_of(key.working));
  return note.empty() ? text : text + "; " + note;
}

Json describe_key(const Key& key) {
  Json json = {{"key", key.name},
               {"default", config::json_of(config::default_value(key))},
               {"expected", config::expected_text(key)},
               {"meaning", key.meaning},
               {"state", config::state_text(key.state)}};
  const bool is_choice =
      !key.allowed.empty() && key.allowed.find("..") == std::string_view::npos && !key.allowed.starts_with('>');
  if (is_choice) json["allowed"] = split(key.allowed, '|');
  if (!key.working.empty() && key.working != "*") json["working"] = split(key.working, '|');
  if (!key.note.empty()) json["note"] = key.note;
  return json;
}

}  // namespace primus::cli
