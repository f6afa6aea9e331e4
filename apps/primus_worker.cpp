// primus-worker: trains what a resolved experiment describes, one process a device. primus-cli writes the experiment
// and starts it; it can also be started by hand.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "base/error.hpp"
#include "diag/op_benchmark.hpp"
#include "train/interrupt.hpp"
#include "train/logits.hpp"
#include "train/run.hpp"

namespace {

constexpr const char* kUsage =
    "usage: primus-worker --experiment FILE [--device auto|cpu|cuda]\n"
    "       primus-worker --logits MODEL TOKENS OUT [--gradients] [--dtype fp32|bf16|fp64] [--device auto|cpu|cuda]\n"
    "       primus-worker --benchmark ops [--filter TEXT] [--format text|json] [--device auto|cpu|cuda]\n"
    "  FILE: the resolved experiment (experiment.json) in a run's folder; `primus-cli train pretrain` writes it.\n"
    "  --logits: what `primus-cli checkpoint logits` starts; --benchmark: what `primus-cli benchmark ops` starts.\n";

/// End as the shell shows a process that the signal ended (decision 6): 128 + signal.
int exit_code_of(const primus::train::RunSummary& summary) {
  if (summary.end == primus::train::EndOfRun::kInterrupted) return 128 + primus::train::pending_interrupt();
  // Trained, but what was learnt is not where it should be.
  return static_cast<int>(summary.failed_save ? primus::ExitCode::kFailedWhileRunning : primus::ExitCode::kDone);
}

/// A closed standard stream's number would go to the first file that is opened, which would then take its text.
void open_standard_streams() {
  int descriptor = 0;
  do {
    descriptor = ::open("/dev/null", O_RDWR);
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor > STDERR_FILENO) ::close(descriptor);
}

int wrong_usage() {
  std::fputs(kUsage, stderr);
  return static_cast<int>(primus::ExitCode::kWrongInput);
}

int train(std::span<char*> words) {
  const bool names_device = words.size() == 4 && std::strcmp(words[2], "--device") == 0;
  const auto device = primus::ops::device_choice(names_device ? words[3] : "auto");
  if ((words.size() != 2 && !names_device) || std::strcmp(words[0], "--experiment") != 0 || !device)
    return wrong_usage();
  primus::train::catch_interrupts();
  return exit_code_of(primus::train::run_experiment(words[1], *device));
}

std::optional<primus::DType> pass_type(std::string_view word) {
  for (const primus::DType dtype : {primus::DType::kFloat32, primus::DType::kBFloat16, primus::DType::kFloat64}) {
    if (primus::name(dtype) == word) return dtype;
  }
  return std::nullopt;
}

int logits(std::span<char*> words) {
  if (words.size() < 4) return wrong_usage();
  primus::train::LogitsRequest request{.model = words[1], .tokens = words[2], .out = words[3]};
  for (std::size_t i = 4; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--gradients") {
      request.gradients = primus::train::Gradients::kYes;
      continue;
    }
    if (++i == words.size()) return wrong_usage();
    const auto dtype = pass_type(words[i]);
    const auto device = primus::ops::device_choice(words[i]);
    if (word == "--dtype" && dtype) {
      request.dtype = *dtype;
    } else if (word == "--device" && device) {
      request.device = *device;
    } else {
      return wrong_usage();
    }
  }
  primus::train::run_logits(request);
  return static_cast<int>(primus::ExitCode::kDone);
}

int benchmark(std::span<char*> words) {
  if (words.size() < 2 || std::strcmp(words[1], "ops") != 0 || words.size() % 2 != 0) return wrong_usage();
  primus::diag::OpBenchmarkRequest request;
  for (std::size_t i = 2; i < words.size(); i += 2) {
    const std::string_view word = words[i];
    const std::string_view value = words[i + 1];
    const auto device = primus::ops::device_choice(value);
    if (word == "--filter") {
      request.filter = value;
    } else if (word == "--format" && (value == "text" || value == "json")) {
      request.format = value == "json" ? primus::diag::BenchmarkFormat::kJson : primus::diag::BenchmarkFormat::kText;
    } else if (word == "--device" && device) {
      request.device = *device;
    } else {
      return wrong_usage();
    }
  }
  primus::diag::run_op_benchmark(request);
  return static_cast<int>(primus::ExitCode::kDone);
}

/// What the first word asks for; without one it is training.
int run(std::span<char*> words) {
  const std::string_view first = words.empty() ? "" : words[0];
  if (first == "--logits") return logits(words);
  return first == "--benchmark" ? benchmark(words) : train(words);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  const std::span words(argv + (argc > 0 ? 1 : 0), argv + argc);
  if (words.size() == 1 && std::strcmp(words[0], "--help") == 0) {
    std::fputs(kUsage, stdout);
    return static_cast<int>(primus::ExitCode::kDone);
  }
  try {
    return run(words);
  } catch (const primus::UserError& error) {
    std::fprintf(stderr, "primus-worker: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "primus-worker: %s\n", error.what());
    return static_cast<int>(primus::ExitCode::kFailedWhileRunning);
  }
}
