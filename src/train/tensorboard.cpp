#include "train/tensorboard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace primus::train {
namespace {

using Series = TensorBoardOptions::Series;

/// The values of one step, each over steps and, as Megatron does, some over samples.
class Values {
 public:
  explicit Values(const IterationRecord& record) : record_(record) {}

  void add(const std::string& tag, double value) { over_steps_.push_back(scalar_value(tag, value)); }
  void add_both(const std::string& tag, double value) {
    add(tag, value);
    over_samples_.push_back(scalar_value(tag + kVersusSamples, value));
  }
  void add_both(Series wanted, const std::string& tag, double value) {
    if (wanted == Series::kYes) add_both(tag, value);
  }
  void add_encoded(std::string value) { over_steps_.push_back(std::move(value)); }

  void write(EventFile& file) const {
    file.add(record_.iteration, over_steps_);
    if (!over_samples_.empty()) file.add(record_.consumed_samples, over_samples_);
  }

 private:
  const IterationRecord& record_;
  std::vector<std::string> over_steps_;
  std::vector<std::string> over_samples_;
};

void add_experts(const IterationRecord& record, Series per_layer, Values& values) {
  if (record.expert_loads.empty()) return;
  const engine::ExpertLoad worst = worst_load(record.expert_loads);
  values.add("moe/expert load max over mean", worst.max_over_mean);
  values.add("moe/dead experts", static_cast<double>(worst.num_dead_experts));
  for (const engine::ExpertLoad& load : record.expert_loads) {
    values.add_encoded(bar_value(fmt::format("moe/tokens by expert, layer {}", load.layer), load.num_tokens));
    if (per_layer == Series::kNo) continue;
    values.add(fmt::format("moe/expert load max over mean, layer {}", load.layer), load.max_over_mean);
    values.add(fmt::format("moe/dead experts, layer {}", load.layer), static_cast<double>(load.num_dead_experts));
  }
}

std::string as_markdown(const std::string& text) {
  // Four spaces: TensorBoard shows the lines as they are.
  std::string lines = "    ";
  for (const char c : text) lines += c == '\n' ? std::string("\n    ") : std::string(1, c);
  return lines;
}

/// Another folder than the run's own may hold other runs: nothing is taken out there.
const std::string& prepared_folder(const TensorBoardOptions& options, const RunPosition& position) {
  const bool is_own = options.owner == TensorBoardOptions::Owner::kRun;
  if (is_own && position.iteration > 0) cut_event_files(options.folder, position.iteration, position.consumed_samples);
  return options.folder;
}

}  // namespace

std::string tensorboard_folder(const config::Experiment& experiment) {
  return experiment.get_optional_string("tensorboard_dir")
      .value_or((std::filesystem::path(experiment.run_folder()) / "tensorboard").string());
}

TensorBoardOptions tensorboard_options(const config::Experiment& experiment) {
  TensorBoardOptions options;
  if (experiment.get_bool("disable_tensorboard")) return options;
  options.folder = tensorboard_folder(experiment);
  if (!experiment.is_null("tensorboard_dir")) options.owner = TensorBoardOptions::Owner::kOthers;
  options.interval = experiment.get_int("tensorboard_log_interval");
  options.queue_size = experiment.get_int("tensorboard_queue_size");
  const auto series = [&](const char* key) { return experiment.get_bool(key) ? Series::kYes : Series::kNo; };
  options.iteration_time = series("log_timers_to_tensorboard");
  options.batch_size = series("log_batch_size_to_tensorboard");
  options.learning_rate = series("log_learning_rate_to_tensorboard");
  options.perplexity = series("log_validation_ppl_to_tensorboard");
  options.memory = series("log_memory_to_tensorboard");
  options.world_size = series("log_world_size_to_tensorboard");
  options.loss_scale = series("log_loss_scale_to_tensorboard");
  options.per_layer = series("moe_per_layer_logging");
  return options;
}

TensorBoard::TensorBoard(const TensorBoardOptions& options, const std::string& experiment_text,
                         const RunPosition& position)
    : options_(options), file_(prepared_folder(options, position), options.queue_size) {
  file_.add(position.iteration, {text_value("experiment", as_markdown(experiment_text))});
  file_.flush();
}

void TensorBoard::step(const IterationRecord& record) {
  Values values(record);
  values.add_both(options_.learning_rate, "learning-rate", record.learning_rate);
  values.add_both(options_.batch_size, "batch-size", static_cast<double>(record.global_batch_size));
  values.add_both("lm loss", record.lm_loss);
  for (std::size_t depth = 0; depth < record.mtp_losses.size(); ++depth)
    values.add_both(fmt::format("mtp_{} loss", depth + 1), record.mtp_losses[depth]);
  if (record.load_balancing_loss) values.add("load_balancing_loss", *record.load_balancing_loss);
  if (record.z_loss) values.add("z_loss", *record.z_loss);
  if (record.indexer_loss) values.add("indexer loss", *record.indexer_loss);
  values.add_both(options_.loss_scale, "loss-scale", record.loss_scale);
  values.add_both(options_.world_size, "world-size", 1.0);
  values.add_both("grad-norm", record.grad_norm);
  if (record.num_zero_gradients) values.add_both("num-zeros", static_cast<double>(*record.num_zero_gradients));
  if (record.params_norm) values.add_both("params-norm", *record.params_norm);
  if (record.largest_logit) values.add_both("max-attention-logit", *record.largest_logit);
  if (options_.memory == Series::kYes) {
    values.add("mem-reserved-bytes", static_cast<double>(record.reserved_bytes));
    values.add("mem-max-allocated-bytes", static_cast<double>(record.held_bytes));
  }
  values.add_both(options_.iteration_time, "iteration-time", record.elapsed_ms * 1e-3);
  for (const auto& [name, value] : named_speeds(record)) values.add(name, value);
  add_experts(record, options_.per_layer, values);
  values.write(file_);
}

void TensorBoard::evaluation(const EvaluationRecord& record) {
  const std::string tag = "lm loss " + record.split;
  std::vector<std::string> over_steps = {scalar_value(tag, record.loss)};
  std::vector<std::string> over_samples = {scalar_value(tag + kVersusSamples, record.loss)};
  if (options_.perplexity == Series::kYes) {
    // Megatron's bound: beyond it nobody reads the number.
    const double perplexity = std::exp(std::min(record.loss, 20.0));
    over_steps.push_back(scalar_value(tag + " ppl", perplexity));
    over_samples.push_back(scalar_value(tag + " ppl" + kVersusSamples, perplexity));
  }
  file_.add(record.iteration, over_steps);
  file_.add(record.consumed_samples, over_samples);
}

}  // namespace primus::train
