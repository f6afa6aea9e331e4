#include "cli/messages.hpp"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/visible.hpp"
#include "cli/terminal.hpp"

namespace primus::cli {
namespace {

void print_error(const std::string& text) {
  tell(fmt::format("{} {}\n", coloured("error:", Colour::kRed, stderr), text));
}

/// Presets are named by their full path; within the working folder the short one says as much.
std::string shown_path(const std::string& path) {
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string() + "/";
  return visible(path.starts_with(here) ? path.substr(here.size()) : path);
}

}  // namespace

Format format_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Format>, 4> kFormats = {
      {{"text", Format::kText}, {"json", Format::kJson}, {"yaml", Format::kYaml}, {"markdown", Format::kMarkdown}}};
  for (const auto& [candidate, format] : kFormats) {
    if (candidate == name) return format;
  }
  return Format::kText;
}

Format error_format(std::span<const std::string> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool is_next = i + 1 < words.size() && words[i] == "--format" && words[i + 1] == "json";
    if (is_next || words[i] == "--format=json") return Format::kJson;
  }
  return Format::kText;
}

Json json_of(const Problem& problem) {
  Json json;
  if (!problem.file.empty()) json["file"] = problem.file;
  if (problem.line > 0) json["line"] = problem.line;
  if (problem.column > 0) json["column"] = problem.column;
  if (!problem.key.empty()) json["key"] = problem.key;
  json["message"] = problem.message;
  if (!problem.expected.empty()) json["expected"] = problem.expected;
  if (!problem.found.empty()) json["found"] = problem.found;
  if (!problem.nearest.empty()) json["hint"] = problem.nearest;
  if (!problem.excerpt.empty()) json["excerpt"] = problem.excerpt;
  json["text"] = to_text(problem);
  return json;
}

Json json_of(const config::Origin& origin) {
  Json json;
  json["layer"] = config::layer_text(origin.layer);
  if (!origin.file.empty() && origin.layer != config::Layer::kCommandLine) json["file"] = origin.file;
  if (origin.line > 0) json["line"] = origin.line;
  return json;
}

void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

void print_failure(const std::vector<Problem>& problems, ExitCode code, Format format) {
  if (format == Format::kJson) {
    Json json = {{"ok", false}, {"exit_code", static_cast<int>(code)}, {"problems", Json::array()}};
    for (const Problem& problem : problems) json["problems"].push_back(json_of(problem));
    return print_json(json);
  }
  if (problems.size() == 1) return print_error(to_text(problems.front()));
  print_error(fmt::format("{} problems", problems.size()));
  for (const Problem& problem : problems) tell(fmt::format("  {}\n", to_text(problem)));
}

void print_failure(const std::string& message, ExitCode code, Format format) {
  if (format == Format::kJson) return print_failure({{.message = message}}, code, format);
  print_error(message);
}

std::string origin_text(const config::Origin& origin) {
  switch (origin.layer) {
    case config::Layer::kDefault:
    case config::Layer::kCommandLine:
      return std::string(config::layer_text(origin.layer));
    case config::Layer::kRule:
      return fmt::format("rule {}", origin.file);
    default:
      if (origin.line == 0) return shown_path(origin.file);
      return fmt::format("{}:{}", shown_path(origin.file), origin.line);
  }
}

}  // namespace primus::cli
