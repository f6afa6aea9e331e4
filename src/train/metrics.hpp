#pragma once
// One record an iteration, made once; the console line, the JSON line and the averages are views of it.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/step_runner.hpp"

namespace primus::train {

struct IterationRecord {
  std::int64_t iteration = 0;
  std::int64_t train_iters = 0;
  std::int64_t consumed_samples = 0;
  double elapsed_ms = 0.0;        // mean over the log interval
  std::optional<double> host_ms;  // a GPU's: until it had been given all of the last step's work
  double tokens_per_s = 0.0;
  double tflops = 0.0;             // model FLOPs, causal attention counted half
  std::optional<double> energy_j;  // log_energy: of a step, mean since the last record
  std::optional<double> power_w;
  double learning_rate = 0.0;
  std::int64_t global_batch_size = 0;
  double lm_loss = 0.0;            // mean over the log interval
  std::vector<double> mtp_losses;  // alike, of each prediction depth
  std::optional<double> load_balancing_loss;
  std::optional<double> z_loss;
  std::optional<double> indexer_loss;   // of the last step
  std::optional<double> largest_logit;  // log_max_attention_logit: of the last step
  double loss_scale = 1.0;
  double grad_norm = 0.0;
  std::optional<double> params_norm;               // log_params_norm
  std::optional<std::int64_t> num_zero_gradients;  // log_num_zeros_in_grad
  std::int64_t num_skipped = 0;                    // in the log interval
  std::int64_t num_nan = 0;
  std::int64_t held_bytes = 0;  // peak since the last record
  std::int64_t reserved_bytes = 0;
  std::vector<engine::ExpertLoad> expert_loads;
};

struct EvaluationRecord {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  std::string split;
  double loss = 0.0;
  std::int64_t num_tokens = 0;
  double elapsed_ms = 0.0;
};

/// Megatron's iteration line, without time stamp.
std::string console_line(const IterationRecord& record);
/// One line a layer; empty without MoE layers.
std::string expert_lines(const IterationRecord& record);
std::string json_line(const IterationRecord& record);
std::string json_line(const EvaluationRecord& record);

/// Its figures under Megatron's and Primus's names, for programs that keep numbers by name.
std::vector<std::pair<std::string, double>> named_values(const IterationRecord& record);
/// Of these, how fast it went.
std::vector<std::pair<std::string, double>> named_speeds(const IterationRecord& record);

/// Choices beyond their expert's capacity over all of them; nothing where no expert has one.
std::optional<double> dropped_share(const engine::ExpertLoad& load);

/// Highest max/mean and lowest entropy over the layers; all dead experts, all choices and those that were dropped.
engine::ExpertLoad worst_load(const std::vector<engine::ExpertLoad>& loads);

}  // namespace primus::train
