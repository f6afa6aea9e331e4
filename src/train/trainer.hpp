#pragma once
// The training loop: data, steps, evaluation, records, summary.
#include <memory>

#include "data/batch_loader.hpp"
#include "train/batches.hpp"
#include "train/options.hpp"
#include "train/reporter.hpp"

namespace primus::train {

enum class EndOfRun { kAllSteps, kExitInterval, kInterrupted };

/// How a run went.
struct RunSummary {
  EndOfRun end = EndOfRun::kAllSteps;
  std::int64_t num_iterations = 0;
  double first_loss = 0.0;
  double last_loss = 0.0;
  std::optional<double> valid_loss;  // the last evaluation's
  double seconds = 0.0;              // of training steps
  double tokens_per_s = 0.0;         // harmonic mean, warm-up steps left out
  std::int64_t num_skipped = 0;
  std::int64_t peak_bytes = 0;
};

/// One run of one process. Construction allocates everything and opens the data.
class Trainer {
 public:
  explicit Trainer(const config::Experiment& experiment, at::Device device = at::kCPU);
  ~Trainer();

  /// Train to the end, to exit_interval, or until a signal asks to stop. Throws UserError when loss or gradient are not
  /// finite and the experiment says to stop then.
  RunSummary run(Reporter& reporter);

  const model::ModelSpec& spec() const { return spec_; }
  nn::ParameterStore& parameters() { return *parameters_; }
  /// What the run starts from, for the log; empty: random weights, as nothing else was asked for.
  const std::string& start() const { return start_; }
  std::int64_t num_samples(data::Split split) const { return source_->num_samples(split); }

 private:
  struct Interval;
  struct Progress;

  /// The rates of a step that begins after `samples` (of the schedule: skipped steps do not count).
  engine::StepRates rates(std::int64_t samples) const;
  DepthOptions depth_options() const;
  engine::StepResult step(std::int64_t iteration, const engine::StepRates& rates);
  /// Nothing if a signal came in between.
  std::optional<EvaluationRecord> evaluate(std::int64_t iteration);
  void record(Reporter& reporter, std::int64_t iteration, Interval& interval, const engine::StepResult& last,
              double learning_rate);
  /// Throws, or tells that the step was left out, as the experiment says.
  void report_nonfinite(Reporter& reporter, const engine::StepResult& result, std::int64_t iteration) const;
  void count(const engine::StepResult& result, double seconds, Progress& progress) const;
  /// Why the run ends after this iteration, if it does.
  std::optional<EndOfRun> end_after(std::int64_t iteration) const;
  std::int64_t consumed_samples(std::int64_t iteration) const { return iteration * options_.global_batch_size; }

  at::Device device_;
  RunOptions options_;
  model::ModelSpec spec_;
  std::int64_t flops_per_token_;
  std::unique_ptr<nn::ParameterStore> parameters_;
  std::string start_;
  std::unique_ptr<nn::Model> model_;
  std::unique_ptr<engine::Optimizer> optimizer_;
  std::unique_ptr<engine::StepRunner> runner_;
  schedule::Schedule schedule_;
  std::shared_ptr<const data::DataSource> source_;
  std::unique_ptr<data::BatchLoader> train_batches_;
  std::unique_ptr<data::BatchLoader> valid_batches_;
};

}  // namespace primus::train
