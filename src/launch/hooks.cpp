#include "launch/hooks.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/visible.hpp"
#include "config/parse.hpp"
#include "launch/environment.hpp"

namespace primus::launch {
namespace {

namespace fs = std::filesystem;

constexpr int kSkipped = 2;

const char* word_for(ScriptKind kind) {
  return kind == ScriptKind::kPatch ? "patch" : "hook";
}

const char* interpreter_of(const fs::path& path) {
  return path.extension() == ".py" ? "python3" : "bash";
}

void add_scripts(const fs::path& folder, ScriptKind kind, std::vector<Script>& scripts) {
  std::error_code error;
  const std::size_t first = scripts.size();
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path& path = entry.path();
    const bool is_script = path.extension() == ".sh" || path.extension() == ".py";
    // A link that leads nowhere was meant to be one; running it will say so.
    const bool is_lost = entry.is_symlink(error) && !fs::exists(path, error);
    if (is_script && (entry.is_regular_file(error) || is_lost)) scripts.push_back({kind, path});
  }
  std::sort(scripts.begin() + static_cast<std::ptrdiff_t>(first), scripts.end(),
            [](const Script& a, const Script& b) { return a.path < b.path; });
}

// In the child, between fork and exec.
[[noreturn]] void become_script(const Script& script, std::span<const std::string> words, int out) {
  dup2(out, STDOUT_FILENO);
  std::vector<char*> arguments = {const_cast<char*>(interpreter_of(script.path)),
                                  const_cast<char*>(script.path.c_str())};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

bool is_key(std::string_view text) {
  return !text.empty() && text.front() != '-' && text.front() != '.' && text.back() != '.' &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; });
}

/// Is the line meant for the launcher? One that only begins like it, "env. variables follow", is not.
bool is_of_the_protocol(std::string_view line, std::string_view prefix) {
  if (!line.starts_with(prefix)) return false;
  const std::string_view rest = line.substr(prefix.size());
  return rest.find('=') != std::string_view::npos || rest.find_first_of(" \t") == std::string_view::npos;
}

/// Takes lines of one script: those of the protocol go to the wishes, all others are printed.
class Listener {
 public:
  Listener(const Script& script, ScriptWishes& wishes)
      : script_(script),
        who_(fmt::format("{} {}", word_for(script.kind), script.path.filename().string())),
        wishes_(wishes) {}

  void take(const std::string& line) {
    if (is_of_the_protocol(line, "extra.")) {
      take_override(line);
    } else if (is_of_the_protocol(line, "env.")) {
      take_variable(line);
    } else {
      fmt::print("{}\n", line);
    }
    std::fflush(stdout);
  }

  /// What is wrong with the first malformed line; empty: nothing.
  const std::string& fault() const { return fault_; }

 private:
  struct Parts {
    std::string name;
    std::string value;
  };

  static Parts parts_of(const std::string& line) {
    const std::size_t begin = line.find('.') + 1;
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) return {line.substr(begin), ""};
    return {line.substr(begin, equals - begin), line.substr(equals + 1)};
  }

  void add_fault(const std::string& line, const std::string& expected) {
    if (fault_.empty()) fault_ = fmt::format("printed '{}' (expected {})", visible(line), expected);
  }

  void take_override(const std::string& line) {
    auto [key, value] = parts_of(line);
    if (line.find('=') == std::string::npos || !is_key(key)) return add_fault(line, "extra.KEY=VALUE");
    if (script_.kind == ScriptKind::kAfterHook) {
      fmt::print("{}: extra.{} has no effect behind the command\n", who_, key);
      return;
    }
    fmt::print("{}: --{} {}\n", who_, key, visible(value));
    // One word: a value with dashes of its own would be taken for the next key.
    wishes_.words.push_back(fmt::format("--{}={}", key, value));
    wishes_.sources["--" + key] = who_;
  }

  void take_variable(const std::string& line) {
    auto [name, value] = parts_of(line);
    const bool is_whole = value.find('\0') == std::string::npos;
    if (line.find('=') == std::string::npos || !is_whole || !config::is_variable_name(name))
      return add_fault(line, "env.NAME=VALUE");
    fmt::print("{}: {}={}\n", who_, name, is_secret(name) ? "(hidden)" : visible(value));
    wishes_.environment[name] = std::move(value);
    wishes_.sources[name] = who_;
  }

  const Script& script_;
  std::string who_;
  ScriptWishes& wishes_;
  std::string fault_;
};

void read_lines(int from, Listener& listener) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(fdopen(from, "r"), std::fclose);
  char* line = nullptr;
  std::size_t capacity = 0;
  for (ssize_t size = 0; (size = getline(&line, &capacity, stream.get())) >= 0;) {
    std::string text(line, static_cast<std::size_t>(size));
    while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
    listener.take(text);
  }
  std::free(line);
}

[[noreturn]] void fail(const Script& script, const std::string& how) {
  const char* then = script.kind == ScriptKind::kAfterHook ? "the command itself had ended" : "nothing was started";
  throw UserError(fmt::format("{} {} {}; {}", word_for(script.kind), script.path.string(), how, then));
}

}  // namespace

std::vector<Script> find_hooks(const fs::path& runner, const std::string& group, const std::string& name,
                               ScriptKind kind) {
  std::vector<Script> scripts;
  if (runner.empty()) return scripts;
  const fs::path root = runner / "helpers" / "hooks";
  for (const fs::path& folder : {root, root / group / name}) {
    add_scripts(kind == ScriptKind::kAfterHook ? folder / "after" : folder, kind, scripts);
  }
  return scripts;
}

void run_script(const Script& script, std::span<const std::string> words, ScriptWishes& wishes) {
  if (access(script.path.c_str(), R_OK) != 0) fail(script, fmt::format("cannot be read: {}", std::strerror(errno)));
  int pipes[2];
  if (pipe2(pipes, O_CLOEXEC) != 0) fail(script, fmt::format("cannot be started: {}", std::strerror(errno)));
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) become_script(script, words, pipes[1]);
  close(pipes[1]);
  if (child < 0) {
    close(pipes[0]);
    fail(script, fmt::format("cannot be started: {}", std::strerror(errno)));
  }
  ScriptWishes heard;
  Listener listener(script, heard);
  read_lines(pipes[0], listener);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFSIGNALED(status)) fail(script, fmt::format("was ended by signal {}", WTERMSIG(status)));
  const int code = WEXITSTATUS(status);
  if (code == kSkipped && script.kind == ScriptKind::kPatch) {
    fmt::print("patch {} skipped itself\n", script.path.filename().string());
    return;
  }
  if (code == 127)
    fail(script, fmt::format("cannot be run by {}, or a program in it is missing", interpreter_of(script.path)));
  if (code != 0) fail(script, fmt::format("failed with exit code {}", code));
  if (!listener.fault().empty()) fail(script, listener.fault());
  wishes.words.insert(wishes.words.end(), heard.words.begin(), heard.words.end());
  for (auto& [name, value] : heard.environment) {
    // The launcher's own environment: what follows (scripts, `${NAME}` in an experiment, workers) inherits it.
    setenv(name.c_str(), value.c_str(), 1);
    wishes.environment[name] = std::move(value);
  }
  for (auto& [name, source] : heard.sources) wishes.sources[name] = std::move(source);
}

}  // namespace primus::launch
