#include "config/loader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "base/text.hpp"
#include "config/yaml_reader.hpp"

namespace primus::config {
namespace {

namespace fs = std::filesystem;

// Presets are four levels deep at most; two files that each extend another twice must not multiply without end.
constexpr std::size_t kMaxChain = 16;
constexpr std::size_t kMaxFiles = 64;

std::string shown(const fs::path& path) {
  return path.lexically_normal().string();
}

bool is_variable_name(std::string_view name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

class ChainLoader {
 public:
  explicit ChainLoader(std::vector<Problem>& problems) : problems_(problems) {}

  Node load(const fs::path& path, const Problem& asked_by) {
    std::error_code unresolved;
    fs::path identity = fs::weakly_canonical(path, unresolved);
    // A pipe has no path of its own, and a name that cannot be looked up is told below.
    if (unresolved) identity = path.lexically_normal();
    if (std::find(chain_.begin(), chain_.end(), identity) != chain_.end()) return cycle(identity, asked_by);
    if (chain_.size() >= kMaxChain || ++num_files_ > kMaxFiles) {
      Problem problem = asked_by;
      problem.message = fmt::format("extends more than {} files", chain_.size() >= kMaxChain ? kMaxChain : kMaxFiles);
      problems_.push_back(std::move(problem));
      return {};
    }
    const std::optional<std::string> content = read(path, asked_by);
    if (!content) return {};
    const std::size_t num_problems = problems_.size();
    Node node = read_yaml(*content, shown(path), problems_);
    if (problems_.size() == num_problems && node.is_null()) node.kind = Node::Kind::kMap;
    if (node.kind != Node::Kind::kMap) {
      if (problems_.size() == num_problems) {
        problems_.push_back({.file = shown(path),
                             .line = 1,
                             .message = "wrong shape",
                             .expected = "a map of keys",
                             .found = found_text(node)});
      }
      return {};
    }
    substitute_environment(node, problems_);
    chain_.push_back(identity);
    Node result = with_bases(std::move(node), path);
    chain_.pop_back();
    return result;
  }

 private:
  std::optional<std::string> read(const fs::path& path, const Problem& asked_by) {
    std::error_code error;
    Problem problem = asked_by;
    if (!fs::exists(path, error)) {
      const bool is_absent = !error || error == std::errc::no_such_file_or_directory;
      problem.message = is_absent ? fmt::format("file '{}' does not exist", shown(path))
                                  : fmt::format("file '{}' cannot be looked up: {}", shown(path), error.message());
      problem.nearest = nearest_file(path);
      problems_.push_back(std::move(problem));
      return std::nullopt;
    }
    std::optional<std::string> content = beginning_of(path);
    if (content) return content;
    problem.message = fs::is_directory(path, error) ? fmt::format("'{}' is a folder", shown(path))
                                                    : fmt::format("file '{}' cannot be read", shown(path));
    problem.expected = "a YAML file";
    problems_.push_back(std::move(problem));
    return std::nullopt;
  }

  // No more than shows that a file is too large: it may be a device that never ends.
  static std::optional<std::string> beginning_of(const fs::path& path) {
    std::error_code error;
    std::ifstream stream(path, std::ios::binary);
    if (!stream || fs::is_directory(path, error)) return std::nullopt;
    std::string content(kMaxYamlBytes + 1, '\0');
    stream.read(content.data(), static_cast<std::streamsize>(content.size()));
    if (stream.bad()) return std::nullopt;
    content.resize(static_cast<std::size_t>(stream.gcount()));
    return content;
  }

  static std::string nearest_file(const fs::path& path) {
    std::error_code error;
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path.has_parent_path() ? path.parent_path() : ".", error)) {
      if (entry.path().extension() == ".yaml") names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    const std::vector<std::string_view> views(names.begin(), names.end());
    const auto nearest = nearest_name(path.filename().string(), views);
    return nearest ? fmt::format("did you mean '{}'?", *nearest) : "";
  }

  Node cycle(const fs::path& identity, const Problem& asked_by) {
    Problem problem = asked_by;
    problem.message = "extends itself: ";
    const auto begin = std::find(chain_.begin(), chain_.end(), identity);
    for (auto step = begin; step != chain_.end(); ++step) problem.message += step->filename().string() + " -> ";
    problem.message += identity.filename().string();
    problems_.push_back(std::move(problem));
    return {};
  }

  // Later bases override earlier ones, the file itself overrides them all.
  Node with_bases(Node node, const fs::path& path) {
    Node result;
    result.kind = Node::Kind::kMap;
    for (const std::string_view word : {"extends", "bases"}) {
      const auto entry = std::find_if(node.entries.begin(), node.entries.end(),
                                      [&](const Node::Entry& candidate) { return candidate.key == word; });
      if (entry == node.entries.end()) continue;
      const Node list = std::move(entry->value);
      node.entries.erase(entry);
      const std::vector<Node> names = list.kind == Node::Kind::kList ? list.items : std::vector<Node>{list};
      for (const Node& name : names) {
        const Problem place{.file = shown(path), .line = list.origin.line, .key = std::string(word)};
        if (name.kind != Node::Kind::kScalar || name.is_null()) {
          Problem problem = place;
          problem.message = "wrong type";
          problem.expected = "file name or list of file names";
          problem.found = found_text(name);
          problems_.push_back(std::move(problem));
          continue;
        }
        Node base = load(path.parent_path() / name.text, place);
        if (base.kind == Node::Kind::kMap) result = merged(std::move(result), std::move(base));
      }
    }
    return merged(std::move(result), std::move(node));
  }

  std::vector<Problem>& problems_;
  std::vector<fs::path> chain_;
  std::size_t num_files_ = 0;
};

void substitute_scalar(Node& node, std::vector<Problem>& problems) {
  std::string result;
  std::size_t done = 0;
  bool substituted = false;
  while (true) {
    const std::size_t begin = node.text.find("${", done);
    if (begin == std::string::npos) break;
    const Problem place{.file = node.origin.file, .line = node.origin.line};
    const std::size_t end = node.text.find('}', begin);
    if (end == std::string::npos) {
      Problem problem = place;
      problem.message = "'${' without '}'";
      problem.found = fmt::format("'{}'", node.text.substr(begin));
      problems.push_back(std::move(problem));
      return;
    }
    const std::string inside = node.text.substr(begin + 2, end - begin - 2);
    const std::size_t colon = inside.find(':');
    const std::string name = inside.substr(0, colon);
    result += node.text.substr(done, begin - done);
    const char* value = is_variable_name(name) ? std::getenv(name.c_str()) : nullptr;
    if (value) {
      result += value;
    } else if (!is_variable_name(name)) {
      Problem problem = place;
      problem.message = fmt::format("'${{{}}}' does not name an environment variable", inside);
      problem.expected = "${NAME} or ${NAME:default}";
      problems.push_back(std::move(problem));
    } else if (colon != std::string::npos) {
      result += inside.substr(colon + 1);
    } else {
      Problem problem = place;
      problem.message = fmt::format("environment variable {} is not set", name);
      problem.nearest = fmt::format("set it, or give a default: ${{{}:value}}", name);
      problems.push_back(std::move(problem));
    }
    substituted = true;
    done = end + 1;
  }
  if (!substituted) return;
  node.text = result + node.text.substr(done);
  node.style = Node::Style::kPlain;
}

bool holds_presets(const fs::path& folder) {
  std::error_code error;
  return fs::is_directory(folder / "models", error) && fs::is_directory(folder / "modules", error);
}

}  // namespace

Node load_file(const fs::path& path, std::vector<Problem>& problems) {
  return ChainLoader(problems).load(path, Problem{.file = shown(path)});
}

void substitute_environment(Node& node, std::vector<Problem>& problems) {
  if (node.kind == Node::Kind::kScalar) substitute_scalar(node, problems);
  for (Node& item : node.items) substitute_environment(item, problems);
  for (Node::Entry& entry : node.entries) substitute_environment(entry.value, problems);
}

fs::path preset_folder() {
  if (const char* folder = std::getenv("PRIMUS_CONFIG_DIR"); folder && *folder) {
    if (holds_presets(folder)) return folder;
    throw UserError(fmt::format("PRIMUS_CONFIG_DIR={} holds no presets (expected folders models and modules)", folder),
                    ExitCode::kWrongInput);
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  // bin/primus-cli in an installation, build/<preset>/bin/primus-cli in a source tree.
  fs::path above = program.parent_path();
  for (int level = 0; level < 5 && above.has_relative_path(); ++level, above = above.parent_path()) {
    if (holds_presets(above / "configs")) return above / "configs";
  }
  throw UserError(fmt::format("no presets found beside or above {}; set PRIMUS_CONFIG_DIR to their folder",
                              program.parent_path().string()),
                  ExitCode::kWrongInput);
}

Node load_preset(const PresetRequest& request, std::vector<Problem>& problems) {
  Problem where = request.where;
  const fs::path name(request.name);
  const bool climbs = std::find(name.begin(), name.end(), "..") != name.end();
  if (climbs || name.is_absolute() || request.name.empty()) {
    where.message = "not the name of a preset";
    where.expected = fmt::format("a file under {}/{}", request.kind, request.framework);
    where.found = fmt::format("'{}'", request.name);
    problems.push_back(std::move(where));
    return {};
  }
  fs::path path = preset_folder() / request.kind / request.framework / name;
  if (path.extension() != ".yaml") path += ".yaml";
  return ChainLoader(problems).load(path, where);
}

}  // namespace primus::config
