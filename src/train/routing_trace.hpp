#pragma once
// Which experts the tokens of single steps took, as a file of JSON lines with two binary files beside it.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "config/experiment.hpp"
#include "nn/observer.hpp"
#include "nn/parameter.hpp"

namespace primus::train {

struct RoutingTraceOptions {
  std::filesystem::path folder;
  std::optional<std::int64_t> num_steps;  // recorded ones; absent: all
  enum class Capture { kNo, kYes };
  Capture logits = Capture::kNo;
  Capture hidden_states = Capture::kNo;
  Capture weights = Capture::kNo;
  int num_layers = 0;  // of the decoder: prediction depths are numbered behind them
};

/// Nothing without moe_routing_trace_path.
std::optional<RoutingTraceOptions> routing_trace_options(const config::Experiment& experiment, int num_layers);

/// Writes router_trace_rank0.jsonl, one line a layer and micro-batch; the router's logits and inputs in bf16, where
/// asked for, to logits_rank0.bin and hidden_states_rank0.bin, at the lines' offsets.
class RoutingTrace final : public nn::Observer {
 public:
  /// Begins the files, or goes on behind step `first_step` − 1 of an earlier process: what that one recorded of later
  /// steps is dropped. Steps count from 0. Throws UserError.
  RoutingTrace(RoutingTraceOptions options, const nn::ParameterStore& parameters, std::int64_t first_step);

  /// Is this step recorded? Before the first one, the routers' weights are written. Throws UserError.
  bool begin(std::int64_t step);
  /// After a recorded step. Throws UserError.
  void finish();

  void begin_step() override;
  void begin_micro_batch(int micro_batch) override { micro_batch_ = micro_batch; }
  void routing(const nn::Routing& routing) override;

 private:
  /// A file that grows, and what the running step adds to it.
  struct File {
    std::filesystem::path path;
    std::int64_t num_bytes = 0;
    std::string added;
  };
  std::filesystem::path path(const char* name) const { return options_.folder / name; }
  void go_on_behind(std::int64_t first_step);
  static void flush(File& file);
  void write_weights() const;

  RoutingTraceOptions options_;
  const nn::ParameterStore& parameters_;
  std::int64_t first_step_;  // of the recorded ones
  std::int64_t step_ = 0;
  int micro_batch_ = 0;
  File lines_;
  File logits_;
  File hidden_states_;
};

}  // namespace primus::train
