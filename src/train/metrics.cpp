#include "train/metrics.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.hpp"

namespace primus::train {
namespace {

/// JSON knows no NaN: what is not finite becomes null, so that every line stays readable.
nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

std::string load_text(const engine::ExpertLoad& load) {
  std::string text = fmt::format("expert load max/mean: {:.2f} | expert load entropy: {:.3f} | dead experts: {} |",
                                 load.max_over_mean, load.entropy, load.num_dead_experts);
  if (const auto share = dropped_share(load)) text += fmt::format(" dropped choices: {:.2f} % |", 100.0 * *share);
  return text;
}

}  // namespace

std::optional<double> dropped_share(const engine::ExpertLoad& load) {
  if (!load.num_dropped) return std::nullopt;
  return static_cast<double>(*load.num_dropped) / static_cast<double>(std::max<std::int64_t>(load.num_choices(), 1));
}

engine::ExpertLoad worst_load(const std::vector<engine::ExpertLoad>& loads) {
  engine::ExpertLoad worst;
  for (const engine::ExpertLoad& load : loads) {
    if (load.max_over_mean > worst.max_over_mean) {
      worst.layer = load.layer;
      worst.max_over_mean = load.max_over_mean;
    }
    worst.num_dead_experts += load.num_dead_experts;
    worst.entropy = std::min(worst.entropy, load.entropy);
    worst.num_tokens.push_back(load.num_choices());
    if (load.num_dropped) worst.num_dropped = worst.num_dropped.value_or(0) + *load.num_dropped;
  }
  return worst;
}

std::string console_line(const IterationRecord& record) {
  std::string line = fmt::format(
      " iteration {:8d}/{:8d} | consumed samples: {:12d} | elapsed time per iteration (ms): {:.1f} |"
      " throughput per GPU (TFLOP/s/GPU): {:.4f} | tokens/s/GPU: {:.1f} |",
      record.iteration, record.train_iters, record.consumed_samples, record.elapsed_ms, record.tflops,
      record.tokens_per_s);
  if (record.energy_j && record.power_w)
    line += fmt::format(" energy per GPU (J/iter/GPU): {:.1f} | power per GPU (W/GPU): {:.1f} |", *record.energy_j,
                        *record.power_w);
  line += fmt::format(" learning rate: {:.6E} | global batch size: {:5d} | lm loss: {:.6E} |", record.learning_rate,
                      record.global_batch_size, record.lm_loss);
  for (std::size_t depth = 0; depth < record.mtp_losses.size(); ++depth) {
    line += fmt::format(" mtp_{} loss: {:.6E} |", depth + 1, record.mtp_losses[depth]);
  }
  if (record.load_balancing_loss) line += fmt::format(" load_balancing_loss: {:.6E} |", *record.load_balancing_loss);
  if (record.z_loss) line += fmt::format(" z_loss: {:.6E} |", *record.z_loss);
  if (record.indexer_loss) line += fmt::format(" indexer loss: {:.6E} |", *record.indexer_loss);
  line += fmt::format(" loss scale: {:.1f} | grad norm: {:.3f} |", record.loss_scale, record.grad_norm);
  if (record.num_zero_gradients) line += fmt::format(" num zeros: {} |", *record.num_zero_gradients);
  if (record.params_norm) line += fmt::format(" params norm: {:.3f} |", *record.params_norm);
  if (record.largest_logit) line += fmt::format(" max attention logit: {:.3f} |", *record.largest_logit);
  if (!record.expert_loads.empty()) {
    const engine::ExpertLoad worst = worst_load(record.expert_loads);
    line += fmt::format(" {}", load_text(worst));
  }
  line += fmt::format(" number of skipped iterations: {:3d} | number of nan iterations: {:3d} | memory: {} |",
                      record.num_skipped, record.num_nan, format_bytes(record.held_bytes));
  return line;
}

std::string expert_lines(const IterationRecord& record) {
  std::string lines;
  for (const engine::ExpertLoad& load : record.expert_loads) {
    lines += fmt::format("   layer {:3d} | {}\n", load.layer, load_text(load));
  }
  return lines;
}

std::string json_line(const IterationRecord& record) {
  nlohmann::ordered_json json;
  json["iteration"] = record.iteration;
  json["consumed_samples"] = record.consumed_samples;
  json["elapsed_ms"] = number(record.elapsed_ms);
  if (record.host_ms) json["host_ms"] = number(*record.host_ms);
  json["tokens_per_s_per_device"] = number(record.tokens_per_s);
  json["tflops_per_device"] = number(record.tflops);
  if (record.energy_j) json["energy_j_per_step"] = number(*record.energy_j);
  if (record.power_w) json["power_w"] = number(*record.power_w);
  json["learning_rate"] = number(record.learning_rate);
  json["global_batch_size"] = record.global_batch_size;
  json["lm_loss"] = number(record.lm_loss);
  for (std::size_t depth = 0; depth < record.mtp_losses.size(); ++depth) {
    json[fmt::format("mtp_{}_loss", depth + 1)] = number(record.mtp_losses[depth]);
  }
  if (record.load_balancing_loss) json["load_balancing_loss"] = number(*record.load_balancing_loss);
  if (record.z_loss) json["z_loss"] = number(*record.z_loss);
  if (record.indexer_loss) json["indexer_loss"] = number(*record.indexer_loss);
  json["loss_scale"] = number(record.loss_scale);
  json["grad_norm"] = number(record.grad_norm);
  if (record.num_zero_gradients) json["num_zero_gradients"] = *record.num_zero_gradients;
  if (record.params_norm) json["params_norm"] = number(*record.params_norm);
  if (record.largest_logit) json["max_attention_logit"] = number(*record.largest_logit);
  json["skipped_iterations"] = record.num_skipped;
  json["nan_iterations"] = record.num_nan;
  json["memory_peak_bytes"] = record.held_bytes;
  json["memory_reserved_bytes"] = record.reserved_bytes;
  if (!record.expert_loads.empty()) {
    nlohmann::ordered_json loads = nlohmann::ordered_json::array();
    for (const engine::ExpertLoad& load : record.expert_loads) {
      loads.push_back({{"layer", load.layer},
                       {"max_over_mean", number(load.max_over_mean)},
                       {"entropy", number(load.entropy)},
                       {"dead_experts", load.num_dead_experts}});
      if (const auto share = dropped_share(load)) loads.back()["dropped_share"] = number(*share);
    }
    json["expert_load"] = std::move(loads);
  }
  return json.dump();
}

std::vector<std::pair<std::string, double>> named_values(const IterationRecord& record) {
  std::vector<std::pair<std::string, double>> values = {{"learning-rate", record.learning_rate},
                                                        {"batch-size", static_cast<double>(record.global_batch_size)},
                                                        {"lm loss", record.lm_loss},
                                                        {"loss-scale", record.loss_scale},
                                                        {"grad-norm", record.grad_norm}};
  for (std::size_t depth = 0; depth < record.mtp_losses.size(); ++depth)
    values.emplace_back(fmt::format("mtp_{} loss", depth + 1), record.mtp_losses[depth]);
  const auto add = [&values](const char* name, std::optional<double> value) {
    if (value) values.emplace_back(name, *value);
  };
  add("load_balancing_loss", record.load_balancing_loss);
  add("z_loss", record.z_loss);
  add("indexer loss", record.indexer_loss);
  add("params-norm", record.params_norm);
  add("max-attention-logit", record.largest_logit);
  add("energy per GPU (J/iter/GPU)", record.energy_j);
  add("power per GPU (W/GPU)", record.power_w);
  if (record.num_zero_gradients) add("num-zeros", static_cast<double>(*record.num_zero_gradients));
  values.emplace_back("mem-max-allocated-bytes", static_cast<double>(record.held_bytes));
  values.emplace_back("mem-reserved-bytes", static_cast<double>(record.reserved_bytes));
  if (record.expert_loads.empty()) return values;
  const engine::ExpertLoad worst = worst_load(record.expert_loads);
  values.emplace_back("moe/expert load max over mean", worst.max_over_mean);
  values.emplace_back("moe/expert load entropy", worst.entropy);
  values.emplace_back("moe/dead experts", static_cast<double>(worst.num_dead_experts));
  add("moe/dropped share", dropped_share(worst));
  return values;
}

std::vector<std::pair<std::string, double>> named_speeds(const IterationRecord& record) {
  return {{"perf/throughput_tflops_per_gpu", record.tflops},
          {"perf/tps_tokens_per_sec_per_gpu", record.tokens_per_s},
          {"perf/iteration_time_ms", record.elapsed_ms}};
}

std::string json_line(const EvaluationRecord& record) {
  nlohmann::ordered_json json;
  json["iteration"] = record.iteration;
  json["consumed_samples"] = record.consumed_samples;
  json["eval_split"] = record.split;
  json["eval_loss"] = number(record.loss);
  json["eval_tokens"] = record.num_tokens;
  json["elapsed_ms"] = number(record.elapsed_ms);
  return json.dump();
}

}  // namespace primus::train
