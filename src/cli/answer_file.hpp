#pragma once
// Where the answer of a command goes and as what: --format, or the ending of --out.
#include <string>
#include <vector>

#include "cli/commands.hpp"

namespace CLI {
class App;
}

namespace primus::cli {

struct AnswerOptions {
  std::string format;
  std::string out;  // "": standard output
};

/// `--out` and `--format` with these names, the first of which is the default.
void add_answer_options(CLI::App& app, AnswerOptions& options, const std::vector<std::string>& formats);

/// The format to answer in: what --format names, else what the ending of --out says, else the default; JSON where the
/// whole command line asks for it and no file is named. Throws ConfigError where the ending is unknown or the two
/// contradict each other, and for PNG without a file.
std::string chosen_format(const CLI::App& app, const AnswerOptions& options, const std::vector<std::string>& formats,
                          const LaunchOptions& launch);

/// Text to standard output or, if a file is named, there; "png": `text` is an SVG. A dry run says what it would write.
void write_answer(const std::string& text, const AnswerOptions& options, const std::string& format,
                  const LaunchOptions& launch);

}  // namespace primus::cli
