#pragma once
// The real primus-cli as a child process.
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "config/test_folder.hpp"

namespace primus::cli {

struct ProgramResult {
  int code = 0;  // 128 + n if signal n ended the program itself
  std::string out;
  std::string err;
  double processor_ms = 0.0;  // of the program and its children
};

/// A started primus-cli; its output goes to files in a folder of its own.
class Program {
 public:
  enum class Output { kFiles, kTerminal };

  Program(const std::vector<std::string>& words, const std::string& working_folder,
          const std::map<std::string, std::string>& environment = {}, Output output = Output::kFiles);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const;
  /// Wait until standard output holds `text`; false after ten seconds.
  bool has_printed(const std::string& text) const;
  /// Is the program stopped (as by the terminal's stop key)? Waits up to ten seconds for it.
  bool is_stopped() const;
  ProgramResult wait();

 private:
  std::string terminal_output();

  test::TestFolder folder_;
  pid_t pid_ = -1;
  int terminal_ = -1;
  bool is_reaped_ = false;
};

/// Can a pseudo-terminal be opened? Minimal roots and containers may have none mounted.
bool has_terminals();

/// Run to the end.
ProgramResult run_program(const std::vector<std::string>& words, const std::string& working_folder = "/tmp",
                          const std::map<std::string, std::string>& environment = {});

/// Every command, as the program's own help lists them: {"config", "show"}.
std::vector<std::vector<std::string>> all_commands();

/// Fails for each part that the text does not hold.
void expect_holds(const std::string& text, const std::vector<std::string>& parts);

/// Fails where the program needs longer than this: the best of several runs. On a machine that is busy with other work,
/// wall time tells of that work; there the processor's time alone must keep the bound.
void expect_within(double bound_ms, const std::vector<std::string>& words, const std::string& working_folder = "/tmp");

}  // namespace primus::cli
