#include "launch/launcher_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "config/loader.hpp"
#include "config/parse.hpp"
#include "config/yaml_reader.hpp"

namespace primus::launch {
namespace {

namespace fs = std::filesystem;
using config::Node;

constexpr std::array<std::string_view, 4> kSections = {"main", "slurm", "container", "direct"};
constexpr std::array<std::string_view, 2> kMainKeys = {"debug", "dry_run"};
constexpr std::array<std::string_view, 4> kContainerKeys = {"debug", "dry_run", "options", "env"};
constexpr std::array<std::string_view, 12> kDirectKeys = {"debug",         "dry_run",     "run_mode", "script",
                                                          "numa",          "log_file",    "patch",    "env",
                                                          "gpus_per_node", "master_port", "nnodes",   "master_addr"};

/// srun and docker have hundreds of options, which only they know; ours is what a name looks like.
bool is_flag_name(std::string_view name) {
  return !name.empty() && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; });
}

class FileReader {
 public:
  explicit FileReader(std::string path) { file_.path = std::move(path); }

  LauncherFile read() {
    const Beginning beginning = read_beginning(file_.path, config::kMaxYamlBytes + 1);
    if (!beginning.fault.empty())
      throw ConfigError({{.file = file_.path, .message = beginning.fault, .expected = "a launcher file"}});
    Node root = config::read_yaml(beginning.content, file_.path, problems_);
    config::substitute_environment(root, problems_);
    if (problems_.empty() && !root.is_null()) read_root(root);
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
    return std::move(file_);
  }

 private:
  void add(const Node& node, std::string key, std::string message, const std::string& expected = "",
           std::string nearest = "") {
    problems_.push_back({.file = file_.path,
                         .line = node.origin.line,
                         .key = std::move(key),
                         .message = std::move(message),
                         .expected = expected,
                         .found = expected.empty() ? "" : config::found_text(node),
                         .nearest = std::move(nearest)});
  }

  void refuse_key(const Node::Entry& entry, const std::string& key, std::span<const std::string_view> known) {
    const auto nearest = nearest_name(entry.key, known);
    add(entry.value, key, "unknown key of a launcher file", "",
        nearest ? fmt::format("did you mean '{}'?", *nearest) : "");
  }

  void read_root(const Node& root) {
    if (root.kind != Node::Kind::kMap) return add(root, "", "wrong shape", "a map of sections");
    if (root.find("modules")) {
      return add(*root.find("modules"), "modules", "this is an experiment, not a launcher file", "",
                 "an experiment's --config stands behind its command: train pretrain --config FILE");
    }
    for (const Node::Entry& entry : root.entries) {
      if (std::find(kSections.begin(), kSections.end(), entry.key) == kSections.end()) {
        refuse_key(entry, entry.key, kSections);
      } else if (entry.value.is_null()) {
        continue;
      } else if (entry.value.kind != Node::Kind::kMap) {
        add(entry.value, entry.key, "wrong type", "map of keys");
      } else {
        read_section(entry);
      }
    }
  }

  void read_section(const Node::Entry& section) {
    for (const Node::Entry& entry : section.value.entries) {
      const std::string key = section.key + "." + entry.key;
      if (section.key == "main") {
        read_main(entry, key);
      } else if (section.key == "slurm") {
        read_slurm(entry, key);
      } else if (section.key == "container") {
        read_container(entry, key);
      } else {
        read_direct(entry, key);
      }
    }
  }

  void read_main(const Node::Entry& entry, const std::string& key) {
    if (read_switches(entry, key, file_.debug, file_.dry_run)) return;
    refuse_key(entry, key, kMainKeys);
  }

  void read_slurm(const Node::Entry& entry, const std::string& key) {
    if (read_switches(entry, key, file_.slurm_debug, file_.slurm_dry_run)) return;
    if (entry.key == "gpus_per_node") {
      file_.slurm_gpus_per_node = text_of(entry.value, key);
      check_count(entry.value, key, entry.key);
    } else {
      add_flag(file_.slurm, entry, key);
    }
  }

  void read_container(const Node::Entry& entry, const std::string& key) {
    if (read_switches(entry, key, file_.debug, file_.dry_run)) return;
    if (entry.key == "env") {
      file_.container_environment = variables_of(entry.value, key);
    } else if (entry.key == "options") {
      if (entry.value.is_null()) return;
      if (entry.value.kind != Node::Kind::kMap) return add(entry.value, key, "wrong type", "map of options");
      for (const Node::Entry& option : entry.value.entries) {
        if (option.key == "env") {
          file_.container_environment = variables_of(option.value, key + ".env");
        } else {
          add_flag(file_.container, option, key + "." + option.key);
        }
      }
    } else {
      refuse_key(entry, key, kContainerKeys);
    }
  }

  void read_direct(const Node::Entry& entry, const std::string& key) {
    if (read_switches(entry, key, file_.debug, file_.dry_run)) return;
    constexpr std::array<std::pair<std::string_view, std::string DirectDefaults::*>, 7> kTexts = {{
        {"script", &DirectDefaults::script},
        {"numa", &DirectDefaults::numa},
        {"log_file", &DirectDefaults::log_file},
        {"gpus_per_node", &DirectDefaults::gpus_per_node},
        {"nnodes", &DirectDefaults::nnodes},
        {"master_addr", &DirectDefaults::master_addr},
        {"master_port", &DirectDefaults::master_port},
    }};
    const auto text =
        std::find_if(kTexts.begin(), kTexts.end(), [&](const auto& row) { return row.first == entry.key; });
    file_.direct.lines[entry.key] = entry.value.origin.line;
    if (text != kTexts.end()) {
      file_.direct.*(text->second) = text_of(entry.value, key);
      check_count(entry.value, key, entry.key);
      if (entry.key == "numa") check_numa(entry.value, key);
    } else if (entry.key == "patch") {
      file_.direct.patches = texts_of(entry.value, key);
    } else if (entry.key == "env") {
      file_.direct.environment = variables_of(entry.value, key);
    } else if (entry.key != "run_mode") {  // the number of processes decides how a run is started
      refuse_key(entry, key, kDirectKeys);
    }
  }

  /// Numbers that a launch mode will need, whichever mode it is that runs now.
  void check_count(const Node& node, const std::string& key, std::string_view name) {
    struct Range {
      std::string_view name;
      std::int64_t low;
      std::int64_t high;
    };
    constexpr std::array<Range, 3> kRanges = {
        {{"gpus_per_node", 1, 72}, {"nnodes", 1, 1'000'000}, {"master_port", 1024, 65535}}};
    const auto range = std::find_if(kRanges.begin(), kRanges.end(), [&](const Range& row) { return row.name == name; });
    if (range == kRanges.end() || node.kind != Node::Kind::kScalar || node.is_null() || node.text.empty()) return;
    const auto value = config::parse_int(node.text);
    if (value && *value >= range->low && *value <= range->high) return;
    add(node, key, value ? "out of range" : "not a number",
        fmt::format("integer from {} to {}", range->low, range->high));
  }

  void check_numa(const Node& node, const std::string& key) {
    const std::string& numa = file_.direct.numa;
    if (!numa.empty() && numa != "auto" && !config::parse_bool(numa))
      add(node, key, "wrong value", "auto, true, false");
  }

  /// debug and dry_run, which every section may hold.
  bool read_switches(const Node::Entry& entry, const std::string& key, Switch& debug, Switch& dry_run) {
    if (entry.key != "debug" && entry.key != "dry_run") return false;
    const auto value = config::parse_bool(entry.value.text);
    if (entry.value.kind != Node::Kind::kScalar || !value) {
      add(entry.value, key, "wrong type", "true or false");
      return true;
    }
    Switch& target = entry.key == "debug" ? debug : dry_run;
    if (*value || target == Switch::kUnset) target = *value ? Switch::kOn : Switch::kOff;
    return true;
  }

  std::string text_of(const Node& node, const std::string& key) {
    if (node.is_null()) return "";
    if (node.kind == Node::Kind::kScalar) return node.text;
    add(node, key, "wrong type", "text");
    return "";
  }

  std::vector<std::string> texts_of(const Node& node, const std::string& key) {
    if (node.is_null()) return {};
    if (node.kind == Node::Kind::kScalar) return {node.text};
    std::vector<std::string> texts;
    for (const Node& item : node.items) {
      if (item.kind == Node::Kind::kScalar) texts.push_back(item.text);
    }
    if (node.kind != Node::Kind::kList || texts.size() != node.items.size())
      add(node, key, "wrong type", "list of texts");
    return texts;
  }

  /// Entries of an `env` list: NAME=value, NAME, or a file of such lines.
  std::vector<std::string> variables_of(const Node& node, const std::string& key) {
    std::vector<std::string> texts = texts_of(node, key);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::size_t equals = texts[i].find('=');
      std::error_code error;
      if (config::is_variable_name(texts[i].substr(0, equals))) continue;
      if (equals == std::string::npos && fs::is_regular_file(texts[i], error)) continue;
      const bool is_item = node.kind == Node::Kind::kList && i < node.items.size();
      problems_.push_back({.file = file_.path,
                           .line = is_item ? node.items[i].origin.line : node.origin.line,
                           .key = key,
                           .message = "not a variable",
                           .expected = "NAME=value, a NAME, or a file of such lines",
                           .found = fmt::format("'{}'", texts[i])});
    }
    return texts;
  }

  void add_flag(std::vector<Flag>& flags, const Node::Entry& entry, const std::string& key) {
    if (!is_flag_name(entry.key)) return add(entry.value, key, "not the name of an option");
    std::vector<std::string> values = texts_of(entry.value, key);
    const bool is_list = entry.value.kind == Node::Kind::kList;
    if (is_list && values.empty()) return;  // `volume: []`: nothing
    if (!is_list && (values.empty() || values[0].empty() || values[0] == "false")) return;
    // Docker's switches may be written as 1; Slurm's counts are numbers.
    const bool is_one = &flags == &file_.container && values[0] == "1";
    if (!is_list && (values[0] == "true" || is_one)) values.clear();
    flags.push_back({entry.key, std::move(values), entry.value.origin.line});
  }

  LauncherFile file_;
  std::vector<Problem> problems_;
};

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

}  // namespace

fs::path runner_folder() {
  if (const char* named = std::getenv("PRIMUS_RUNNER_DIR"); named && *named) {
    if (is_folder(named)) return named;
    throw ConfigError({{.file = "environment",
                        .key = "PRIMUS_RUNNER_DIR",
                        .message = fmt::format("there is no folder {}", named),
                        .expected = "folder of .primus.yaml and helpers/hooks"}});
  }
  std::error_code error;
  fs::path above = fs::read_symlink("/proc/self/exe", error).parent_path();
  // bin/primus-cli in an installation, build/<preset>/bin/primus-cli in a source tree.
  for (int level = 0; level < 5 && above.has_relative_path(); ++level, above = above.parent_path()) {
    if (is_folder(above / "runner" / "helpers")) return above / "runner";
  }
  return {};
}

LauncherFile load_launcher_file(std::string_view named) {
  std::error_code error;
  if (!named.empty()) {
    const fs::path path(named);
    if (fs::is_regular_file(path, error)) return FileReader(path.lexically_normal().string()).read();
    const bool is_there = fs::exists(path, error);
    throw ConfigError(
        {{.file = "command line",
          .key = "--config",
          .message = is_there ? fmt::format("{} is no file, but a folder, a pipe or a device", named)
                              : fmt::format("there is no launcher file {}", named),
          .nearest = "an experiment's --config stands behind its command: train pretrain --config FILE"}});
  }
  const char* home = std::getenv("HOME");
  const fs::path runner = runner_folder();
  for (const fs::path& folder : {fs::path(home ? home : ""), runner}) {
    if (folder.empty()) continue;
    const fs::path path = folder / ".primus.yaml";
    if (fs::exists(path, error)) return FileReader(path.string()).read();
  }
  return {};
}

}  // namespace primus::launch
