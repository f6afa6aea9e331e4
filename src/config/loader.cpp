#include "config/loader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <utility>

#include "base/files.hpp"
#include "base/longer_name.hpp"
#include "base/text.hpp"
#include "config/parse.hpp"
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

class ChainLoader {
 public:
  ChainLoader(std::vector<Problem>& problems, std::vector<std::string>* opened)
      : problems_(problems), opened_(opened) {}

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
    if (opened_) opened_->push_back(shown(path));
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
    Beginning beginning = read_beginning(path, kMaxYamlBytes + 1);
    if (beginning.fault.empty()) return std::move(beginning.content);
    problem.message = fmt::format("'{}' {}", shown(path), beginning.fault);
    problem.expected = "a YAML file";
    problems_.push_back(std::move(problem));
    return std::nullopt;
  }

  static std::string nearest_file(const fs::path& path) {
    std::error_code error;
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path.has_parent_path() ? path.parent_path() : ".", error)) {
      const bool is_itself = entry.path().filename() == path.filename();  // a link that leads nowhere
      if (entry.path().extension() == ".yaml" && !is_itself) names.push_back(entry.path().stem().string());
    }
    std::sort(names.begin(), names.end());
    const std::vector<std::string_view> views(names.begin(), names.end());
    // The ending is the same for all of them, and would make any two short names look alike.
    const bool has_ending = path.extension() == ".yaml";
    const std::string wanted = (has_ending || path.extension().empty() ? path.stem() : path.filename()).string();
    if (wanted.size() < 2) return "";
    auto nearest = nearest_name(wanted, views);
    if (!nearest) nearest = nearest_longer_name(wanted, views);
    return nearest ? fmt::format("did you mean '{}.yaml'?", *nearest) : "";
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
        if (name.is_broken()) continue;
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
  std::vector<std::string>* opened_;
  std::vector<fs::path> chain_;
  std::size_t num_files_ = 0;
};

// Fills in ${NAME} and ${NAME:default}, whose default may hold further ones.
class Substitution {
 public:
  Substitution(const Origin& origin, std::vector<Problem>& problems) : origin_(origin), problems_(problems) {}

  /// None after a fault, which has been told.
  std::optional<std::string> of(std::string_view text, int depth = 0) {
    constexpr int kMaxDepth = 16;
    if (depth > kMaxDepth) return fail({.message = fmt::format("'${{' stands in more than {} others", kMaxDepth)});
    std::string result;
    std::size_t done = 0;
    bool is_whole = true;
    for (std::size_t begin = text.find("${"); begin != std::string_view::npos; begin = text.find("${", done)) {
      if (begin > done && text[begin - 1] == '$') {  // $${: not a variable, ${ as it stands
        result.append(text.substr(done, begin - 1 - done)).append("${");
        done = begin + 2;
        continue;
      }
      const std::size_t end = closing_brace(text, begin + 2);
      if (end == std::string_view::npos)
        return fail({.message = "'${' without '}'", .found = fmt::format("'{}'", text.substr(begin))});
      const auto value = value_of(text.substr(begin + 2, end - begin - 2), depth);
      result += text.substr(done, begin - done);
      if (value) result += *value;
      is_whole = is_whole && value.has_value();
      done = end + 1;
    }
    result += text.substr(done);
    return is_whole ? std::optional(std::move(result)) : std::nullopt;
  }

  /// The variables that were set and filled in, and those whose default is a negative number.
  std::vector<std::string> variables() && { return std::move(variables_); }

 private:
  static std::size_t closing_brace(std::string_view text, std::size_t from) {
    int num_open = 1;
    for (std::size_t i = from; i < text.size(); ++i) {
      if (text.compare(i, 2, "${") == 0) ++num_open;
      if (text[i] == '}' && --num_open == 0) return i;
    }
    return std::string_view::npos;
  }

  std::optional<std::string> value_of(std::string_view inside, int depth) {
    const std::size_t colon = inside.find(':');
    const std::string name(inside.substr(0, colon));
    if (!is_variable_name(name)) {
      return fail({.message = fmt::format("'${{{}}}' does not name an environment variable", inside),
                   .expected = "${NAME} or ${NAME:default}"});
    }
    if (const char* value = std::getenv(name.c_str())) {
      variables_.push_back(name);
      return value;
    }
    if (colon != std::string_view::npos && is_shell_default(inside.substr(colon + 1))) {
      return fail({.message = fmt::format("the default of {} begins with '-'", name),
                   .expected = "${NAME:default}",
                   .found = fmt::format("'${{{}}}'", inside),
                   .nearest = fmt::format("without the '-' of a shell: ${{{}:{}}}", name, inside.substr(colon + 2))});
    }
    if (colon != std::string_view::npos) {
      if (inside.substr(colon + 1).starts_with('-')) variables_.push_back(name);  // what is wrong may be the dash
      return of(inside.substr(colon + 1), depth + 1);
    }
    return fail({.message = fmt::format("environment variable {} is not set", name),
                 .nearest = fmt::format("set it, or give a default: ${{{}:value}}", name)});
  }

  // "${NAME:-text}" of a shell. A negative number may be meant as it stands.
  static bool is_shell_default(std::string_view text) { return text.starts_with('-') && !parse_real(text); }

  std::nullopt_t fail(Problem problem) {
    problem.file = origin_.file;
    problem.line = origin_.line;
    problems_.push_back(std::move(problem));
    return std::nullopt;
  }

  const Origin& origin_;
  std::vector<Problem>& problems_;
  std::vector<std::string> variables_;
};

void substitute_scalar(Node& node, std::vector<Problem>& problems) {
  if (node.text.find("${") == std::string::npos) return;
  Substitution substitution(node.origin, problems);
  std::optional<std::string> text = substitution.of(node.text);
  node.variables = std::move(substitution).variables();
  node.style = text ? Node::Style::kPlain : Node::Style::kBroken;
  node.text = std::move(text).value_or("");
}

bool holds_presets(const fs::path& folder) {
  std::error_code error;
  return fs::is_directory(folder / "models", error) && fs::is_directory(folder / "modules", error);
}

}  // namespace

Node load_file(const fs::path& path, std::vector<Problem>& problems, std::vector<std::string>* opened) {
  return ChainLoader(problems, opened).load(path, Problem{.file = shown(path)});
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

Node load_preset(const PresetRequest& request, std::vector<Problem>& problems, std::vector<std::string>* opened) {
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
  return ChainLoader(problems, opened).load(path, where);
}

}  // namespace primus::config
