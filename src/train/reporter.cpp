#include "train/reporter.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "train/log_lines.hpp"

namespace primus::train {
namespace {

constexpr int kBarWidth = 32;
constexpr int kLeastBarWidth = 8;

int terminal_columns() {
  winsize size{};
  constexpr int kUsual = 80;
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

const std::string& existing_folder(const std::string& path) {
  make_folder(path);
  return path;
}

/// Does the record belong to the part of the run that stays? Half a line and what a run's end adds do not.
bool is_up_to(const std::string& line, std::int64_t last_iteration) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("iteration") || !json["iteration"].is_number_integer()) return false;
  return json["iteration"].get<std::int64_t>() <= last_iteration;
}

/// Leaves the records of the first iterations in the file.
const std::string& cut_records(const std::string& path, std::int64_t last_iteration) {
  std::string kept;
  if (last_iteration > 0 && std::filesystem::exists(path)) {
    for (const std::string& line : split(read_file(path), '\n')) {
      if (is_up_to(line, last_iteration)) kept += line + "\n";
    }
  }
  write_file(path, kept);
  return path;
}

std::ofstream open_for(const std::string& path, std::ios::openmode mode) {
  std::ofstream out(path, mode);
  if (!out) throw UserError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  return out;
}

std::string time_stamp() {
  return fmt::format("[{}]", time_text(std::time(nullptr)));
}

}  // namespace

Reporter::Reporter(const std::string& run_folder, RunOptions::PerLayerLog per_layer, std::int64_t last_iteration)
    : run_folder_(run_folder),
      lock_(existing_folder(run_folder)),
      metrics_(open_for(cut_records(run_folder + "/metrics.jsonl", last_iteration), std::ios::app)),
      log_(open_for(run_folder + "/log.txt", last_iteration > 0 ? std::ios::app : std::ios::trunc)),
      per_layer_(per_layer),
      has_terminal_(::isatty(STDERR_FILENO) != 0) {}

Reporter::~Reporter() {
  clear_bar();
}

void Reporter::message(const std::string& text) {
  clear_bar();
  std::fputs((text + "\n").c_str(), stdout);
  std::fflush(stdout);
  log(text);
}

void Reporter::alarm(const std::string& text) {
  clear_bar();
  std::fputs((text + "\n").c_str(), stderr);
  log(text);
}

void Reporter::log(const std::string& text) {
  log_ << text << std::endl;
  log_.clear();  // a full disk is told of where the records are written
}

void Reporter::iteration(const IterationRecord& record) {
  std::string text = fmt::format(" {}{}", time_stamp(), console_line(record));
  if (per_layer_ == RunOptions::PerLayerLog::kYes) {
    const std::string lines = expert_lines(record);
    if (!lines.empty()) text += fmt::format("\n{}", lines.substr(0, lines.size() - 1));
  }
  message(text);
  write_json(json_line(record));
  to_mlflow([&](MlflowRun& run) {
    for (const auto& [name, value] : named_values(record)) run.metric(name, value, record.iteration);
    if (mlflow_options_->speeds == MlflowOptions::Copies::kNo) return;
    for (const auto& [name, value] : named_speeds(record)) run.metric(name, value, record.iteration);
  });
}

void Reporter::evaluation(const EvaluationRecord& record) {
  message(fmt::format(" {} validation loss at iteration {} | {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} |",
                      time_stamp(), record.iteration, record.split, record.loss,
                      std::exp(std::min(record.loss, 20.0))));
  if (tensorboard_) tensorboard_->evaluation(record);
  to_mlflow([&](MlflowRun& run) { run.metric("lm loss " + record.split, record.loss, record.iteration); });
  write_json(json_line(record));
}

void Reporter::baseline(const data::NgramBaseline& baseline) {
  message(fmt::format("  on the same held-out text a unigram model reaches {:.4f}, a bigram model {:.4f}",
                      baseline.unigram_nats, baseline.bigram_nats));
  write_json(fmt::format("{{\"unigram_loss\": {:.6f}, \"bigram_loss\": {:.6f}}}", baseline.unigram_nats,
                         baseline.bigram_nats));
}

void Reporter::open_tensorboard(const TensorBoardOptions& options, const std::string& experiment,
                                const RunPosition& position) {
  if (!options.folder.empty()) tensorboard_ = std::make_unique<TensorBoard>(options, experiment, position);
}

void Reporter::open_mlflow(const config::Experiment& experiment, std::int64_t last_iteration) {
  mlflow_options_ = mlflow_options(experiment);
  if (!mlflow_options_) return;
  mlflow_ = std::make_unique<MlflowRun>(mlflow_options_->names, run_folder_ + "/mlflow_run_id", last_iteration);
  to_mlflow([&](MlflowRun& run) {
    for (const auto& [key, setting] : experiment.settings()) run.parameter(key, config::to_text(setting.value));
    for (const auto& [name, value] : experiment.env) run.tag("env." + name, value);
  });
}

void Reporter::close_mlflow(MlflowRun::Status status) {
  to_mlflow([&](MlflowRun& run) {
    if (mlflow_options_->logs == MlflowOptions::Copies::kYes) {
      for (const char* name : {"log.txt", "metrics.jsonl", "experiment.yaml", "experiment.json"}) {
        const std::filesystem::path file = std::filesystem::path(run_folder_) / name;
        if (std::filesystem::exists(file)) run.artifact(file, "logs");
      }
    }
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(mlflow_options_->traces, error)) {
      if (entry.path().filename().string().find(".pt.trace.json") != std::string::npos)
        run.artifact(entry.path(), "traces");
    }
    run.end(status);
  });
  mlflow_.reset();
}

void Reporter::to_mlflow(const std::function<void(MlflowRun&)>& write) {
  if (!mlflow_) return;
  try {
    write(*mlflow_);
  } catch (const UserError& error) {
    alarm(fmt::format("ERROR: {}; training goes on, and MLflow gets no more of it", error.what()));
    mlflow_.reset();
  }
}

void Reporter::step(const IterationRecord& record) {
  tensorboard_->step(record);
}

void Reporter::write_json(const std::string& line) {
  // After half a line, one of its own, which readers pass over.
  if (has_lost_records_) metrics_ << '\n';
  metrics_ << line << std::endl;
  const bool is_written = static_cast<bool>(metrics_) && (!tensorboard_ || tensorboard_->flush());
  if (!is_written) tell_lost("metrics.jsonl or TensorBoard's file");
  metrics_.clear();
  has_lost_records_ = !is_written;
}

void Reporter::tell_lost(const std::string& what) {
  if (has_lost_records_) return;
  alarm(fmt::format("ERROR: {}: writing failed: {}; training goes on, records wait for room and may be lost", what,
                    std::strerror(errno)));
}

void Reporter::progress(std::int64_t done, std::int64_t total, double loss, double seconds_left) {
  if (!has_terminal_ || total <= 0) return;
  std::string text = fmt::format(" {}/{}", done, total);
  if (std::isfinite(loss)) text += fmt::format(" | loss {:.4f}", loss);
  if (done < total) text += fmt::format(" | {} left", format_duration(seconds_left));
  // A line that wraps cannot be redrawn: the bar takes what the text leaves of the terminal's width.
  const int room = terminal_columns() - static_cast<int>(text.size()) - 3;
  const int width = std::min(kBarWidth, room);
  std::string bar;
  if (width >= kLeastBarWidth) {
    const auto filled = static_cast<int>(width * done / total);
    bar = fmt::format("[{}{}]", std::string(filled, '='), std::string(width - filled, ' '));
  } else {
    text.resize(std::min(text.size(), static_cast<std::size_t>(terminal_columns() - 1)));
  }
  std::fputs(fmt::format("\r\033[K{}{}", bar, text).c_str(), stderr);
  bar_is_drawn_ = true;
}

void Reporter::clear_bar() {
  if (!bar_is_drawn_) return;
  std::fputs("\r\033[K", stderr);
  bar_is_drawn_ = false;
}

}  // namespace primus::train
