#pragma once
// Parsing one command's options with CLI11, with our errors: exit code 2 and the nearest valid name.
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace primus::cli {

/// What becomes of words that are no option of the command.
enum class Rest { kRefuse, kReturn };

enum class Parsed { kRun, kHelpShown };

/// Parse `words`. Words that the app does not know are refused with the nearest option, or put into `rest`.
/// Throws ConfigError.
Parsed parse_options(CLI::App& app, std::span<const std::string> words, Rest what_to_do,
                     std::vector<std::string>& rest);

/// An option that takes one of a few words; the help shows them as a|b.
void add_choice(CLI::App& app, const std::string& option, std::string& value, const std::string& meaning,
                const std::vector<std::string>& words);

/// Throws ConfigError for a word that is none of `names`.
[[noreturn]] void refuse_word(std::string_view what, std::string_view word, std::span<const std::string_view> names);

/// Throws ConfigError for a part of the command line that a later release has.
[[noreturn]] void refuse_planned(std::string_view word, std::string_view what);

}  // namespace primus::cli
