#pragma once
// What an experiment asks of a GPU for profilers of others: a window of steps for nsys, ncu or rocprof (`profile`
// without `use_pytorch_profiler`), named ranges (`nvtx_ranges`), and libtorch's record of a GPU's memory
// (`record_memory_history`). Recorded steps (turbo_sync_free_moe_stage 3) pass no zone while they are replayed: their
// kernels are seen, under no name.
#include <cstdint>
#include <optional>
#include <string>

#include "config/experiment.hpp"
#include "ops/zone.hpp"

namespace primus::train {

struct ExternalProfileOptions {
  /// Steps, counted from 0: step i is iteration i + 1 of the log. libtorch's operations are ranges there as well.
  struct Window {
    std::int64_t first_step;
    std::int64_t end_step;  // not in it any more
    enum class Shapes { kNotNamed, kNamed } shapes;
  };
  std::optional<Window> window;
  enum class Ranges { kInWindow, kAlways } ranges = Ranges::kInWindow;
  std::optional<std::string> memory_snapshot;  // a file
};

/// What the experiment asks for on this rank.
ExternalProfileOptions external_profile_options(const config::Experiment& experiment, std::int64_t rank);

/// For the thread that runs the steps.
class ExternalProfile {
 public:
  /// Allocations are recorded from here on. Throws UserError (kWrongInput) where something is asked for that only a
  /// GPU has, on the CPU.
  ExternalProfile(ExternalProfileOptions options, at::Device device);
  /// After an exception, as when memory ran out: the snapshot is written, if that can be.
  ~ExternalProfile();
  ExternalProfile(const ExternalProfile&) = delete;
  ExternalProfile& operator=(const ExternalProfile&) = delete;

  /// Around each step, before it begins and after its work was given to the device.
  void begin_step(std::int64_t step);
  void end_step(std::int64_t step);
  /// When the run ends: the window is closed, the snapshot written: its path. Throws UserError if it cannot be.
  std::optional<std::string> finish();

  /// The marks of zones that hold while no other profiler has its own.
  ops::ZoneMarks marks() const;

 private:
  bool is_in_window(std::int64_t step) const;
  void open_window();
  void close_window();
  void write_snapshot() const;

  ExternalProfileOptions options_;
  at::Device device_;
  bool window_is_open_ = false;
  bool is_finished_ = false;
};

}  // namespace primus::train
