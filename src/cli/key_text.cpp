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

/// One key, or several under "all_of".
Json describe_switch(const config::Switch& conditions) {
  Json list = Json::array();
  for (const config::Condition& condition : conditions) {
    Json entry = {{"key", condition.key}};
    const bool is_negated = condition.holds == config::Condition::Holds::kNoneOf;
    if (!condition.values.empty()) entry[is_negated ? "other_than" : "values"] = condition.values;
    list.push_back(std::move(entry));
  }
  return list.size() == 1 ? list.front() : Json{{"all_of", std::move(list)}};
}

}  // namespace

std::string state_with_reason(const Key& key) {
  const std::string note = key.note.empty() ? "" : "; " + std::string(key.note);
  switch (key.state) {
    case config::KeyState::kNoEffect:
      return fmt::format("no effect: {}", key.note);
    case config::KeyState::kPlanned:
      return (key.unbuilt.empty() ? "planned" : fmt::format("planned: {}", key.unbuilt)) + note + beside_text(key);
    case config::KeyState::kWorks:
      break;
  }
  const std::string text =
      key.working.empty() ? "works"
                          : fmt::format("works for {}; planned: {}", words_of(key.working), config::unbuilt_text(key));
  return text + note + beside_text(key);
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
  const std::vector<config::Switch>& switches = config::switches_of(key);
  if (!switches.empty()) json["read_beside"] = Json::array();
  for (const config::Switch& one : switches) json["read_beside"].push_back(describe_switch(one));
  if (!key.working.empty()) json["working"] = split(key.working, '|');
  if (!key.unbuilt.empty()) json["planned"] = key.unbuilt;
  if (!key.note.empty()) json["note"] = key.note;
  return json;
}

}  // namespace primus::cli
