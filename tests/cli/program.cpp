#include "cli/program.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "base/text.hpp"

namespace primus::cli {
namespace {

constexpr std::chrono::milliseconds kPoll{10};
constexpr int kPolls = 1000;

template <typename Condition>
bool comes_true(Condition condition) {
  for (int i = 0; i < kPolls; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(kPoll);
  }
  return false;
}

void redirect(const std::filesystem::path& path, int descriptor) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(file, descriptor);
  close(file);
}

double milliseconds(const timeval& time) {
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_usec);
}

/// Does other work want more than half of the cores?
bool is_machine_busy() {
  double load = 0.0;
  return getloadavg(&load, 1) != 1 || load > 0.5 * std::thread::hardware_concurrency();
}

}  // namespace

Program::Program(const std::vector<std::string>& words, const std::string& working_folder,
                 const std::map<std::string, std::string>& environment, Output output) {
  folder_.write("out", "");
  folder_.write("err", "");
  pid_ = output == Output::kTerminal ? forkpty(&terminal_, nullptr, nullptr, nullptr) : fork();
  // A later signal to process -1 would go to everybody.
  if (pid_ < 0) throw std::runtime_error("no child process could be made");
  if (pid_ != 0) return;
  if (output == Output::kFiles) {
    redirect(folder_.path() / "out", STDOUT_FILENO);
    redirect(folder_.path() / "err", STDERR_FILENO);
  }
  if (chdir(working_folder.c_str()) != 0) _exit(126);
  for (const char* name :
       {"WORLD_SIZE", "NNODES", "NODE_RANK", "GPUS_PER_NODE", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID",
        "PRIMUS_WORKER", "PRIMUS_CONFIG_DIR", "PRIMUS_RUNNER_DIR", "DOCKER_IMAGE", "USING_UEP", "NO_COLOR"})
    unsetenv(name);
  // A launcher file of whoever runs the tests is none of their business.
  setenv("HOME", folder_.path().c_str(), 1);
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  const std::string program = std::string(PRIMUS_BIN_DIR) + "/primus-cli";
  std::vector<char*> arguments{const_cast<char*>(program.c_str())};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execv(program.c_str(), arguments.data());
  _exit(127);
}

Program::~Program() {
  if (terminal_ >= 0) close(terminal_);
  if (is_reaped_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Program::send(int signal) const {
  kill(pid_, signal);
}

bool Program::has_printed(const std::string& text) const {
  return comes_true([&] { return read_file(folder_.path() / "out").find(text) != std::string::npos; });
}

bool Program::is_stopped() const {
  int status = 0;
  return comes_true([&] { return waitpid(pid_, &status, WUNTRACED | WNOHANG) == pid_ && WIFSTOPPED(status); });
}

std::string Program::terminal_output() {
  std::string text;
  char buffer[4096];
  // Reading ends with an error when the last process has closed its side.
  for (ssize_t size = 0; (size = read(terminal_, buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<std::size_t>(size));
  return text;
}

ProgramResult Program::wait() {
  ProgramResult result;
  if (terminal_ >= 0) result.out = terminal_output();
  int status = 0;
  rusage usage{};
  wait4(pid_, &status, 0, &usage);
  is_reaped_ = true;
  result.processor_ms = milliseconds(usage.ru_utime) + milliseconds(usage.ru_stime);
  result.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (terminal_ < 0) {
    result.out = read_file(folder_.path() / "out");
    result.err = read_file(folder_.path() / "err");
  }
  return result;
}

bool has_terminals() {
  int master = -1;
  int slave = -1;
  if (openpty(&master, &slave, nullptr, nullptr, nullptr) != 0) return false;
  close(master);
  close(slave);
  return true;
}

std::vector<std::vector<std::string>> all_commands() {
  std::vector<std::vector<std::string>> commands;
  const std::string help = run_program({"--help"}).out;
  const std::size_t begin = help.find("commands (");
  for (const std::string& line : split(help.substr(begin, help.find("\n\n", begin) - begin), '\n')) {
    const std::vector<std::string> words = split(line, ' ');
    if (words.size() < 4 || !words[0].empty() || !words[1].empty()) continue;
    if (words[2] == "completion") {
      commands.push_back({words[2]});
      continue;
    }
    for (const std::string& name : split(words[3], '|')) commands.push_back({words[2], name});
  }
  return commands;
}

ProgramResult run_program(const std::vector<std::string>& words, const std::string& working_folder,
                          const std::map<std::string, std::string>& environment) {
  return Program(words, working_folder, environment).wait();
}

void expect_holds(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

void expect_within(double bound_ms, const std::vector<std::string>& words, const std::string& working_folder) {
  std::string command;
  for (const std::string& word : words) command += word + " ";
  double wall_ms = 1e9;
  double processor_ms = 1e9;
  for (int i = 0; i < 8 && wall_ms > bound_ms; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const ProgramResult result = run_program(words, working_folder);
    const auto length = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(result.code, 0) << result.err;
    wall_ms = std::min(wall_ms, std::chrono::duration<double, std::milli>(length).count());
    processor_ms = std::min(processor_ms, result.processor_ms);
  }
  EXPECT_LE(processor_ms, bound_ms) << command;
  if (!is_machine_busy()) {
    EXPECT_LE(wall_ms, bound_ms) << command;
  }
}

}  // namespace primus::cli
