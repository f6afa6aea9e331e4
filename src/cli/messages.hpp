#pragma once
// Errors and other results, for people (text) or for programs (JSON).
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "config/value.hpp"

namespace primus::cli {

using Json = nlohmann::ordered_json;

/// How a command answers.
enum class Format { kText, kJson, kYaml, kMarkdown };

/// The format of that name; the option has checked it.
Format format_of(std::string_view name);

/// Do the words ask for JSON anywhere (`--format json`)? Then errors are JSON, also those of the words themselves.
Format error_format(std::span<const std::string> words);

Json json_of(const Problem& problem);
Json json_of(const config::Origin& origin);

/// Print a JSON document on standard output; text that is no UTF-8 is replaced.
void print_json(const Json& json);

/// Text: on standard error. JSON: one document on standard output, {"ok": false, "exit_code": …, "problems": […]}.
void print_failure(const std::vector<Problem>& problems, ExitCode code, Format format);
void print_failure(const std::string& message, ExitCode code, Format format);

/// Where a value comes from: "command line", "default", "rule NAME", "file:line".
std::string origin_text(const config::Origin& origin);

}  // namespace primus::cli
