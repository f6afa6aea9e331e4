#pragma once
// Runs one training step: walks a rank's actions of a Schedule. It knows micro-batches, gradients and the optimizer,
// not data files, logs or learning-rate curves.
#include <deque>
#include <map>
#include <numeric>
#include <span>

#include "engine/loss_scaler.hpp"
#include "engine/optimizer.hpp"
#include "engine/rerun.hpp"
#include "model/recompute.hpp"
#include "nn/model.hpp"
#include "ops/host_copy.hpp"
#include "ops/recorder.hpp"
#include "schedule/schedule.hpp"

namespace primus::engine {

/// How a GPU gets its work: kernel by kernel, or a step's kernels recorded once and then replayed.
enum class Launch { kOneByOne, kRecorded };

/// What happens after a step that is not finite: the next ones update again, or none does any more, not even one that
/// was begun before the host knew.
enum class AfterNonFinite { kGoOn, kHalt };

/// What stays the same over a run.
struct StepSettings {
  model::NumericPolicy policy;
  model::LossFusion loss_fusion = model::LossFusion::kFused;
  model::BatchShape micro_batch;
  double clip_grad = 1.0;
  std::uint64_t seed = 0;  // of random numbers in forward passes
  model::RecomputeSpec recompute;
  LossScaleSettings loss_scale;
  RerunSettings rerun;
  Launch launch = Launch::kOneByOne;
  AfterNonFinite after_nonfinite = AfterNonFinite::kGoOn;
};

struct StepInput {
  std::span<const nn::MicroBatchInput> micro_batches;
  double num_tokens = 1.0;               // of the step, those that count
  std::vector<double> depth_num_tokens;  // alike, of each prediction depth (add_depths)
  std::int64_t first_sample = 0;         // of the step in the run: its tokens key random numbers
  StepRates rates;
  std::int64_t step = 0;  // number of the step, which keys injected errors
  nn::Observer* observer = nullptr;
  Rerun::Suspicion suspicion = {};  // with rerun: what looks wrong in a result (loss: token mean)
};

/// What one MoE layer's router did in the step.
struct ExpertLoad {
  int layer = 0;
  double max_over_mean = 0.0;
  std::int64_t num_dead_experts = 0;          // got no token
  std::vector<std::int64_t> num_tokens = {};  // by expert
  double entropy = 1.0;                       // of the loads as shares, over ln(experts): 1 is balanced, 0 one expert
  std::optional<std::int64_t> num_dropped;    // choices beyond a capacity, where there is one

  std::int64_t num_choices() const { return std::accumulate(num_tokens.begin(), num_tokens.end(), std::int64_t{0}); }
};

/// kSkippedOverflow: the loss scale was too large, which is no fault and mends itself.
enum class StepOutcome { kUpdated, kSkippedNonFinite, kSkippedOverflow };

struct StepResult {
  StepOutcome outcome = StepOutcome::kUpdated;
  double loss = 0.0;               // token mean of the step
  std::vector<double> mtp_losses;  // alike, of each prediction depth, without the scaling factor
  double grad_norm = 0.0;          // before clipping
  /// Mean over MoE layers, micro-batches and ways, without coefficients: 1 is balanced.
  double load_balancing_loss = 0.0;
  double z_loss = 0.0;      // mean over MoE layers and micro-batches, without its coefficient
  double loss_scale = 1.0;  // of this step
  std::vector<ExpertLoad> expert_loads;
  std::optional<double> largest_logit;  // of attention, where the model counts it
  std::optional<double> indexer_loss;   // mean over indexers and micro-batches, without its coefficient
  std::string nonfinite;                // what is not finite and where it shows first, when skipped
  std::optional<RerunVerdict> rerun;    // of a step that was computed twice
};

class StepRunner {
 public:
  StepRunner(const model::ModelSpec& spec, const StepSettings& settings, nn::Model& model,
             nn::ParameterStore& parameters, Optimizer& optimizer);

  /// Walk the actions. The update is gated on the device: it happens only if loss and gradients are finite (decision
  /// 16); a step that meets NaN on the way there may end at once, also skipped.
  StepResult run(const std::vector<schedule::Action>& actions, const StepInput& input) {
    submit(actions, input);
    return collect();
  }

  /// The same in two halves: give the device a step's work, and take the result of the oldest step that has not been
  /// taken. Nothing in submit waits for a GPU; the input's tensors may go when it returns.
  void submit(const std::vector<schedule::Action>& actions, const StepInput& input);
  StepResult collect();

  /// Masked sum of losses of one micro-batch of `num_sequences`; changes nothing (D7).
  double evaluate(const nn::MicroBatchInput& input, std::int64_t num_sequences);
  double evaluate(const nn::MicroBatchInput& input) { return evaluate(input, settings_.micro_batch.num_sequences); }

  /// What it carries from step to step, for saving and loading.
  LossScaler& loss_scaler() { return scaler_; }
  const LossScaler& loss_scaler() const { return scaler_; }
  /// The key of random numbers in forward passes, where a checkpoint says another one than the settings.
  void set_seed(std::uint64_t seed) { settings_.seed = seed; }
  std::uint64_t seed() const { return settings_.seed; }

 private:
  /// State of the step that is being run.
  struct Running {
    const StepInput* input = nullptr;
    std::vector<std::unique_ptr<nn::Saved>> saved;  // by micro-batch, while in flight
    at::Tensor loss_sum;                            // fp64: the main model's, then each depth's
    at::Tensor square_sum;                          // of the gradients, fp64, one element
    StepResult result;
  };

  /// A step whose result is on its way.
  struct UnderWay {
    StepResult result;
    std::optional<ops::HostCopy> copy;  // sums, router counts, router losses; none: the step ended early
    double num_tokens = 1.0;
    std::vector<double> depth_num_tokens;
    std::size_t num_micro_batches = 0;
    std::vector<std::optional<std::int64_t>> num_dropped = {};  // by MoE layer
  };

  /// A step of so many micro-batches as recorded pieces (recorded_step.cpp).
  struct Recording {
    std::unique_ptr<ops::Recorder> recorder;
    std::vector<nn::MicroBatchInput> micro_batches;  // the same tensors for each, which replays read
    StepInput input;
    Running running;
    std::size_t first = 0, further = 0, last = 0;  // pieces: up to the first backward; another micro-batch; the update
  };

  /// The recording that does this step, made now if the step is warm; nullptr: it is launched kernel by kernel.
  Recording* recording_for(const std::vector<schedule::Action>& actions, const StepInput& input);
  Recording& record(const StepInput& input);
  void replay(Recording& recording, const StepInput& input);
  void launch(Running& running, const std::vector<schedule::Action>& actions);
  UnderWay begin_read_back(const Running& running, const StepInput& input);

  void begin(Running& running, std::size_t num_micro_batches);
  /// Everything but the optimizer's step, a second time where the first result asks for it.
  void compute(Running& running, const std::vector<schedule::Action>& actions);
  void walk(Running& running, const std::vector<schedule::Action>& actions);
  void forward(Running& running, schedule::MicroBatch micro_batch);
  void backward(Running& running, schedule::MicroBatch micro_batch);
  void weight_grad(Running& running, schedule::MicroBatch micro_batch);
  void finish(Running& running);
  void unscale_gradients();
  void optimizer_step(Running& running);
  void read_back(UnderWay& step);
  void skip(StepResult& result, std::string reason) const;
  std::string describe_nonfinite(const StepResult& result) const;
  void collect_router_metrics(UnderWay& step, const at::Tensor& counts_LE, const at::Tensor& loss_4L);
  nn::StepContext context(const nn::MicroBatchInput& input, nn::Mode mode) const;
  nn::StepContext training_context(const Running& running, std::size_t micro_batch) const;

  model::ModelSpec spec_;
  StepSettings settings_;
  model::SavedDeclaration declaration_;
  nn::RopeTables rope_;
  nn::RopeTables entry_rope_;
  comm::Groups groups_;
  nn::Model& model_;
  nn::ParameterStore& parameters_;
  Optimizer& optimizer_;
  LossScaler scaler_;
  Rerun rerun_;
  nn::WeightGradTiming timing_ = nn::WeightGradTiming::kWithBackward;
  at::Tensor halt_1_;  // fp64: 0, or NaN once a step was not finite and none shall follow it
  std::deque<UnderWay> under_way_;
  std::map<std::size_t, Recording> recordings_;  // by number of micro-batches
  std::map<std::size_t, int> num_launched_;      // steps of so many micro-batches
};

}  // namespace primus::engine
