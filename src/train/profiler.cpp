#include "train/profiler.hpp"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/standalone/execution_trace_observer.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "ops/device.hpp"
#include "ops/zone.hpp"
#include "train/tensorboard.hpp"

namespace primus::train {
namespace {

namespace kineto = torch::profiler::impl;

std::set<kineto::ActivityType> activities(const ProfileOptions& options, at::Device device) {
  std::set<kineto::ActivityType> found;
  if (options.activities == ProfileOptions::Activities::kAll) found.insert(kineto::ActivityType::CPU);
  if (device.is_cuda()) found.insert(kineto::ActivityType::CUDA);
  return found;
}

kineto::ProfilerConfig configuration(const ProfileOptions& options) {
  return kineto::ProfilerConfig(kineto::ProfilerState::KINETO, options.shapes == ProfileOptions::Shapes::kRecorded);
}

// Zones nest and end in order, so a stack of open ranges is enough. The thread that runs the steps has it alone.
thread_local std::vector<std::unique_ptr<at::RecordFunction>> open_ranges;

void begin_range(std::string_view name) {
  open_ranges.push_back(std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE));
  open_ranges.back()->before(std::string(name));
}

void end_range() {
  open_ranges.pop_back();
}

void compress(const std::string& from, const std::string& to) {
  const std::string text = read_file(from);
  gzFile file = gzopen(to.c_str(), "wb6");
  bool is_written = file != nullptr;
  // gzwrite takes an unsigned int at a time.
  constexpr std::size_t kPiece = std::size_t{1} << 26U;
  for (std::size_t at = 0; is_written && at < text.size(); at += kPiece) {
    const auto size = static_cast<unsigned>(std::min(kPiece, text.size() - at));
    is_written = gzwrite(file, text.data() + at, size) == static_cast<int>(size);
  }
  if (file != nullptr && gzclose(file) != Z_OK) is_written = false;
  if (!is_written) throw UserError(fmt::format("{}: the trace cannot be written", to));
  std::filesystem::remove(from);
}

constexpr const char* kUnfinished = "unfinished";

}  // namespace

bool is_profiled(const config::Experiment& experiment, std::int64_t rank) {
  if (!experiment.get_bool("profile")) return false;
  const auto* list = std::get_if<config::Value::List>(&experiment.setting("profile_ranks").value.data);
  return list != nullptr && std::find(list->begin(), list->end(), config::Value{rank}) != list->end();
}

std::optional<ProfileOptions> profile_options(const config::Experiment& experiment, std::int64_t rank) {
  if (!is_profiled(experiment, rank) || !experiment.get_bool("use_pytorch_profiler")) return std::nullopt;
  ProfileOptions options;
  options.first_step = experiment.get_int("profile_step_start");
  options.end_step = experiment.get_int("profile_step_end");
  if (experiment.get_bool("disable_profiler_activity_cpu")) {
    options.activities = ProfileOptions::Activities::kDeviceOnly;
  }
  if (experiment.get_bool("torch_profiler_record_shapes")) options.shapes = ProfileOptions::Shapes::kRecorded;
  if (experiment.get_bool("torch_profiler_use_gzip")) options.format = ProfileOptions::Format::kGzip;
  if (experiment.get_bool("pytorch_profiler_collect_chakra")) options.graph = ProfileOptions::Graph::kRecorded;
  options.folder = tensorboard_folder(experiment);
  return options;
}

Profiler::Profiler(std::optional<ProfileOptions> options, at::Device device, std::int64_t rank, ops::ZoneMarks outside)
    : options_(std::move(options)), device_(device), rank_(rank), outside_(outside) {
  if (options_ && activities(*options_, device).empty()) {
    throw UserError(
        "disable_profiler_activity_cpu: true leaves nothing to record, because this run trains on the CPU (expected "
        "false, or --device cuda)",
        ExitCode::kWrongInput);
  }
  // The recorder complains of the missing GPU on standard error; what it cannot write is told of here.
  constexpr const char* kNothing = "5";
  if (options_ && !device.is_cuda()) ::setenv("KINETO_LOG_LEVEL", kNothing, /*overwrite=*/0);
}

Profiler::~Profiler() {
  if (!recording_) return;
  // The step was left by an exception: what was recorded of it tells nothing.
  ops::set_zone_marks(outside_);
  open_ranges.clear();
  torch::autograd::profiler::disableProfiler();
  if (!graph_is_open_) return;
  close_graph();
  std::error_code error;
  std::filesystem::remove(graph_path(kUnfinished), error);
}

std::string Profiler::graph_path(const std::string& steps) const {
  return (std::filesystem::path(options_->folder) / fmt::format("rank{}_{}.chakra.json", rank_, steps)).string();
}

void Profiler::close_graph() {
  kineto::disableExecutionTraceObserver();
  kineto::removeExecutionTraceObserver();
  graph_is_open_ = false;
}

void Profiler::finish_graph(const std::string& steps) {
  const bool was_open = graph_is_open_;
  if (was_open) close_graph();
  std::error_code error;
  if (was_open) std::filesystem::rename(graph_path(kUnfinished), graph_path(steps), error);
  if (!was_open || error) throw UserError(fmt::format("{}: the execution trace cannot be written", graph_path(steps)));
}

void Profiler::start() {
  if (options_->graph == ProfileOptions::Graph::kRecorded) {
    std::error_code error;
    std::filesystem::create_directories(options_->folder, error);
    // The observer takes the file's name now; which step is the last is known when it ends.
    // One that it cannot open would leave it unusable in this process.
    const bool can_be_written = std::ofstream(graph_path(kUnfinished)).is_open();
    graph_is_open_ = can_be_written && kineto::addExecutionTraceObserver(graph_path(kUnfinished));
    if (graph_is_open_) kineto::enableExecutionTraceObserver();
  }
  torch::autograd::profiler::enableProfiler(configuration(*options_), activities(*options_, device_));
  ops::set_zone_marks({.begin = begin_range, .end = end_range});
}

void Profiler::begin_step(std::int64_t step) {
  if (!options_ || step >= options_->end_step) return;
  // The tools behind it are made ready a step early, so that the first recorded step does not wait for them.
  if (!is_prepared_ && step + 1 >= options_->first_step) {
    torch::autograd::profiler::prepareProfiler(configuration(*options_), activities(*options_, device_));
    is_prepared_ = true;
  }
  if (!recording_ && step >= options_->first_step) {
    recording_ = Recording{.first_step = step, .last_step = step};
    start();
  }
  if (!recording_) return;
  recording_->last_step = step;
  begin_range(fmt::format("ProfilerStep#{}", step));
}

std::optional<std::string> Profiler::end_step() {
  if (!recording_) return std::nullopt;
  if (device_.is_cuda()) ops::synchronize(at::kCUDA);  // the step's kernels belong into its trace
  end_range();
  if (recording_->last_step + 1 < options_->end_step) return std::nullopt;
  return finish();
}

std::optional<std::string> Profiler::finish() {
  if (!recording_) return std::nullopt;
  ops::set_zone_marks(outside_);
  const auto result = torch::autograd::profiler::disableProfiler();
  const std::string steps = fmt::format("steps{}-{}", recording_->first_step, recording_->last_step);
  const std::string name = fmt::format("rank{}_{}.pt.trace.json", rank_, steps);
  recording_.reset();
  if (options_->graph == ProfileOptions::Graph::kRecorded) finish_graph(steps);
  std::error_code failure;
  std::filesystem::create_directories(options_->folder, failure);
  const std::string path = (std::filesystem::path(options_->folder) / name).string();
  std::filesystem::remove(path, failure);  // of an earlier run: what is there afterwards is this one's
  result->save(path);
  if (!std::filesystem::exists(path, failure)) throw UserError(fmt::format("{}: the trace cannot be written", path));
  if (options_->format == ProfileOptions::Format::kJson) return path;
  compress(path, path + ".gz");
  return path + ".gz";
}

}  // namespace primus::train
