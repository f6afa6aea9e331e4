#pragma once
// The training loop: data, steps, evaluation, records, summary.
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "data/batch_loader.hpp"
#include "train/batches.hpp"
#include "train/energy_meter.hpp"
#include "train/external_profile.hpp"
#include "train/options.hpp"
#include "train/outlier_watch.hpp"
#include "train/profiler.hpp"
#include "train/progress_log.hpp"
#include "train/rejected_results.hpp"
#include "train/reporter.hpp"
#include "train/saver.hpp"
#include "train/start.hpp"
#include "train/step_observers.hpp"

namespace primus::train {

enum class EndOfRun { kAllSteps, kExitInterval, kExitDuration, kEndOfPhase, kInterrupted, kEvaluated };

/// How a run went.
struct RunSummary {
  EndOfRun end = EndOfRun::kAllSteps;
  std::int64_t num_iterations = 0;
  double first_loss = 0.0;
  double last_loss = 0.0;
  std::optional<double> valid_loss;  // the last evaluation's, of several sets the mean
  double seconds = 0.0;              // of training steps
  double tokens_per_s = 0.0;         // harmonic mean, warm-up steps left out
  std::int64_t num_skipped = 0;
  std::int64_t peak_bytes = 0;
  std::optional<std::string> failed_save;  // why the last checkpoint is not there
};

/// One run of one process. Construction allocates everything and opens the data.
class Trainer {
 public:
  explicit Trainer(const config::Experiment& experiment, at::Device device = at::kCPU);
  ~Trainer();

  /// Evaluate alone (skip_train), or train to the end, to exit_interval or exit_duration_in_mins, or until a signal
  /// asks to stop, saving on the way. Throws UserError when loss or gradient are not finite and the experiment says to
  /// stop then.
  RunSummary run(Reporter& reporter);

  const model::ModelSpec& spec() const { return spec_; }
  nn::ParameterStore& parameters() { return *parameters_; }
  const Start& start() const { return start_; }
  /// The step after which this run begins.
  std::int64_t first_iteration() const { return start_.position.iteration; }
  std::int64_t num_samples(data::Split split) const { return source_->num_samples(split); }

 private:
  using Interval = checkpoint::TrainingState::LogInterval;  // sums since the last record
  struct Progress;
  /// Held-out data that is evaluated by itself.
  struct HeldOut {
    std::string name;
    std::shared_ptr<const data::DataSource> source;
    std::unique_ptr<data::BatchLoader> batches;
  };
  /// What the energy meter said at the last record, and the steps since.
  struct Energy {
    double joules = 0.0;
    double seconds = 0.0;
    std::int64_t num_steps = 0;
  };

  void open_held_out();
  /// The data of the phase in which the run begins (phase_transition_iterations): its samples alone, from its first.
  void enter_phase();
  void open_meter(Reporter& reporter);
  void open_progress_file(Reporter& reporter);
  ProgressPoint progress_point(std::int64_t iteration, std::int64_t consumed_samples) const;
  /// The rates of a step that begins after `samples` (of the schedule: skipped steps do not count).
  engine::StepRates rates(std::int64_t samples) const;
  DepthOptions depth_options() const;
  /// A step that the runner was given and whose result has not been taken.
  struct Submitted {
    std::int64_t iteration = 0;
    engine::StepRates rates;
    std::int64_t batch_size = 0;
    std::int64_t consumed_samples = 0;  // this step's included
    std::chrono::steady_clock::time_point start;
    double host_seconds = 0.0;  // until the device had been given its work
  };
  void submit(std::int64_t iteration, std::int64_t consumed_samples, const engine::StepRates& rates,
              nn::Observer* observer);
  const schedule::Schedule& schedule_of(std::int64_t num_micro_batches);
  RunSummary run_evaluation(Reporter& reporter);
  /// Takes the result of the oldest submitted step, and makes its records; `end`: the run ends with it.
  void settle(Reporter& reporter, Progress& progress, std::optional<EndOfRun> end);
  bool is_evaluation_due(std::int64_t iteration) const;
  /// Submits one step and settles it, or the one before it; `end` is set if the run ends with this one.
  void train(Reporter& reporter, std::int64_t iteration, Progress& progress, std::optional<EndOfRun>& end);
  bool is_passed_over(std::int64_t iteration) const;
  /// What jumps in a loss and a gradient norm, if anything is to be told.
  std::optional<std::string> outlier(double loss, double grad_norm);
  void report_rerun(Reporter& reporter, const engine::RerunVerdict& verdict, std::int64_t iteration) const;
  /// Into the file of rejected results, if there is one. `why` is empty where nothing was wrong.
  void list_rejected(const engine::StepResult& result, std::int64_t iteration, const std::string& why) const;
  /// Nothing if a signal came in between.
  std::optional<EvaluationRecord> evaluate(HeldOut& held_out, std::int64_t iteration, std::int64_t consumed_samples);
  /// All held-out sets, and with several their mean. Nothing if a signal came in between.
  std::optional<double> evaluate_all(Reporter& reporter, std::int64_t iteration, std::int64_t consumed_samples);
  /// Of the steps in `interval`; `step` and its result `last` are the newest one's.
  IterationRecord record(const Submitted& step, const Interval& interval, const engine::StepResult& last) const;
  /// The interval that one step makes.
  static Interval interval_of(const engine::StepResult& result, double seconds, std::int64_t batch_size);
  /// Throws, or tells that the step was left out, as the experiment says.
  void report_nonfinite(Reporter& reporter, const engine::StepResult& result, std::int64_t iteration) const;
  void count(const engine::StepResult& result, const Interval& step, Progress& progress) const;
  void add_energy(IterationRecord& record);
  /// Why the run ends after this iteration, if it does.
  std::optional<EndOfRun> end_after(std::int64_t iteration) const;
  /// Evaluates if it is time to; an end that a signal brings meanwhile is put into `end`.
  void evaluate_if_due(Reporter& reporter, std::int64_t iteration, Progress& progress, std::optional<EndOfRun>& end);
  void save_if_due(Reporter& reporter, std::int64_t iteration, const Progress& progress, std::optional<EndOfRun> end);
  void tell_progress_file(Reporter& reporter, const std::function<void(const ProgressLog&)>& tell) const;
  checkpoint::CheckpointContent content(std::int64_t iteration, const Progress& progress) const;

  at::Device device_;
  RunOptions options_;
  model::ModelSpec spec_;
  std::int64_t flops_per_token_;
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<Saver> short_lived_;
  std::unique_ptr<ProgressLog> progress_file_;
  std::unique_ptr<RejectedResults> rejected_results_;
  std::unique_ptr<EnergyMeter> meter_;
  Energy energy_;
  std::unique_ptr<nn::ParameterStore> parameters_;
  std::unique_ptr<nn::Model> model_;
  std::unique_ptr<engine::Optimizer> optimizer_;
  std::unique_ptr<engine::StepRunner> runner_;
  Start start_;
  std::string experiment_json_;
  std::string experiment_yaml_;  // as the launcher wrote it; empty without a launcher
  std::chrono::steady_clock::time_point began_;
  ExternalProfile external_profile_;
  Profiler profiler_;
  std::unique_ptr<StepObservers> observers_;
  std::deque<Submitted> submitted_;
  std::chrono::steady_clock::time_point settled_;         // when the last result was taken
  std::map<std::int64_t, schedule::Schedule> schedules_;  // by number of micro-batches
  OutlierWatch loss_watch_{"loss"};
  OutlierWatch gradient_watch_{"gradient norm"};
  std::shared_ptr<const data::DataSource> source_;
  std::unique_ptr<data::BatchLoader> train_batches_;
  std::int64_t phase_begin_ = 0;  // samples before the phase
  std::vector<HeldOut> held_out_;
};

}  // namespace primus::train
