#pragma once
// A trace of some steps through libtorch's profiler (Kineto): what Perfetto, chrome://tracing and TensorBoard's plugin
// open. The zones of ops/zone.hpp stand in it under their names, each step as ProfilerStep#N.
#include <cstdint>
#include <optional>
#include <string>

#include "config/experiment.hpp"
#include "ops/dtype.hpp"
#include "ops/zone.hpp"

namespace primus::train {

/// Which steps are recorded, and how. Steps count from 0: step i is iteration i + 1 of the log.
struct ProfileOptions {
  std::int64_t first_step = 10;
  std::int64_t end_step = 12;  // not recorded any more
  enum class Activities { kAll, kDeviceOnly } activities = Activities::kAll;
  enum class Shapes { kNotRecorded, kRecorded } shapes = Shapes::kNotRecorded;
  enum class Format { kJson, kGzip } format = Format::kJson;
  enum class Graph { kNotRecorded, kRecorded } graph = Graph::kNotRecorded;  // a Chakra execution trace beside it
  std::string folder;                                                        // made when missing
};

/// Are steps of this rank profiled: does the experiment profile, on this rank among others?
bool is_profiled(const config::Experiment& experiment, std::int64_t rank);

/// What the experiment asks for; nothing without `profile` and `use_pytorch_profiler`, or if `rank` does not record.
std::optional<ProfileOptions> profile_options(const config::Experiment& experiment, std::int64_t rank);

/// Records a window of steps, once: those of it that this process runs. For the thread that runs them.
class Profiler {
 public:
  /// Throws UserError if nothing could be recorded: the device's activities alone, without a device.
  /// `outside`: the marks of zones that hold before and after the window.
  Profiler(std::optional<ProfileOptions> options, at::Device device, std::int64_t rank, ops::ZoneMarks outside = {});
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Before step `step` begins.
  void begin_step(std::int64_t step);
  /// After it. Where the window ends, the trace is written: its path. Throws UserError if it cannot be.
  std::optional<std::string> end_step();
  /// When the run ends: a trace that is still being recorded is written, as by end_step.
  std::optional<std::string> finish();

 private:
  struct Recording {
    std::int64_t first_step;
    std::int64_t last_step;
  };
  void start();
  std::string graph_path(const std::string& steps) const;
  /// Ends the execution trace, which is complete then.
  void close_graph();
  /// The same, and the file gets its name. Throws UserError.
  void finish_graph(const std::string& steps);

  std::optional<ProfileOptions> options_;
  at::Device device_;
  std::int64_t rank_;
  ops::ZoneMarks outside_;
  bool is_prepared_ = false;
  std::optional<Recording> recording_;
  bool graph_is_open_ = false;
};

}  // namespace primus::train
