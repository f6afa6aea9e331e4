#include "cli/arguments.hpp"
#include "cli/app.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

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

/// "N" of "N:POSITIVE", where CLI11 has added what its check is called.
std::string type_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

/// What CLI11's own checks of numbers ask for; empty: the option has none of them.
std::string range_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type.find(":POSITIVE") != std::string::npos) return "a number above 0";
  return type.find(":NONNEGATIVE") != std::string::npos ? "a number >= 0" : "";
}

/// What the words say about the command's own options, before CLI11 reads them: its sentences are not for users.
class OptionCheck {
 public:
  OptionCheck(const CLI::App& app, std::span<const std::string> words) : app_(app), words_(words) {}

  void run() {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if (const CLI::Option* option = option_of(words_[i])) i += check(*option, i);
    }
    for (const CLI::Option* option : app_.get_options()) {
      if (option->get_required() && !option->get_lnames().empty() && !seen_.contains(option)) add_missing(*option);
    }
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
  }

 private:
  const CLI::Option* option_of(const std::string& word) const {
    return word.starts_with("--") ? app_.get_option_no_throw(word.substr(0, word.find('='))) : nullptr;
  }

  void add(const CLI::Option& option, std::string message, std::string expected = "", std::string found = "") {
    problems_.push_back({.file = std::string(kPlace),
                         .key = "--" + option.get_lnames().front(),
                         .message = std::move(message),
                         .expected = std::move(expected),
                         .found = std::move(found)});
  }

  void add_missing(const CLI::Option& option) {
    refuse_misspelt(app_, words_);
    if (option.get_lnames().front() == "config") refuse_bare_experiment(app_, words_);
    add(option, "is missing", type_of(option));
    problems_.back().nearest = fmt::format("see {} --help", app_.get_name());
  }

  /// How many words behind this one belong to it.
  std::size_t check(const CLI::Option& option, std::size_t position) {
    const std::string& word = words_[position];
    const std::size_t equals = word.find('=');
    const bool is_flag = option.get_items_expected_max() == 0;
    const bool is_again = !seen_.insert(&option).second;
    if (is_flag) {
      if (equals != std::string::npos) add(option, "takes no value", "", fmt::format("'{}'", word.substr(equals + 1)));
      return 0;
    }
    const bool takes_one =
        option.get_expected_max() == 1 && option.get_multi_option_policy() == CLI::MultiOptionPolicy::Throw;
    if (is_again && takes_one && told_.insert(&option).second) add(option, "is given twice", "one " + type_of(option));
    const bool has_next = position + 1 < words_.size() && !words_[position + 1].starts_with("--");
    const bool has_value =
        equals == std::string::npos ? has_next && !words_[position + 1].empty() : equals + 1 < word.size();
    if (!has_value) add(option, "needs a value", type_of(option));
    return equals == std::string::npos && has_next ? 1 : 0;
  }

  const CLI::App& app_;
  std::span<const std::string> words_;
  std::set<const CLI::Option*> seen_;
  std::set<const CLI::Option*> told_;
  std::vector<Problem> problems_;
};

/// CLI11's exception in our words: its text begins with, or holds, the name of the option.
Problem problem_of(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error.what();
  Problem problem{
      .file = std::string(kPlace), .message = text, .nearest = fmt::format("see {} --help", app.get_name())};
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExcludesError)) {
    const std::size_t space = text.find(' ');
    problem.message =
        fmt::format("{} and {} exclude each other", text.substr(0, space), text.substr(text.rfind(' ') + 1));
    return problem;
  }
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    const std::size_t at = text.find(name);
    if (name.empty() || at == std::string::npos) continue;
    problem.key = name;
    const std::string rest = text.substr(at + name.size());
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ArgumentMismatch)) {
      problem.message = "wrong number of values";
      problem.expected = type_of(*option);
    } else if (rest.starts_with(" = ")) {  // a conversion
      problem.message = "wrong type";
      problem.expected = type_of(*option) == "T" ? "a number" : "an integer";
      problem.found = fmt::format("'{}'", rest.substr(3));
    } else if (rest.starts_with(": expected ")) {  // one of our own checks
      constexpr std::string_view kFound = ", found ";
      const std::string words = rest.substr(2);
      const std::size_t found = words.find(kFound);
      problem.message = "wrong value";
      problem.expected = words.substr(9, found == std::string::npos ? found : found - 9);
      if (found != std::string::npos) problem.found = words.substr(found + kFound.size());
    } else if (rest.starts_with(": ") && !range_of(*option).empty()) {
      problem.message = "wrong value";
      problem.expected = range_of(*option);
      problem.found = option->results().empty() ? "" : fmt::format("'{}'", option->results().back());
    } else if (rest.starts_with(": ")) {
      problem.message = rest.substr(2);
    } else if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError)) {
      problem.message = "is missing";
      problem.expected = type_of(*option);
    }
    return problem;
  }
  return problem;
}

bool asks_for_help(std::span<const std::string> words) {
  return std::any_of(words.begin(), words.end(),
                     [](const std::string& word) { return word == "-h" || word == "--help"; });
}

}  // namespace

Parsed parse_options(CLI::App& app, std::span<const std::string> words, Rest what_to_do,
                     std::vector<std::string>& rest) {
  app.allow_extras();
  if (!asks_for_help(words)) OptionCheck(app, words).run();
  // CLI11 takes its words from the back.
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}\n", app.help());
    return Parsed::kHelpShown;
  } catch (const CLI::ParseError& error) {
    throw ConfigError({problem_of(app, error)});
  }
  rest = app.remaining();
  // `check -- -x.yaml`: what follows is no option.
  if (what_to_do == Rest::kRefuse) std::erase(rest, "--");
  if (what_to_do == Rest::kRefuse && !rest.empty()) refuse_unknown(app, rest.front());
  return Parsed::kRun;
}

void add_choice(CLI::App& app, const std::string& option, std::string& value, const std::string& meaning,
                const std::vector<std::string>& words) {
  app.add_option(option, value, meaning)
      ->type_name(fmt::format("{}", fmt::join(words, "|")))
      ->capture_default_str()
      ->check([words](const std::string& text) {
        const bool is_known = std::find(words.begin(), words.end(), text) != words.end();
        return is_known ? "" : fmt::format("expected one of {}, found '{}'", fmt::join(words, ", "), text);
      });
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
