// completion: the scripts, and the command behind them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "cli/app.hpp"
#include "cli/commands.hpp"
#include "cli/completion.hpp"

namespace primus::cli {

std::string_view bash_script() {
  // Bash cuts words at '=' and ':' as well and replaces only what stands behind: so much is taken off the candidates.
  return R"(# bash completion for primus-cli: source <(primus-cli completion bash)
_primus_cli() {
  local line=${COMP_LINE:0:COMP_POINT} candidate
  local word=${line##*[[:space:]]}
  local kept=${word%"${word##*[=:]}"}
  COMPREPLY=()
  while IFS= read -r candidate; do
    COMPREPLY+=("${candidate#"$kept"}")
  done < <("${COMP_WORDS[0]}" completion --line "$line" 2>/dev/null)
  if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/] ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -F _primus_cli primus-cli
)";
}

std::string_view zsh_script() {
  return R"(#compdef primus-cli
# zsh completion for primus-cli: source <(primus-cli completion zsh)
_primus_cli() {
  local -a ended open
  local candidate
  while IFS= read -r candidate; do
    if [[ $candidate == *[=/] ]]; then open+=("$candidate"); else ended+=("$candidate"); fi
  done < <("${words[1]}" completion --line "${(j: :)words[1,CURRENT]}" 2>/dev/null)
  (( ${#ended} )) && compadd -- "${ended[@]}"
  (( ${#open} )) && compadd -S '' -- "${open[@]}"
  (( ${#ended} + ${#open} ))
}
# As a file in fpath this is the function's own body, and is called; sourced, it registers the function.
if [[ ${funcstack[1]} == _primus[-_]cli ]]; then _primus_cli "$@"; else compdef _primus_cli primus-cli; fi
)";
}

namespace {

struct CompletionOptions {
  std::string shell;
  std::string line;
};

void add_options(CLI::App& app, CompletionOptions& options) {
  app.add_option("SHELL", options.shell, "bash or zsh");
  app.add_option("--line", options.line, "Print what may stand at the end of this command line (for the scripts)")
      ->type_name("TEXT");
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  const bool asks_for_help = std::find(words.begin(), words.end(), "--help") != words.end();
  if (launch.format == Format::kJson && !asks_for_help) {
    throw ConfigError({{.file = "command line",
                        .key = "--format",
                        .message = "completion prints lines for a shell: it has no JSON",
                        .nearest = "config keys --format json lists the keys for programs"}});
  }
  CompletionOptions options;
  CLI::App app("Print a script with which a shell completes commands, options, keys, values and files.",
               "primus-cli completion");
  add_options(app, options);
  app.footer(
      "examples\n  source <(primus-cli completion bash)     in ~/.bashrc\n"
      "  source <(primus-cli completion zsh)      in ~/.zshrc, behind compinit");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  if (app.count("--line") > 0) {
    std::vector<std::string> line = words_of_line(options.line);
    if (!line.empty()) line.erase(line.begin());  // the program's name
    for (const std::string& candidate : complete(line)) fmt::print("{}\n", candidate);
    return 0;
  }
  constexpr std::array<std::string_view, 2> kShells = {"bash", "zsh"};
  if (options.shell != "bash" && options.shell != "zsh") refuse_word("shell", options.shell, kShells);
  fmt::print("{}", options.shell == "bash" ? bash_script() : zsh_script());
  return 0;
}

}  // namespace

const Command kCompletion = {"completion",
                             "",
                             "bash|zsh",
                             "a script for the shell",
                             Starts::kNothing,
                             Rest::kRefuse,
                             "shell",
                             [](CLI::App& app) {
                               static CompletionOptions unused;
                               add_options(app, unused);
                             },
                             run};

}  // namespace primus::cli
