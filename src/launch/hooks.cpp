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
#include "base/text.hpp"

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
    if (is_script && entry.is_regular_file(error)) scripts.push_back({kind, path});
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

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.';
  });
}

/// A line of the protocol, taken; anything else is printed.
void take_line(const Script& script, const std::string& line, ScriptWishes& wishes) {
  const std::size_t equals = line.find('=');
  const std::string name = line.substr(0, equals);
  for (const std::string_view prefix : {"extra.", "env."}) {
    if (equals == std::string::npos || !name.starts_with(prefix)) continue;
    const std::string key = name.substr(prefix.size());
    const std::string value = line.substr(equals + 1);
    if (!is_name(key)) continue;
    if (prefix == "extra.") {
      wishes.words.insert(wishes.words.end(), {"--" + key, value});
      fmt::print("{} {}: --{} {}\n", word_for(script.kind), script.path.filename().string(), key, value);
    } else {
      wishes.environment[key] = value;
      fmt::print("{} {}: {}={}\n", word_for(script.kind), script.path.filename().string(), key, value);
    }
    std::fflush(stdout);
    return;
  }
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void read_lines(const Script& script, int from, ScriptWishes& wishes) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(fdopen(from, "r"), std::fclose);
  char* line = nullptr;
  std::size_t capacity = 0;
  for (ssize_t size = 0; (size = getline(&line, &capacity, stream.get())) >= 0;) {
    std::string text(line, static_cast<std::size_t>(size));
    while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
    take_line(script, text, wishes);
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
  read_lines(script, pipes[0], heard);
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
  wishes.words.insert(wishes.words.end(), heard.words.begin(), heard.words.end());
  for (auto& [name, value] : heard.environment) {
    // The launcher's own environment: what follows (scripts, `${NAME}` in an experiment, workers) inherits it.
    setenv(name.c_str(), value.c_str(), 1);
    wishes.environment[name] = std::move(value);
  }
}

}  // namespace primus::launch
