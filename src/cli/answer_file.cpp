#include "cli/answer_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/config_common.hpp"
#include "view/png.hpp"

namespace primus::cli {
namespace {

std::string ending_of(const std::string& file) {
  const std::string extension = lower(std::filesystem::path(file).extension().string());
  return extension.empty() ? "" : extension == ".txt" ? "text" : extension.substr(1);
}

std::string endings(const std::vector<std::string>& formats) {
  std::string text;
  for (const std::string& format : formats) text += (text.empty() ? "." : ", .") + (format == "text" ? "txt" : format);
  return text;
}

[[noreturn]] void refuse(const std::string& message, const std::string& expected, const std::string& found) {
  throw ConfigError(
      {{.file = "command line", .key = "--out", .message = message, .expected = expected, .found = found}});
}

}  // namespace

void add_answer_options(CLI::App& app, AnswerOptions& options, const std::vector<std::string>& formats) {
  app.add_option("--out", options.out, "File to write instead of standard output; its ending chooses the format")
      ->type_name("FILE");
  add_format_option(app, options.format, formats);
}

std::string chosen_format(const CLI::App& app, const AnswerOptions& options, const std::vector<std::string>& formats,
                          const LaunchOptions& launch) {
  const bool is_named = app.count("--format") > 0;
  const std::string ending = ending_of(options.out);
  const bool is_known = std::find(formats.begin(), formats.end(), ending) != formats.end();
  if (!options.out.empty()) {
    if (is_named && is_known && ending != options.format) {
      refuse("the ending and --format name two formats", options.format, options.out);
    }
    if (is_named) return options.format;
    if (!is_known) refuse("the ending says what to write", "FILE with one of " + endings(formats), options.out);
    return ending;
  }
  if (options.format == "png") refuse("is missing: a terminal shows no PNG", "FILE.png", "standard output");
  return !is_named && launch.format == Format::kJson ? "json" : options.format;
}

void write_answer(const std::string& text, const AnswerOptions& options, const std::string& format,
                  const LaunchOptions& launch) {
  if (options.out.empty()) {
    fmt::print("{}", text);
    return;
  }
  const bool is_dry = launch.action == Action::kDryRun;
  if (!is_dry) {
    const std::filesystem::path file(options.out);
    if (file.has_parent_path()) make_folder(file.parent_path());
    format == "png" ? view::write_png(text, file, 1.5) : write_file(file, text);
  }
  const char* word = is_dry ? "would_write" : "written";
  if (launch.format == Format::kJson) {
    print_json({{"ok", true}, {word, options.out}});
  } else {
    fmt::print("{} {}\n", is_dry ? "would write" : "wrote", options.out);
  }
}

}  // namespace primus::cli
