#include "train/reporter.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"

namespace primus::train {
namespace {

constexpr int kBarWidth = 32;

std::ofstream open_fresh(const std::string& path) {
  std::ofstream out(path, std::ios::trunc);
  if (!out) throw UserError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  return out;
}

std::string time_stamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof(text), "[%Y-%m-%d %H:%M:%S]", &local);
  return text;
}

}  // namespace

Reporter::Reporter(const std::string& run_folder, RunOptions::PerLayerLog per_layer)
    : per_layer_(per_layer), has_terminal_(::isatty(STDERR_FILENO) != 0) {
  make_folder(run_folder);
  lock(run_folder);
  metrics_ = open_fresh(run_folder + "/metrics.jsonl");
  log_ = open_fresh(run_folder + "/log.txt");
}

Reporter::~Reporter() {
  clear_bar();
  if (lock_ >= 0) ::close(lock_);
}

void Reporter::lock(const std::string& run_folder) {
  const std::string path = run_folder + "/run.lock";
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) throw UserError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    throw UserError(
        fmt::format("{}: another run writes to this folder now; wait for it, or choose another exp_name", run_folder));
  }
}

void Reporter::message(const std::string& text) {
  clear_bar();
  std::fputs((text + "\n").c_str(), stdout);
  std::fflush(stdout);
  log_ << text << std::endl;
}

void Reporter::iteration(const IterationRecord& record) {
  std::string text = fmt::format(" {}{}", time_stamp(), console_line(record));
  if (per_layer_ == RunOptions::PerLayerLog::kYes) {
    const std::string lines = expert_lines(record);
    if (!lines.empty()) text += fmt::format("\n{}", lines.substr(0, lines.size() - 1));
  }
  message(text);
  write_json(json_line(record));
}

void Reporter::evaluation(const EvaluationRecord& record) {
  message(fmt::format(" {} validation loss at iteration {} | {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} |",
                      time_stamp(), record.iteration, record.split, record.loss,
                      std::exp(std::min(record.loss, 20.0))));
  write_json(json_line(record));
}

void Reporter::baseline(const data::NgramBaseline& baseline) {
  message(fmt::format("  on the same held-out text a unigram model reaches {:.4f}, a bigram model {:.4f}",
                      baseline.unigram_nats, baseline.bigram_nats));
  write_json(fmt::format("{{\"unigram_loss\": {:.6f}, \"bigram_loss\": {:.6f}}}", baseline.unigram_nats,
                         baseline.bigram_nats));
}

void Reporter::write_json(const std::string& line) {
  metrics_ << line << std::endl;
  if (!metrics_) throw UserError(fmt::format("metrics.jsonl: writing failed: {}", std::strerror(errno)));
}

void Reporter::progress(std::int64_t done, std::int64_t total, double loss, double seconds_left) {
  if (!has_terminal_ || total <= 0) return;
  const auto filled = static_cast<int>(kBarWidth * done / total);
  const std::string bar =
      fmt::format("\r\033[K[{}{}] {}/{} | loss {:.4f} | {} left", std::string(filled, '='),
                  std::string(kBarWidth - filled, ' '), done, total, loss, format_duration(seconds_left));
  std::fputs(bar.c_str(), stderr);
  bar_is_drawn_ = true;
}

void Reporter::clear_bar() {
  if (!bar_is_drawn_) return;
  std::fputs("\r\033[K", stderr);
  bar_is_drawn_ = false;
}

}  // namespace primus::train
