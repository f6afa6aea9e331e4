#include "train/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>

#include "base/files.hpp"
#include "base/text.hpp"
#include "model/flops.hpp"
#include "ops/adamw/adamw.hpp"
#include "ops/device.hpp"
#include "schedule/algorithms.hpp"
#include "train/batches.hpp"
#include "train/device_support.hpp"
#include "train/interrupt.hpp"
#include "train/parameter_groups.hpp"
#include "train/schedule_settings.hpp"

namespace primus::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kRank = 0;  // a run of one process

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string launchers_yaml(const std::string& run_folder) {
  const std::filesystem::path path = std::filesystem::path(run_folder) / checkpoint::kExperimentYaml;
  return std::filesystem::exists(path) ? read_file(path) : std::string();
}

/// `finish` ends the recording. A file of a profiler that cannot be written is no reason to end the run.
template <class Finish>
void write_trace(Reporter& reporter, const char* what, const Finish& finish) {
  try {
    if (const std::optional<std::string> path = finish()) reporter.message(fmt::format(" {} written: {}", what, *path));
  } catch (const UserError& error) {
    reporter.alarm(error.what());
  }
}

/// Of the trained weights.
double parameters_norm(const nn::ParameterStore& parameters) {
  at::Tensor square_sum_1 = at::zeros({1}, at::TensorOptions(at::kDouble).device(parameters.device()));
  for (const auto& parameter : parameters.all()) {
    if (parameter->is_trained()) ops::add_sum_of_squares(parameter->weight, square_sum_1);
  }
  return std::sqrt(square_sum_1.item<double>());
}

std::int64_t num_zero_gradients(const nn::ParameterStore& parameters) {
  std::int64_t num_zeros = 0;
  for (const auto& parameter : parameters.all()) {
    const at::Tensor& gradient = parameter->gradient();
    if (gradient.defined()) num_zeros += gradient.eq(0).sum().item<std::int64_t>();
  }
  return num_zeros;
}

std::string memory_line(std::int64_t iteration, const ops::DeviceMemory& memory) {
  constexpr double kMegabyte = 1024.0 * 1024.0;
  return fmt::format("[Rank 0] (after {} iterations) memory (MB) | max allocated: {:.2f} | max reserved: {:.2f}",
                     iteration, static_cast<double>(memory.peak_bytes) / kMegabyte,
                     static_cast<double>(memory.reserved_bytes) / kMegabyte);
}

}  // namespace

/// What a run has counted so far.
struct Trainer::Progress {
  RunSummary summary;
  Interval interval;
  double measured_seconds = 0.0;  // of the steps that averages count
  std::int64_t measured_samples = 0;
  std::int64_t consumed_samples = 0;
  // A skipped step does not move the learning rate: it is taken off again when the host knows.
  std::int64_t schedule_samples = 0;
};

Trainer::Trainer(const config::Experiment& experiment, at::Device device)
    : device_(device),
      options_(run_options(experiment)),
      spec_(model::build_model_spec(experiment)),
      flops_per_token_(model::flops_per_token(spec_).training() + model::mtp_training_flops_per_token(spec_)),
      experiment_json_(experiment.to_json()),
      experiment_yaml_(launchers_yaml(options_.run_folder)),
      began_(Clock::now()),
      external_profile_(external_profile_options(experiment, kRank), device),
      profiler_(profile_options(experiment, kRank), device, kRank, external_profile_.marks()) {
  require_device_support(experiment, device);
  if (device.is_cuda()) options_.step.policy = model::gpu_policy(options_.step.policy);
  // Logits are counted where weights may be clipped by them; beyond every bound nothing is clipped.
  constexpr model::QkClip kCountOnly{.threshold = std::numeric_limits<double>::infinity(), .alpha = 0.5};
  if (options_.largest_logit == RunOptions::LogLogits::kYes && !spec_.qk_clip) spec_.qk_clip = kCountOnly;
  // The data is opened first: a wrong path should not cost the time to make a model.
  source_ = std::make_shared<data::DataSource>(options_.data);
  const data::BatchShape shape{.micro_batch_size = options_.micro_batch_size, .data_parallel = {}};
  train_batches_ = std::make_unique<data::BatchLoader>(source_, data::Split::kTrain, shape, data::Prefetch::kOn);
  if (options_.kind == RunKind::kEvaluation && options_.eval_iters == 0) {
    throw UserError("skip_train: there is nothing to do: eval_iters is 0", ExitCode::kWrongInput);
  }
  if (options_.eval_interval || options_.kind == RunKind::kEvaluation) {
    open_held_out();
  }
  saver_ = std::make_unique<Saver>(options_.save);
  short_lived_ = std::make_unique<Saver>(short_lived_only(options_.save));
  parameters_ = std::make_unique<nn::ParameterStore>(model::training_parameters(spec_), options_.step.policy,
                                                     options_.seed, device_);
  model_ = std::make_unique<nn::Model>(spec_, options_.step.policy, options_.step.loss_fusion, *parameters_);
  optimizer_ = std::make_unique<engine::Optimizer>(*parameters_, options_.step.policy, options_.optimizer);
  if (const auto file = parameter_groups_file(experiment)) {
    write_parameter_groups(model::training_parameters(spec_), options_.optimizer,
                           options_.end_learning_rate ? EndRate::kOwn : EndRate::kCommon, *file);
  }
  runner_ = std::make_unique<engine::StepRunner>(spec_, options_.step, *model_, *parameters_, *optimizer_);
  start_ = load_start(experiment, spec_,
                      {.parameters = *parameters_, .optimizer = *optimizer_, .runner = *runner_, .options = options_});
  observers_ = std::make_unique<StepObservers>(experiment, *parameters_, static_cast<int>(spec_.num_layers()),
                                               start_.position.iteration);
  if (!options_.phases.empty()) enter_phase();
}

void Trainer::open_held_out() {
  const data::BatchShape shape{.micro_batch_size = options_.evaluation.micro_batch_size, .data_parallel = {}};
  const auto add = [&](std::string name, std::shared_ptr<const data::DataSource> source) {
    if (source->num_samples(data::Split::kValid) == 0) {
      throw UserError(
          "there is no validation data to evaluate on: give valid_data_path, a split with a second part, or "
          "eval_iters: 0",
          ExitCode::kWrongInput);
    }
    auto batches = std::make_unique<data::BatchLoader>(source, data::Split::kValid, shape, data::Prefetch::kOff);
    held_out_.push_back({std::move(name), std::move(source), std::move(batches)});
  };
  if (options_.validation_sets.empty()) return add("validation", source_);
  for (const ValidationSet& set : options_.validation_sets) {
    data::DataOptions alone = options_.data;
    alone.train_data_path.clear();
    alone.test_data_path.clear();
    alone.valid_data_path = {set.prefix};
    add("validation-" + set.name, std::make_shared<data::DataSource>(alone));
  }
}

void Trainer::enter_phase() {
  const std::int64_t now = options_.batch_sizes.samples_of(start_.position.iteration);
  std::int64_t end = options_.batch_sizes.samples_of(options_.train_iters);
  for (const std::int64_t last_step : options_.phases) {
    const std::int64_t samples = options_.batch_sizes.samples_of(last_step);
    if (samples <= now) phase_begin_ = samples;
    if (samples > now) end = std::min(end, samples);
  }
  options_.data.requested.train = end - phase_begin_;
  source_ = std::make_shared<data::DataSource>(options_.data);
  const data::BatchShape shape{.micro_batch_size = options_.micro_batch_size, .data_parallel = {}};
  train_batches_ = std::make_unique<data::BatchLoader>(source_, data::Split::kTrain, shape, data::Prefetch::kOn);
}

void Trainer::open_meter(Reporter& reporter) {
  if (options_.energy == RunOptions::LogEnergy::kNo) return;
  FoundMeter found = device_.is_cuda() ? gpu_meter() : processor_meter();
  meter_ = std::move(found.meter);
  if (!meter_) reporter.message(fmt::format("note: log_energy: {}: no energy is logged", found.why_not));
}

ProgressPoint Trainer::progress_point(std::int64_t iteration, std::int64_t consumed_samples) const {
  const auto tokens = static_cast<double>(consumed_samples * options_.seq_length);
  return {.iteration = iteration, .num_flops = tokens * static_cast<double>(flops_per_token_), .num_tokens = tokens};
}

void Trainer::tell_progress_file(Reporter& reporter, const std::function<void(const ProgressLog&)>& tell) const {
  if (!progress_file_) return;
  try {
    tell(*progress_file_);
  } catch (const UserError& error) {
    reporter.alarm(fmt::format("ERROR: {}; training goes on", error.what()));
  }
}

void Trainer::open_progress_file(Reporter& reporter) {
  if (options_.progress_file == RunOptions::LogProgress::kNo || !saver_->is_on()) return;
  const Position& position = start_.position;
  progress_file_ = std::make_unique<ProgressLog>(
      *options_.save.folder, 1, progress_point(position.iteration, position.consumed_samples), std::time(nullptr));
  saver_->when_saved_beside([this, &reporter](std::int64_t iteration) {
    tell_progress_file(reporter, [&](const ProgressLog& log) { log.saved_beside(iteration, std::time(nullptr)); });
  });
}

Trainer::~Trainer() = default;

engine::StepRates Trainer::rates(std::int64_t samples) const {
  engine::StepRates rates{.learning_rate = options_.learning_rate.at(samples),
                          .weight_decay = options_.weight_decay.at(samples),
                          .end_learning_rate = std::nullopt};
  if (options_.end_learning_rate) rates.end_learning_rate = options_.end_learning_rate->at(samples);
  return rates;
}

DepthOptions Trainer::depth_options() const {
  DepthOptions depths{.num_depths = spec_.num_mtp_layers, .loss_scale = spec_.mtp_loss_scale, .document_end = {}};
  if (options_.documents == RunOptions::Documents::kByEod) depths.document_end = options_.data.eod;
  return depths;
}

const schedule::Schedule& Trainer::schedule_of(std::int64_t num_micro_batches) {
  const auto [entry, is_new] = schedules_.try_emplace(num_micro_batches);
  if (is_new) entry->second = schedule::build({.num_micro_batches = static_cast<int>(num_micro_batches)});
  return entry->second;
}

std::optional<std::string> Trainer::outlier(double loss, double grad_norm) {
  std::optional<std::string> text;
  if (options_.loss_watch == Watch::kOn) text = loss_watch_.look(loss);
  if (options_.gradient_watch == Watch::kOn) {
    const auto of_gradients = gradient_watch_.look(grad_norm);
    if (!text) text = of_gradients;
  }
  return text;
}

void Trainer::submit(std::int64_t iteration, std::int64_t consumed_samples, const engine::StepRates& rates,
                     nn::Observer* observer) {
  const std::int64_t num_micro_batches = options_.batch_sizes.at(consumed_samples) / options_.micro_batch_size;
  const StepBatches batches = to_tensors(train_batches_->step({.consumed_samples = consumed_samples - phase_begin_,
                                                               .num_micro_batches = num_micro_batches}),
                                         ops::to_aten(options_.step.policy.statistics), device_, depth_options());
  const auto suspicion = [&](double loss, double grad_norm) {
    const auto jump = outlier(loss, grad_norm);
    return std::isfinite(loss) && std::isfinite(grad_norm) ? jump : "loss or gradients are not finite";
  };
  runner_->submit(schedule_of(num_micro_batches).actions({0}), {.micro_batches = batches.micro_batches,
                                                                .num_tokens = batches.num_tokens,
                                                                .depth_num_tokens = batches.depth_num_tokens,
                                                                .first_sample = consumed_samples,
                                                                .rates = rates,
                                                                .step = iteration,
                                                                .observer = observer,
                                                                .suspicion = suspicion});
}

std::optional<EvaluationRecord> Trainer::evaluate(HeldOut& held_out, std::int64_t iteration,
                                                  std::int64_t consumed_samples) {
  const Clock::time_point start = Clock::now();
  double loss_sum = 0.0;
  double num_tokens = 0.0;
  // Always the same samples, from the split's beginning: evaluations of one run can be compared.
  const EvaluationOptions& evaluation = options_.evaluation;
  const std::int64_t num_samples = evaluation.extent == EvaluationOptions::Extent::kWholeSplit
                                       ? held_out.source->num_samples(data::Split::kValid)
                                       : options_.eval_iters * evaluation.global_batch_size;
  const std::int64_t size = evaluation.micro_batch_size;  // samples beyond the last whole one are left out
  for (std::int64_t first = 0; first + size <= num_samples; first += size) {
    if (pending_interrupt() != 0) return std::nullopt;
    const StepBatches batches = to_tensors(held_out.batches->step({.consumed_samples = first, .num_micro_batches = 1}),
                                           ops::to_aten(options_.step.policy.statistics), device_, {});
    loss_sum += runner_->evaluate(batches.micro_batches.front(), size);
    num_tokens += batches.num_tokens;
  }
  return EvaluationRecord{.iteration = iteration,
                          .consumed_samples = consumed_samples,
                          .split = held_out.name,
                          .loss = loss_sum / std::max(num_tokens, 1.0),
                          .num_tokens = static_cast<std::int64_t>(num_tokens),
                          .elapsed_ms = seconds_since(start) * 1e3};
}

std::optional<double> Trainer::evaluate_all(Reporter& reporter, std::int64_t iteration, std::int64_t consumed_samples) {
  EvaluationRecord together{
      .iteration = iteration, .consumed_samples = consumed_samples, .split = "validation-aggregated"};
  for (HeldOut& held_out : held_out_) {
    const auto evaluation = evaluate(held_out, iteration, consumed_samples);
    if (!evaluation) return std::nullopt;
    reporter.evaluation(*evaluation);
    together.loss += evaluation->loss / static_cast<double>(held_out_.size());
    together.num_tokens += evaluation->num_tokens;
    together.elapsed_ms += evaluation->elapsed_ms;
  }
  if (held_out_.size() > 1) reporter.evaluation(together);
  return together.loss;
}

void Trainer::report_nonfinite(Reporter& reporter, const engine::StepResult& result, std::int64_t iteration) const {
  if (options_.on_nonfinite == OnNonFinite::kSkip || result.outcome == engine::StepOutcome::kSkippedOverflow) {
    reporter.message(fmt::format(" iteration {}: skipped: {}", iteration, result.nonfinite));
    return;
  }
  throw UserError(
      fmt::format("iteration {}: {} (loss {}, gradient norm {}). The weights are those of the step before. Lower lr or "
                  "clip_grad, look at the data, or set check_for_nan_in_loss_and_grad to false to skip such steps.",
                  iteration, result.nonfinite, result.loss, result.grad_norm));
}

IterationRecord Trainer::record(const Submitted& step, const Interval& interval, const engine::StepResult& last) const {
  const auto steps = static_cast<double>(interval.num_steps);
  const std::int64_t good = interval.num_steps - interval.num_skipped;
  const auto tokens = static_cast<double>(interval.num_samples * options_.seq_length);
  const ops::DeviceMemory memory = ops::device_memory(device_);
  IterationRecord record{.iteration = step.iteration,
                         .train_iters = options_.train_iters,
                         .consumed_samples = step.consumed_samples,
                         .elapsed_ms = interval.seconds / steps * 1e3,
                         .host_ms = std::nullopt,
                         .tokens_per_s = tokens / interval.seconds,
                         .tflops = tokens / interval.seconds * static_cast<double>(flops_per_token_) * 1e-12,
                         .learning_rate = step.rates.learning_rate,
                         .global_batch_size = step.batch_size,
                         .lm_loss = good > 0 ? interval.loss_sum / static_cast<double>(good) : last.loss,
                         .mtp_losses = good > 0 ? interval.mtp_sums : last.mtp_losses,
                         .load_balancing_loss = std::nullopt,
                         .z_loss = std::nullopt,
                         .indexer_loss = last.indexer_loss,
                         .largest_logit = std::nullopt,
                         .loss_scale = last.loss_scale,
                         .grad_norm = last.grad_norm,
                         .num_skipped = interval.num_skipped,
                         .num_nan = interval.num_nan,
                         .held_bytes = memory.peak_bytes,
                         .reserved_bytes = memory.reserved_bytes,
                         .expert_loads = last.expert_loads};
  if (device_.is_cuda()) record.host_ms = step.host_seconds * 1e3;
  if (good > 0) {
    for (double& loss : record.mtp_losses) loss /= static_cast<double>(good);
  }
  if (spec_.moe && spec_.moe->router.losses.has_balance()) record.load_balancing_loss = last.load_balancing_loss;
  if (spec_.moe && spec_.moe->router.losses.z != 0.0) record.z_loss = last.z_loss;
  if (options_.largest_logit == RunOptions::LogLogits::kYes) record.largest_logit = last.largest_logit;
  if (options_.params_norm == RunOptions::LogNorm::kYes) record.params_norm = parameters_norm(*parameters_);
  if (options_.gradient_zeros == RunOptions::LogZeros::kYes)
    record.num_zero_gradients = num_zero_gradients(*parameters_);
  return record;
}

Trainer::Interval Trainer::interval_of(const engine::StepResult& result, double seconds, std::int64_t batch_size) {
  const bool skipped = result.outcome != engine::StepOutcome::kUpdated;
  Interval step;
  step.seconds = seconds;
  step.num_steps = 1;
  step.num_samples = batch_size;
  step.num_skipped = skipped ? 1 : 0;
  step.num_nan = result.outcome == engine::StepOutcome::kSkippedNonFinite ? 1 : 0;
  if (skipped) return step;
  step.loss_sum = result.loss;
  step.mtp_sums = result.mtp_losses;
  return step;
}

void Trainer::count(const engine::StepResult& result, const Interval& step, Progress& progress) const {
  Interval& interval = progress.interval;
  RunSummary& summary = progress.summary;
  if (step.num_skipped == 0) {
    if (summary.num_iterations == summary.num_skipped) summary.first_loss = result.loss;
    summary.last_loss = result.loss;
  } else {
    progress.schedule_samples -= step.num_samples;
  }
  interval.loss_sum += step.loss_sum;
  interval.mtp_sums.resize(std::max(interval.mtp_sums.size(), step.mtp_sums.size()), 0.0);
  for (std::size_t i = 0; i < step.mtp_sums.size(); ++i) interval.mtp_sums[i] += step.mtp_sums[i];
  interval.num_samples += step.num_samples;
  interval.seconds += step.seconds;
  interval.num_steps += 1;
  interval.num_skipped += step.num_skipped;
  interval.num_nan += step.num_nan;
  summary.seconds += step.seconds;
  summary.num_iterations += 1;
  summary.num_skipped += step.num_skipped;
  const bool is_short_run = options_.train_iters <= options_.log_avg_skip_iterations;
  if (is_short_run || summary.num_iterations > options_.log_avg_skip_iterations) {
    progress.measured_seconds += step.seconds;
    progress.measured_samples += step.num_samples;
  }
}

void Trainer::add_energy(IterationRecord& record) {
  const auto joules = meter_ ? meter_->joules() : std::nullopt;
  if (!joules || energy_.num_steps == 0) return;
  record.energy_j = (*joules - energy_.joules) / static_cast<double>(energy_.num_steps);
  record.power_w = (*joules - energy_.joules) / energy_.seconds;
  energy_ = {.joules = *joules};
}

std::optional<EndOfRun> Trainer::end_after(std::int64_t iteration) const {
  if (pending_interrupt() != 0) return EndOfRun::kInterrupted;
  if (iteration == options_.train_iters) return EndOfRun::kAllSteps;
  if (options_.exit_interval && iteration % *options_.exit_interval == 0) return EndOfRun::kExitInterval;
  if (std::ranges::find(options_.phases, iteration) != options_.phases.end()) return EndOfRun::kEndOfPhase;
  if (options_.exit_after_s && seconds_since(began_) > *options_.exit_after_s) return EndOfRun::kExitDuration;
  return std::nullopt;
}

checkpoint::CheckpointContent Trainer::content(std::int64_t iteration, const Progress& progress) const {
  const engine::LossScaler::State scaler = runner_->loss_scaler().state();
  checkpoint::CheckpointContent content{
      .iteration = iteration,
      .consumed_samples = progress.consumed_samples,
      .training = {.schedule_samples = progress.schedule_samples,
                   .optimizer_steps = std::nullopt,
                   .loss_scale = {scaler.scale, scaler.num_good, scaler.hysteresis_left},
                   .generator_seed = std::nullopt,
                   .schedule = to_settings({options_.learning_rate, options_.end_learning_rate, options_.weight_decay}),
                   .log_interval = progress.interval},
      .tensors = {},
      .experiment_json = experiment_json_,
      .experiment_yaml = experiment_yaml_,
      .tokenizer = options_.save.tokenizer};
  if (options_.save.optimizer == OptimizerState::kIncluded) content.training.optimizer_steps = optimizer_->num_steps();
  if (options_.save.generators == Generators::kIncluded) content.training.generator_seed = runner_->seed();
  return content;
}

void Trainer::save_if_due(Reporter& reporter, std::int64_t iteration, const Progress& progress,
                          std::optional<EndOfRun> end) {
  saver_->poll(reporter);
  const bool is_last = end == EndOfRun::kAllSteps;
  const bool at_end = end && !(is_last && options_.save.after_last_step == SaveOptions::AfterLastStep::kDoNot);
  if (saver_->is_on() && (at_end || saver_->is_due(iteration))) {
    saver_->save(state_tensors(*parameters_, *optimizer_, options_.save.optimizer), content(iteration, progress),
                 end ? Saver::When::kNow : Saver::When::kAsConfigured, reporter);
    const bool is_beside = !end && options_.save.writing == SaveOptions::Writing::kBesideTraining;
    if (is_beside || !saver_->failure()) {
      const auto writing = is_beside ? ProgressLog::Writing::kBesideTraining : ProgressLog::Writing::kInStep;
      tell_progress_file(reporter, [&](const ProgressLog& log) {
        log.saved(progress_point(iteration, progress.consumed_samples), writing, std::time(nullptr));
      });
    }
  } else if (!end && short_lived_->is_due(iteration)) {
    short_lived_->save(state_tensors(*parameters_, *optimizer_, options_.save.optimizer), content(iteration, progress),
                       Saver::When::kAsConfigured, reporter);
  }
  short_lived_->poll(reporter);
  if (!end) return;
  saver_->finish(reporter);
  short_lived_->finish(reporter);
}

void Trainer::evaluate_if_due(Reporter& reporter, std::int64_t iteration, Progress& progress,
                              std::optional<EndOfRun>& end) {
  if (held_out_.empty() || end == EndOfRun::kInterrupted || !(is_evaluation_due(iteration) || end)) return;
  const auto loss = evaluate_all(reporter, iteration, progress.consumed_samples);
  if (!loss) {
    end = EndOfRun::kInterrupted;
    return;
  }
  progress.summary.valid_loss = loss;
}

RunSummary Trainer::run_evaluation(Reporter& reporter) {
  RunSummary summary;
  summary.valid_loss = evaluate_all(reporter, start_.position.iteration, start_.position.consumed_samples);
  summary.end = summary.valid_loss ? EndOfRun::kEvaluated : EndOfRun::kInterrupted;
  return summary;
}

bool Trainer::is_passed_over(std::int64_t iteration) const {
  // The list counts from 0, as Megatron's does.
  return std::find(options_.passed_over.begin(), options_.passed_over.end(), iteration - 1) !=
         options_.passed_over.end();
}

void Trainer::report_rerun(Reporter& reporter, const engine::RerunVerdict& verdict, std::int64_t iteration) const {
  const bool is_same = verdict.kind == engine::RerunVerdict::Kind::kSame;
  if (verdict.why.empty() && is_same) return;
  std::string text = fmt::format(" iteration {}: computed again", iteration);
  if (!verdict.why.empty()) text += fmt::format(" because {}", verdict.why);
  text += is_same ? ": the same bits"
                  : fmt::format(": loss differs by {:.3g}, gradient norm by {:.3g} (relative)", verdict.loss_difference,
                                verdict.norm_difference);
  is_same ? reporter.message(text) : reporter.alarm(text);
}

void Trainer::list_rejected(const engine::StepResult& result, std::int64_t iteration, const std::string& why) const {
  if (!rejected_results_ || why.empty()) return;
  RejectedResult rejected{.step = iteration - 1, .device = device_.str(), .result = result.loss, .message = why};
  if (result.rerun) {
    const bool is_same = result.rerun->kind == engine::RerunVerdict::Kind::kSame;
    rejected.rejection = is_same ? Rejection::kSameAgain : Rejection::kDifferentAgain;
  }
  rejected_results_->add(rejected, std::time(nullptr));
}

bool Trainer::is_evaluation_due(std::int64_t iteration) const {
  return options_.eval_interval && iteration % *options_.eval_interval == 0 &&
         iteration >= options_.evaluation.first_iteration;
}

void Trainer::settle(Reporter& reporter, Progress& progress, std::optional<EndOfRun> end) {
  const engine::StepResult result = runner_->collect();
  const Submitted step = submitted_.front();
  submitted_.pop_front();
  const std::int64_t iteration = step.iteration;
  RunSummary& summary = progress.summary;
  if (result.rerun) report_rerun(reporter, *result.rerun, iteration);
  if (result.rerun) list_rejected(result, iteration, result.rerun->why);
  if (result.outcome != engine::StepOutcome::kUpdated) {
    // What falls with the loss scale was nobody's fault; what was computed again is listed.
    const bool is_listed = result.outcome == engine::StepOutcome::kSkippedOverflow || result.rerun;
    list_rejected(result, iteration, is_listed ? "" : result.nonfinite);
    report_nonfinite(reporter, result, iteration);
  }
  if (options_.step.rerun.mode == engine::RerunMode::kDisabled) {
    if (const auto jump = outlier(result.loss, result.grad_norm)) {
      list_rejected(result, iteration, *jump);
      reporter.alarm(fmt::format(" iteration {}: {}", iteration, *jump));
    }
  }
  // A step that was begun behind another one takes the time from that one's end.
  const Interval this_step = interval_of(result, seconds_since(std::max(step.start, settled_)), step.batch_size);
  settled_ = Clock::now();
  count(result, this_step, progress);
  energy_.seconds += this_step.seconds;
  ++energy_.num_steps;
  if (reporter.wants_step(iteration)) reporter.step(record(step, this_step, result));
  if (iteration % options_.log_interval == 0 || end) {
    summary.peak_bytes = std::max(summary.peak_bytes, ops::device_memory(device_).peak_bytes);
    IterationRecord whole = record(step, progress.interval, result);
    add_energy(whole);
    reporter.iteration(whole);
  }
  if (options_.memory_interval && iteration % *options_.memory_interval == 0)
    reporter.message(memory_line(iteration, ops::device_memory(device_)));
  // An end within an interval leaves it open: the run that goes on closes it as if there had been no end.
  if (iteration % options_.log_interval == 0) progress.interval = {};
  const double seconds_per_step = summary.seconds / static_cast<double>(summary.num_iterations);
  reporter.progress(iteration, options_.train_iters, result.loss,
                    static_cast<double>(options_.train_iters - iteration) * seconds_per_step);
}

void Trainer::train(Reporter& reporter, std::int64_t iteration, Progress& progress, std::optional<EndOfRun>& end) {
  Submitted step{.iteration = iteration,
                 .rates = rates(progress.schedule_samples),
                 .batch_size = options_.batch_sizes.at(progress.consumed_samples),
                 .start = Clock::now()};
  const auto alarm = [&](const std::string& message) { reporter.alarm(message); };
  nn::Observer* observer = observers_->begin(iteration - 1, alarm);
  external_profile_.begin_step(iteration - 1);
  profiler_.begin_step(iteration - 1);
  submit(iteration, progress.consumed_samples, step.rates, observer);
  step.host_seconds = seconds_since(step.start);
  write_trace(reporter, "trace", [&] { return profiler_.end_step(); });
  external_profile_.end_step(iteration - 1);
  if (observer != nullptr) observers_->finish(alarm);
  progress.consumed_samples += step.batch_size;
  progress.schedule_samples += step.batch_size;
  step.consumed_samples = progress.consumed_samples;
  submitted_.push_back(step);
  const bool is_later = device_.is_cuda() && options_.read_back == RunOptions::ReadBack::kOneStepLater;
  // Who evaluates or saves must know the steps before.
  const bool is_boundary = is_evaluation_due(iteration) || saver_->is_due(iteration) || short_lived_->is_due(iteration);
  if (is_later && submitted_.size() > 1) settle(reporter, progress, std::nullopt);
  end = end_after(iteration);
  if (!is_later || is_boundary || end) settle(reporter, progress, end);
}

RunSummary Trainer::run(Reporter& reporter) {
  if (options_.kind == RunKind::kEvaluation) return run_evaluation(reporter);
  open_meter(reporter);
  if (options_.rejected_results) rejected_results_ = std::make_unique<RejectedResults>(*options_.rejected_results);
  open_progress_file(reporter);
  Progress progress;
  progress.interval = start_.position.log_interval;
  progress.consumed_samples = start_.position.consumed_samples;
  progress.schedule_samples = start_.position.schedule_samples;
  RunSummary& summary = progress.summary;
  std::optional<EndOfRun> end;
  for (std::int64_t iteration = start_.position.iteration + 1; !end && iteration <= options_.train_iters; ++iteration) {
    if (is_passed_over(iteration)) {
      while (!submitted_.empty()) settle(reporter, progress, std::nullopt);
      progress.consumed_samples += options_.batch_sizes.at(progress.consumed_samples);
      reporter.message(fmt::format(" iteration {}: its data is passed over (iterations_to_skip)", iteration));
      end = end_after(iteration);
    } else {
      train(reporter, iteration, progress, end);
    }
    evaluate_if_due(reporter, iteration, progress, end);
    save_if_due(reporter, iteration, progress, end);
  }
  write_trace(reporter, "trace", [&] { return profiler_.finish(); });
  write_trace(reporter, "memory snapshot", [&] { return external_profile_.finish(); });
  summary.end = end.value_or(EndOfRun::kAllSteps);
  summary.failed_save = saver_->failure();
  if (progress.measured_samples > 0) {
    summary.tokens_per_s =
        static_cast<double>(progress.measured_samples * options_.seq_length) / progress.measured_seconds;
  }
  return summary;
}

}  // namespace primus::train
