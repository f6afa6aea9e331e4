#include "cli/key_text.hpp"

#include <fmt/format.h>

#include "base/text.hpp"
#include "config/read_beside.hpp"
#include "config/value_json.hpp"

namespace primus::cli {
namespace {

using config::Key;

std::string words_of(std::string_view choices) {
  std::string text;
  for (const std::string& word : split(choices, '|')) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// What "planned" and "works" leave out of a key that has a switch.
std::string beside_text(const Key& key) {
  return config::switches_of(key).empty() ? "" : fmt::format("; {}", config::unread_text(key));
}

}  // namespace

std::string state_with_reason(const Key& key) {
  const std::string note(key.note);
  switch (key.state) {
    case config::KeyState::kNoEffect:
      return "no effect: " + note;
    case config::KeyState::kPlanned:
      return (note.empty() ? "planned" : "planned: " + note) + beside_text(key);
    case config::KeyState::kWorks:
      break;
  }
  std::string text =
      key.working.empty() ? "works" : fmt::format("works for {}, the rest is planned", words_of(key.working));
  return (note.empty() ? text : text + "; " + note) + beside_text(key);
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
  const std::vector<config::Switch> switches = config::switches_of(key);
  if (!switches.empty()) json["read_beside"] = Json::array();
  for (const config::Switch& one : switches) {
    Json entry = {{"key", one.key}};
    if (!one.values.empty()) entry["values"] = one.values;
    json["read_beside"].push_back(std::move(entry));
  }
  if (!key.working.empty()) json["working"] = split(key.working, '|');
  if (!key.note.empty()) json["note"] = key.note;
  return json;
}

}  // namespace primus::cli
