#pragma once
// Tensors of single steps as files, for finding where two runs part: activations, gradients, parameters, expert loads.
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "config/experiment.hpp"
#include "nn/observer.hpp"
#include "nn/parameter.hpp"
#include "train/state_tensors.hpp"

namespace primus::train {

enum class Dump { kActivations, kInputGradients, kWeightGradients, kParameters, kExpertLoads };
inline constexpr std::size_t kNumDumps = 5;

struct DumpOptions {
  std::array<std::optional<std::int64_t>, kNumDumps> interval;  // in steps, by Dump; absent: never
  std::string folder;                                           // where the run saves
};

/// save_activations_interval and its siblings.
DumpOptions dump_options(const config::Experiment& experiment);

/// Collects what a step is asked for and writes FOLDER/KIND/iter_0000010.safetensors, loads as .jsonl. Tensors are
/// named as the model's parts are, with their micro-batch in front.
class StepDumps final : public nn::Observer {
 public:
  StepDumps(DumpOptions options, const nn::ParameterStore& parameters)
      : options_(std::move(options)), parameters_(parameters) {}

  /// Is anything of this iteration (from 1) to be written? Then the step is to be observed.
  bool begin(std::int64_t iteration);
  /// After the step. Throws UserError; nothing of a file that failed is left.
  void finish();

  void begin_step() override;
  void begin_micro_batch(int micro_batch) override { micro_batch_ = micro_batch; }
  void activation(const std::string& name, const at::Tensor& values) override;
  void gradient(const std::string& name, const at::Tensor& values) override;
  void routing(const nn::Routing& routing) override;
  void gradients_ready() override;

 private:
  struct Loads {
    int layer;
    int repetition;
    std::vector<std::vector<std::int64_t>> by_micro_batch;
  };

  bool is_due(Dump dump) const;
  void add(Dump dump, const std::string& name, const at::Tensor& values);
  std::string path(Dump dump, const char* ending) const;
  void write_tensors(Dump dump) const;
  void write_loads() const;

  DumpOptions options_;
  const nn::ParameterStore& parameters_;
  std::int64_t iteration_ = 0;
  int micro_batch_ = 0;
  std::array<std::vector<NamedTensor>, kNumDumps> tensors_;
  std::vector<Loads> loads_;
};

}  // namespace primus::train
