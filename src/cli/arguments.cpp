#include "cli/arguments.hpp"
#include "cli/app.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"

namespace primus::cli {
namespace {

constexpr std::string_view kPlace = "command line";

std::string listed(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return names.size() > 1 ? "one of " + text : text;
}

std::string hint(std::string_view word, std::span<const std::string_view> names) {
  const auto nearest = nearest_name(word, names);
  return nearest ? fmt::format("did you mean '{}'?", *nearest) : "";
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

[[noreturn]] void refuse_unknown(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> names = option_names(app);
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string name = word.substr(0, word.find('='));
  const bool is_option = word.starts_with("-");
  throw ConfigError(
      {{.file = std::string(kPlace),
        .message = is_option ? fmt::format("unknown option '{}'", name) : fmt::format("unexpected '{}'", word),
        .nearest = is_option ? hint(name, views) : fmt::format("see {} --help", app.get_name())}});
}

// An option that is missing may be there under a name that is nearly right.
void refuse_misspelt(const CLI::App& app, std::span<const std::string> words) {
  const std::vector<std::string> names = option_names(app);
  const std::vector<std::string_view> views(names.begin(), names.end());
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (!name.starts_with("--") || std::find(names.begin(), names.end(), name) != names.end()) continue;
    if (nearest_name(name, views)) refuse_unknown(app, word);
  }
}

// An experiment that stands where its option should.
void refuse_bare_experiment(const CLI::App& app, std::span<const std::string> words) {
  const CLI::Option* config = app.get_option_no_throw("--config");
  if (!config || config->count() > 0 || words.empty() || !words.front().ends_with(".yaml")) return;
  if (words.front().starts_with("-") || words.front().find('=') != std::string::npos) return;
  throw ConfigError({{.file = std::string(kPlace),
                      .message = fmt::format("unexpected '{}'", words.front()),
                      .nearest = fmt::format("write --config {}", words.front())}});
}

// An option that is written has a value: nothing must not stand for the default.
void refuse_empty_values(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const auto& values = option->results();
    if (option->get_lnames().empty() || std::find(values.begin(), values.end(), "") == values.end()) continue;
    throw ConfigError({{.file = std::string(kPlace),
                        .key = "--" + option->get_lnames().front(),
                        .message = "needs a value",
                        .nearest = fmt::format("see {} --help", app.get_name())}});
  }
}

}  // namespace

Parsed parse_options(CLI::App& app, std::span<const std::string> words, Rest what_to_do,
                     std::vector<std::string>& rest) {
  app.allow_extras();
  // CLI11 takes its words from the back.
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}\n", app.help());
    return Parsed::kHelpShown;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError)) {
      refuse_misspelt(app, words);
      refuse_bare_experiment(app, words);
    }
    throw ConfigError({{.file = std::string(kPlace),
                        .message = error.what(),
                        .nearest = fmt::format("see {} --help", app.get_name())}});
  }
  refuse_empty_values(app);
  rest = app.remaining();
  if (what_to_do == Rest::kRefuse && !rest.empty()) refuse_unknown(app, rest.front());
  return Parsed::kRun;
}

void refuse_word(std::string_view what, std::string_view word, std::span<const std::string_view> names) {
  const std::string message =
      word.empty() ? fmt::format("{} is missing", what) : fmt::format("unknown {} '{}'", what, word);
  throw ConfigError(
      {{.file = std::string(kPlace), .message = message, .expected = listed(names), .nearest = hint(word, names)}});
}

void refuse_planned(std::string_view word, std::string_view what) {
  throw ConfigError(
      {{.file = std::string(kPlace), .message = fmt::format("{}: {} is planned for a later release", word, what)}});
}

}  // namespace primus::cli
