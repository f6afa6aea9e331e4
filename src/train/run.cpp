#include "train/run.hpp"

#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>

#include "base/files.hpp"
#include "base/text.hpp"
#include "data/tokenizer.hpp"
#include "model/flops.hpp"
#include "ops/allocator.hpp"
#include "ops/zone.hpp"
#include "train/near_cores.hpp"

namespace primus::train {
namespace {

std::string_view text_of(EndOfRun end) {
  switch (end) {
    case EndOfRun::kAllSteps:
      return "all iterations done";
    case EndOfRun::kExitInterval:
      return "stopped at exit_interval";
    case EndOfRun::kExitDuration:
      return "stopped at exit_duration_in_mins";
    case EndOfRun::kEndOfPhase:
      return "stopped at the end of a phase (phase_transition_iterations): the next one needs its data and a new start";
    case EndOfRun::kEvaluated:
      return "evaluated, and trained nothing (skip_train)";
    case EndOfRun::kInterrupted:
      return "stopped by a signal after a whole step";
  }
  return "?";
}

std::string opening(const config::Experiment& experiment, const model::ModelSpec& spec, at::Device device) {
  const model::ParameterCount count = model::count_parameters(spec);
  const std::int64_t flops = model::flops_per_token(spec).training() + model::mtp_training_flops_per_token(spec);
  std::string depths;
  if (spec.num_mtp_layers > 0) {
    depths = fmt::format(" and {} in prediction depths",
                         format_count(spec.num_mtp_parameter_sets() * model::count_mtp_parameters(spec)));
  }
  return fmt::format("{}: {} parameters ({} active){}, {} layers ({} MoE), {:.4g} MFLOP a token in training, {}",
                     experiment.exp_name, format_count(count.total), format_count(count.active), depths,
                     spec.num_layers(), spec.num_moe_layers(), static_cast<double>(flops) * 1e-6,
                     device.is_cuda() ? "one GPU" : fmt::format("{} threads", at::get_num_threads()));
}

std::string memory_lines(at::Device device) {
  if (device.is_cuda()) {
    const ops::DeviceMemory memory = ops::device_memory(device);
    return fmt::format("peak {}, reserved {}", format_bytes(memory.peak_bytes), format_bytes(memory.reserved_bytes));
  }
  const ops::MemoryReport report = ops::memory_report();
  std::string text;
  for (const ops::MemoryTag tag :
       {ops::MemoryTag::kParameters, ops::MemoryTag::kMainGradients, ops::MemoryTag::kOptimizer}) {
    text += fmt::format("{} {}, ", ops::name(tag), format_bytes(report.held(tag)));
  }
  return text + fmt::format("peak {}", format_bytes(report.peak_bytes));
}

/// What counting models reach on the held-out text, where training and held-out data are one file each.
std::optional<data::NgramBaseline> baseline(const data::DataOptions& data) {
  if (data.mock_data || data.train_data_path.size() != 1 || data.valid_data_path.size() != 1) return std::nullopt;
  // Bigram counts are a square of the vocabulary: meant for byte-sized ones.
  constexpr std::int64_t kLargestVocabulary = 1024;
  if (data.vocab_size > kLargestVocabulary) return std::nullopt;
  try {
    return data::ngram_baseline(data.train_data_path[0], data.valid_data_path[0], data.vocab_size);
  } catch (const UserError&) {
    return std::nullopt;  // a yardstick only: the run itself is done
  }
}

/// Where the steps' time went, the largest share first. "zone" leads each line so that a script can find them.
std::string zone_table(double seconds) {
  const auto times = ops::zone_times();
  std::vector<int> order(ops::kNumZones);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return times[static_cast<std::size_t>(a)].seconds > times[static_cast<std::size_t>(b)].seconds;
  });
  std::string table = "  time by op, evaluation included:";
  double accounted = 0.0;
  for (const int zone : order) {
    if (times[zone].num_calls == 0) continue;
    accounted += times[zone].seconds;
    table += fmt::format("\n    zone {:20} {:9.3f} s {:5.1f} % {:8} calls", ops::name(static_cast<ops::Zone>(zone)),
                         times[zone].seconds, 100.0 * times[zone].seconds / seconds, times[zone].num_calls);
  }
  return table + fmt::format("\n    zone {:20} {:9.3f} s {:5.1f} %", "(outside ops)", seconds - accounted,
                             100.0 * (seconds - accounted) / seconds);
}

void print_summary(Reporter& reporter, const RunSummary& summary, const data::DataOptions& data, at::Device device) {
  reporter.message("");
  reporter.message(fmt::format("summary: {} ({} iterations in {}, {} skipped)", text_of(summary.end),
                               summary.num_iterations, format_duration(summary.seconds), summary.num_skipped));
  if (summary.num_iterations > 0)
    reporter.message(fmt::format("  training loss {:.4f} -> {:.4f}, {:.0f} tokens/s/device", summary.first_loss,
                                 summary.last_loss, summary.tokens_per_s));
  if (summary.valid_loss) reporter.message(fmt::format("  validation loss {:.4f}", *summary.valid_loss));
  if (summary.valid_loss && summary.end == EndOfRun::kAllSteps) {
    if (const auto counts = baseline(data)) reporter.baseline(*counts);
  }
  reporter.message("  memory: " + memory_lines(device));
}

/// PRIMUS_LOG_LEVEL=DEBUG, which primus-cli's --debug sets.
bool wants_detail() {
  const char* level = std::getenv("PRIMUS_LOG_LEVEL");
  return level != nullptr && std::string_view(level) == "DEBUG";
}

std::string detail(const config::Experiment& experiment, const Trainer& trainer, at::Device device) {
  std::string text = fmt::format("debug: libtorch {}, {}; {} settings", TORCH_VERSION, at::get_cpu_capability(),
                                 experiment.settings().size());
  for (const data::Split split : {data::Split::kTrain, data::Split::kValid, data::Split::kTest}) {
    text += fmt::format("\ndebug: {} samples: {}", data::to_text(split), format_count(trainer.num_samples(split)));
  }
  for (const auto& [name, value] : experiment.env) text += fmt::format("\ndebug: {}={}", name, value);
  return text + "\ndebug: " + memory_lines(device);
}

/// An error ends the program with its message on the console; the run's log shall hold it too.
RunSummary logged(Reporter& reporter, const std::function<RunSummary()>& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    reporter.log(fmt::format("error: {}", error.what()));
    throw;
  }
}

/// As the launcher wrote it for people, else as the worker reads it.
std::string experiment_text(const config::Experiment& experiment, const std::string& run_folder) {
  const std::filesystem::path yaml = std::filesystem::path(run_folder) / checkpoint::kExperimentYaml;
  return std::filesystem::exists(yaml) ? read_file(yaml) : experiment.to_json();
}

}  // namespace

RunSummary run_experiment(const std::string& experiment_path, ops::DeviceChoice choice) {
  ops::install_allocator();
  const config::Experiment experiment = config::Experiment::from_json(read_file(experiment_path));
  const RunOptions options = run_options(experiment);
  std::string why_cpu;
  const at::Device device = ops::select_device(choice, why_cpu);
  const std::string binding = bind_if_asked(device);
  ops::set_determinism(device, options.determinism);
  ops::set_kernel_families(device, options.kernels);
  Trainer trainer(experiment, device);
  const bool is_continued = trainer.start().own_run == Start::OwnRun::kContinued;
  Reporter reporter(options.run_folder, options.per_layer_log, is_continued ? trainer.first_iteration() : 0);
  const Position& done = trainer.start().position;
  reporter.open_tensorboard(options.tensorboard, experiment_text(experiment, options.run_folder),
                            {is_continued ? done.iteration : 0, done.consumed_samples});
  reporter.open_mlflow(experiment, is_continued ? done.iteration : 0);
  if (!binding.empty()) reporter.message(binding);
  if (!why_cpu.empty()) reporter.message(fmt::format("note: training on the CPU: {}", why_cpu));
  // Only with the timers on: they are there to see, not to be fast.
  void (*wait)() = nullptr;
  if (device.is_cuda()) wait = [] { ops::synchronize(at::kCUDA); };
  ops::set_zone_timers(options.zone_timers, wait);
  reporter.message(opening(experiment, trainer.spec(), device));
  if (!trainer.start().message.empty()) reporter.message(trainer.start().message);
  if (wants_detail()) reporter.message(detail(experiment, trainer, device));
  if (options.kind == RunKind::kTraining && trainer.first_iteration() >= options.train_iters) {
    reporter.message(
        fmt::format("nothing to do: iteration {} of {} is done. A larger train_iters goes on, auto_continue_train: "
                    "false or another "
                    "exp_name starts anew",
                    trainer.first_iteration(), options.train_iters));
    reporter.close_mlflow(MlflowRun::Status::kFinished);
    return {};
  }
  const RunSummary summary = logged(reporter, [&] { return trainer.run(reporter); });
  if (options.zone_timers == ops::ZoneTimers::kOn) reporter.message(zone_table(summary.seconds));
  print_summary(reporter, summary, options.data, device);
  reporter.close_mlflow(summary.end == EndOfRun::kInterrupted ? MlflowRun::Status::kKilled
                                                              : MlflowRun::Status::kFinished);
  return summary;
}

}  // namespace primus::train
