#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "launch/mounts.hpp"
#include "launch/outer_command.hpp"

namespace primus::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kAccumulating = {"device", "cap-add", "volume"};
constexpr std::array<std::string_view, 10> kVolumeOptions = {"ro",    "rw",      "z",         "Z",      "shared",
                                                             "slave", "private", "delegated", "cached", "consistent"};
// Options that docker takes without a value: the word behind one is not its value.
constexpr std::array<std::string_view, 12> kBare = {"privileged",  "rm",  "init",      "detach",      "d",    "i", "t",
                                                    "interactive", "tty", "read-only", "publish-all", "clean"};

// Options that mean nothing without a value; `container --volume -- ...` has lost it.
constexpr std::array<std::string_view, 12> kValued = {"volume", "device", "cap-add", "name", "workdir", "memory",
                                                      "user",   "cpus",   "network", "ipc",  "env",     "image"};

// Who takes part in the run: known outside only, from Slurm or from whoever started every node by hand.
constexpr std::array<const char*, 5> kLaunchVariables = {"NNODES", "NODE_RANK", "GPUS_PER_NODE", "MASTER_ADDR",
                                                         "MASTER_PORT"};

template <typename List>
bool holds(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::string long_name(const std::string& name) {
  if (name == "v") return "volume";
  if (name == "e") return "env";
  if (name == "w") return "workdir";
  if (name == "m") return "memory";
  if (name == "u") return "user";
  return name;
}

bool is_memory(std::string_view text) {
  if (!text.empty() && std::string_view("bkmg").find(text.back()) != std::string_view::npos) text.remove_suffix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

bool is_decimal(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) || c == '.'; }) &&
         std::count(text.begin(), text.end(), '.') <= 1 && text != ".";
}

std::string program_in_path(std::initializer_list<const char*> names) {
  const char* path = std::getenv("PATH");
  for (const char* name : names) {
    for (const std::string& folder : split(path ? path : "", ':')) {
      if (!folder.empty() && access((fs::path(folder) / name).c_str(), X_OK) == 0) return name;
    }
  }
  return *names.begin();
}

class ContainerReader {
 public:
  ContainerReader(const LauncherFile& file, const Variables& environment) : file_(file), environment_(environment) {}

  ContainerRequest read(std::span<const std::string> words) {
    for (const Flag& flag : file_.container) {
      check(flag);
      lay_over(flag);
    }
    for (const std::string& entry : file_.container_environment) add_variable(entry, file_.path);
    read_words(words);
    if (const auto image = environment_.find("DOCKER_IMAGE"); image != environment_.end() && !image->second.empty())
      request_.image = image->second;
    forward_environment();
    check_image();
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
    return std::move(request_);
  }

 private:
  void read_words(std::span<const std::string> words) {
    // A bare option must not take the word behind it, so each stretch up to one is read by itself.
    std::size_t first = 0;
    for (std::size_t i = 0; i <= words.size(); ++i) {
      const bool is_bare = i < words.size() && words[i].starts_with("-") &&
                           holds(kBare, std::string_view(words[i]).substr(words[i].starts_with("--") ? 2 : 1));
      if (i < words.size() && !is_bare) continue;
      for (Flag& flag : read_flags(words.subspan(first, i - first), "container", problems_)) {
        flag.name = long_name(flag.name);
        take(flag);
      }
      if (is_bare) take({words[i].substr(words[i].find_first_not_of('-')), {}});
      first = i + 1;
    }
  }

  void take(const Flag& flag) {
    if (flag.name == "clean") {
      request_.no_effect.push_back("--clean: it would remove every container of the host, also those of others");
    } else if (flag.values.empty() && holds(kValued, flag.name)) {
      add_problem(flag, "needs a value", "");
    } else if (flag.name == "env") {
      for (const std::string& entry : flag.values) add_variable(entry, "command line");
    } else {
      check(flag);
      lay_over(flag);
    }
  }

  void lay_over(const Flag& flag) {
    if (flag.name == "image") {
      if (!flag.values.empty()) request_.image = flag.values.back();
      return;
    }
    auto& options = request_.options;
    const auto same = std::find_if(options.begin(), options.end(), [&](const Flag& o) { return o.name == flag.name; });
    if (same == options.end()) {
      options.push_back(flag);
    } else if (holds(kAccumulating, flag.name)) {
      same->values.insert(same->values.end(), flag.values.begin(), flag.values.end());
    } else {
      same->values = flag.values;
    }
  }

  void add_variable(const std::string& text, const std::string& source) {
    Variables variables;
    try {
      add_variables(text, source, variables);
    } catch (const ConfigError& error) {
      problems_.insert(problems_.end(), error.problems().begin(), error.problems().end());
    }
    for (const auto& [name, value] : variables) named_[name] = value;
  }

  void forward_environment() {
    Variables all = named_;
    for (const auto& [name, value] : environment_) {
      if (is_forwarded_to_containers(name)) all.emplace(name, value);
    }
    for (const char* name : kLaunchVariables) {
      if (const auto found = environment_.find(name); found != environment_.end()) all.insert(*found);
    }
    for (const auto& [name, value] : all) request_.environment.push_back(fmt::format("{}={}", name, value));
  }

  void add_problem(const Flag& option, std::string message, std::string expected, const std::string& found = "") {
    const bool is_typed = option.line == 0;
    problems_.push_back({.file = is_typed ? "command line" : file_.path,
                         .line = option.line,
                         .key = (is_typed ? "--" : "container.options.") + option.name,
                         .message = std::move(message),
                         .expected = std::move(expected),
                         .found = found.empty() ? "" : fmt::format("'{}'", found)});
  }

  // A file that could not be read may have named one.
  void check_image() {
    if (!request_.image.empty() || file_.state == LauncherFile::State::kFaulty) return;
    problems_.push_back({.file = "command line",
                         .key = "--image",
                         .message = "no image is named",
                         .expected = "--image, DOCKER_IMAGE, or container.options.image of the launcher file"});
  }

  void check(const Flag& option) {
    for (const std::string& value : option.values) {
      if (option.name == "memory" && !is_memory(lower(value)))
        add_problem(option, "not an amount of memory", "digits and b, k, m or g", value);
      if (option.name == "cpus" && !is_decimal(value)) add_problem(option, "not a number", "number", value);
      if (option.name == "volume") check_volume(option, value);
    }
  }

  void check_volume(const Flag& option, const std::string& value) {
    const std::vector<std::string> parts = split(value, ':');
    if (parts.size() > 3 || parts[0].empty() || (parts.size() > 1 && parts[1].empty()))
      return add_problem(option, "not a mount", "SOURCE[:TARGET[:options]]", value);
    if (parts.size() < 3) return;
    for (const std::string& word : split(parts[2], ',')) {
      if (!holds(kVolumeOptions, word))
        add_problem(option, fmt::format("unknown mount option '{}'", word), "ro, rw, z, Z or a propagation", value);
    }
  }

  const LauncherFile& file_;
  const Variables& environment_;
  ContainerRequest request_;
  Variables named_;
  std::vector<Problem> problems_;
};

std::string container_name(const std::string& base) {
  const char* job = std::getenv("SLURM_JOB_ID");
  return fmt::format("{}-{}", base, job && *job ? job : std::to_string(getpid()));
}

}  // namespace

ContainerRequest read_container(std::span<const std::string> words, const LauncherFile& file,
                                const Variables& environment) {
  return ContainerReader(file, environment).read(words);
}

OuterCommand container_command(const ContainerRequest& request, const std::vector<std::string>& inner,
                               std::span<const fs::path> needed) {
  OuterCommand command{{program_in_path({"docker", "podman"}), "run", "--rm"}, {}};
  std::vector<std::string>& words = command.words;
  const auto add = [&](const Flag& option, const std::string& value) {
    const std::string dashes = option.name.size() == 1 ? "-" : "--";
    words.push_back(fmt::format("{}{}={}", dashes, option.name, value));
  };
  bool has_name = false;
  for (const Flag& option : request.options) {
    if (option.name == "rm") continue;
    if (option.values.empty()) words.push_back((option.name.size() == 1 ? "-" : "--") + option.name);
    for (const std::string& value : option.values) {
      add(option, option.name == "name" ? container_name(value) : value);
      has_name = has_name || option.name == "name";
    }
  }
  if (!has_name) words.push_back("--name=" + container_name("primus"));
  // The same places inside and outside, so that paths of experiments and run folders mean the same.
  const std::string here = fs::current_path().string();
  std::vector<fs::path> paths(needed.begin(), needed.end());
  paths.emplace_back(here);
  for (const fs::path& path : mounts_for(paths, request.options)) words.push_back(mount_option(path));
  words.push_back("--workdir=" + here);
  words.push_back(request.image);
  words.insert(words.end(), inner.begin(), inner.end());
  return command;
}

}  // namespace primus::launch
