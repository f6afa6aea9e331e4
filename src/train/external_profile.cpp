#include "train/external_profile.hpp"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "ops/device.hpp"
#include "ops/device_profile.hpp"
#include "train/profiler.hpp"

namespace primus::train {
namespace {

namespace impl = torch::profiler::impl;
using Window = ExternalProfileOptions::Window;

[[noreturn]] void refuse(const char* key, const char* what, const char* expected) {
  throw UserError(fmt::format("{}: true {} of a GPU, and this run trains on the CPU (expected {}, or --device cuda)",
                              key, what, expected),
                  ExitCode::kWrongInput);
}

void begin_range(std::string_view name) {
  ops::push_range(std::string(name));
}

// The zones that are open, outermost first: an allocation is noted under the innermost one.
thread_local std::vector<std::string> open_zones;

void begin_note(std::string_view name) {
  open_zones.emplace_back(name);
  ops::note_allocations(at::kCUDA, open_zones.back());
}

void end_note() {
  open_zones.pop_back();
  ops::note_allocations(at::kCUDA, open_zones.empty() ? std::string() : open_zones.back());
}

void begin_both(std::string_view name) {
  begin_range(name);
  begin_note(name);
}

void end_both() {
  end_note();
  ops::pop_range();
}

}  // namespace

ExternalProfileOptions external_profile_options(const config::Experiment& experiment, std::int64_t rank) {
  ExternalProfileOptions options;
  if (is_profiled(experiment, rank) && !experiment.get_bool("use_pytorch_profiler")) {
    options.window =
        Window{.first_step = experiment.get_int("profile_step_start"),
               .end_step = experiment.get_int("profile_step_end"),
               .shapes = experiment.get_bool("record_shapes") ? Window::Shapes::kNamed : Window::Shapes::kNotNamed};
  }
  if (experiment.get_bool("nvtx_ranges")) options.ranges = ExternalProfileOptions::Ranges::kAlways;
  if (experiment.get_bool("record_memory_history")) {
    options.memory_snapshot = experiment.get_string("memory_snapshot_path");
  }
  return options;
}

ExternalProfile::ExternalProfile(ExternalProfileOptions options, at::Device device)
    : options_(std::move(options)), device_(device) {
  if (!device.is_cuda()) {
    if (options_.window) refuse("profile", "marks steps", "use_pytorch_profiler: true beside it");
    if (options_.ranges == ExternalProfileOptions::Ranges::kAlways) refuse("nvtx_ranges", "names the work", "false");
    if (options_.memory_snapshot) refuse("record_memory_history", "records the memory", "false");
  }
  if (options_.memory_snapshot) ops::record_allocations(device);
  if (marks().begin != nullptr) ops::set_zone_marks(marks());
}

ExternalProfile::~ExternalProfile() {
  if (is_finished_) return;
  try {
    finish();
  } catch (const std::exception&) {
    // The exception that ended the run says what is wrong.
  }
}

ops::ZoneMarks ExternalProfile::marks() const {
  const bool has_ranges = window_is_open_ || options_.ranges == ExternalProfileOptions::Ranges::kAlways;
  if (has_ranges && options_.memory_snapshot) return {.begin = begin_both, .end = end_both};
  if (has_ranges) return {.begin = begin_range, .end = ops::pop_range};
  if (options_.memory_snapshot) return {.begin = begin_note, .end = end_note};
  return {};
}

bool ExternalProfile::is_in_window(std::int64_t step) const {
  return options_.window && step >= options_.window->first_step && step < options_.window->end_step;
}

void ExternalProfile::open_window() {
  ops::synchronize(device_);  // what earlier steps left to do is none of the window's
  ops::set_capture(device_, ops::Capture::kStarted);
  const impl::ProfilerConfig config(impl::ProfilerState::NVTX, options_.window->shapes == Window::Shapes::kNamed);
  torch::autograd::profiler::enableProfiler(config, {});
  window_is_open_ = true;
  ops::set_zone_marks(marks());
}

void ExternalProfile::close_window() {
  if (!window_is_open_) return;
  ops::synchronize(device_);
  torch::autograd::profiler::disableProfiler();
  ops::set_capture(device_, ops::Capture::kStopped);
  window_is_open_ = false;
  ops::set_zone_marks(marks());
}

void ExternalProfile::begin_step(std::int64_t step) {
  if (!window_is_open_ && is_in_window(step)) open_window();
  if (marks().begin != nullptr) ops::push_range(fmt::format("step {}", step));
}

void ExternalProfile::end_step(std::int64_t step) {
  if (marks().begin != nullptr) ops::pop_range();
  if (!is_in_window(step + 1)) close_window();
}

void ExternalProfile::write_snapshot() const {
  const std::filesystem::path path = *options_.memory_snapshot;
  if (path.has_parent_path()) make_folder(path.parent_path());
  write_file(path, ops::allocations_snapshot(device_));
}

std::optional<std::string> ExternalProfile::finish() {
  is_finished_ = true;
  close_window();
  ops::set_zone_marks({});
  if (!options_.memory_snapshot) return std::nullopt;
  write_snapshot();
  return options_.memory_snapshot;
}

}  // namespace primus::train
