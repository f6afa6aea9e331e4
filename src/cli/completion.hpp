#pragma once
// What may stand next on a command line: for the shells' completion.
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace primus::cli {

/// Candidates for the last of `words` (which may be empty and is all that is typed of it), whole words each. One that
/// ends with '/' or '=' goes on.
std::vector<std::string> complete(std::span<const std::string> words);

/// The words of an unfinished command line, as a shell would cut it: quotes taken away, the last one "" behind a blank.
std::vector<std::string> words_of_line(std::string_view line);

/// The script that a shell reads: it asks this program.
std::string_view bash_script();
std::string_view zsh_script();

}  // namespace primus::cli
