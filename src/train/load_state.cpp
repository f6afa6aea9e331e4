#include "train/load_state.hpp"

#include <map>

#include "checkpoint/refuse.hpp"
#include "train/schedule_settings.hpp"

namespace primus::train {
namespace {

using checkpoint::CheckpointIndex;
using checkpoint::CheckpointReader;
using checkpoint::GlobalTensor;

bool is_on(const config::Experiment& experiment, std::string_view key) {
  return !experiment.is_null(key) && experiment.get_bool(key);
}

/// The first ones, and how many more.
void throw_if_any(std::vector<Problem> problems, const std::string& file) {
  constexpr std::size_t kMostShown = 20;
  if (problems.empty()) return;
  if (problems.size() > kMostShown) {
    const std::size_t num_more = problems.size() - kMostShown;
    problems.resize(kMostShown);
    problems.push_back({.file = file, .message = fmt::format("{} more differences", num_more)});
  }
  throw ConfigError(std::move(problems));
}

std::vector<NamedTensor> optimizer_tensors(const RunState& run) {
  std::vector<NamedTensor> tensors = state_tensors(run.parameters, run.optimizer, OptimizerState::kIncluded);
  std::erase_if(tensors, [](const NamedTensor& tensor) { return tensor.kind == checkpoint::kWeight; });
  return tensors;
}

std::string type_and_shape(const checkpoint::ElementType& type, const std::vector<std::int64_t>& shape) {
  return fmt::format("{} {}", type.name, checkpoint::shape_text(shape));
}

using StoredState = std::map<std::pair<std::string, std::string>, const GlobalTensor*>;  // by kind and parameter

StoredState stored_state(const CheckpointIndex& index) {
  StoredState stored;
  for (const GlobalTensor& tensor : index.tensors) {
    if (tensor.kind != checkpoint::kWeight) stored[{tensor.kind, tensor.name}] = &tensor;
  }
  return stored;
}

void check_optimizer(const CheckpointReader& reader, const RunState& run) {
  const std::string file = reader.folder().string();
  if (!reader.index().training->optimizer_steps) {
    checkpoint::refuse({.file = file,
                        .key = "no_load_optim",
                        .message = "the checkpoint was saved without the optimizer's state (no_save_optim)",
                        .expected = "no_load_optim: true, or finetune: true"});
  }
  StoredState stored = stored_state(reader.index());
  std::vector<Problem> problems;
  const auto add = [&](const std::string& kind, const std::string& name, std::string message, std::string expected,
                       std::string found) {
    problems.push_back(checkpoint::problem_of(
        {file, fmt::format("{} of {}", kind, name), std::move(message), std::move(expected), std::move(found)}));
  };
  for (const NamedTensor& wanted : optimizer_tensors(run)) {
    const std::string expected = type_and_shape(element_type_of(wanted.type()), wanted.values.sizes().vec());
    const auto found = stored.find({wanted.kind, wanted.name});
    if (found == stored.end()) {
      add(wanted.kind, wanted.name, "is missing: this run's optimizer needs it", expected, "");
      continue;
    }
    const std::string there = type_and_shape(*found->second->type, found->second->shape);
    if (there != expected) add(wanted.kind, wanted.name, "is held differently in this run", expected, there);
    stored.erase(found);
  }
  for (const auto& [key, tensor] : stored) {
    add(key.first, key.second, "has no place in this run's optimizer", "",
        type_and_shape(*tensor->type, tensor->shape));
  }
  throw_if_any(std::move(problems), file);
}

Schedules schedules_of(const RunOptions& options) {
  return {options.learning_rate, options.end_learning_rate, options.weight_decay};
}

/// Megatron: the two must agree unless one of them was declared to win.
void check_schedule(const CheckpointReader& reader, const config::Experiment& experiment, const RunState& run) {
  if (is_on(experiment, "override_opt_param_scheduler") || is_on(experiment, "use_checkpoint_opt_param_scheduler"))
    return;
  const ScheduleSettings ours = to_settings(schedules_of(run.options));
  ScheduleSettings all = reader.index().training->schedule;
  all.insert(ours.begin(), ours.end());
  std::vector<Problem> problems;
  const auto text = [](const ScheduleSettings& settings, const std::string& key) {
    const auto found = settings.find(key);
    return found == settings.end() ? std::string("none") : found->second;
  };
  for (const auto& [key, unused] : all) {
    const std::string here = text(ours, key);
    const std::string there = text(reader.index().training->schedule, key);
    if (here == there) continue;
    problems.push_back(checkpoint::problem_of(
        {.file = reader.folder().string(),
         .key = key,
         .message = "the schedule of the checkpoint is another one than this run's",
         .expected = here,
         .found = there,
         .nearest = "override_opt_param_scheduler: true takes this run's, use_checkpoint_opt_param_scheduler: true the "
                    "checkpoint's"}));
  }
  throw_if_any(std::move(problems), reader.folder().string());
}

void check_generators(const CheckpointReader& reader) {
  if (reader.index().training->generator_seed) return;
  checkpoint::refuse({.file = reader.folder().string(),
                      .key = "no_load_rng",
                      .message = "the checkpoint was saved without its random state (no_save_rng)",
                      .expected = "no_load_rng: true, or finetune: true"});
}

}  // namespace

void check_state(const CheckpointReader& reader, const Wanted& wanted, const config::Experiment& experiment,
                 const RunState& run) {
  if (wanted.generators == Generators::kIncluded) check_generators(reader);
  if (wanted.optimizer == OptimizerState::kLeftOut) return;
  check_optimizer(reader, run);
  check_schedule(reader, experiment, run);
}

void load_state(const CheckpointReader& reader, const Wanted& wanted, const config::Experiment& experiment,
                const RunState& run) {
  const checkpoint::TrainingState& training = *reader.index().training;
  if (wanted.generators == Generators::kIncluded) run.runner.set_seed(*training.generator_seed);
  if (wanted.optimizer == OptimizerState::kLeftOut) return;
  const StoredState stored = stored_state(reader.index());
  for (NamedTensor& tensor : optimizer_tensors(run)) {
    const bool is_direct = tensor.values.is_cpu() && !tensor.low_bits.defined();
    at::Tensor host = is_direct ? tensor.values : at::empty(tensor.values.sizes(), tensor.type());
    reader.read(*stored.at({tensor.kind, tensor.name}),
                {static_cast<std::byte*>(host.mutable_data_ptr()), static_cast<std::size_t>(host.nbytes())});
    if (!is_direct) tensor.set(host);
  }
  run.optimizer.set_num_steps(*training.optimizer_steps);
  run.runner.loss_scaler().restore(
      {training.loss_scale.scale, training.loss_scale.num_good, training.loss_scale.hysteresis_left});
  if (!is_on(experiment, "use_checkpoint_opt_param_scheduler")) return;
  const Schedules schedules = schedules_from(training.schedule);
  run.options.learning_rate = schedules.learning_rate;
  run.options.end_learning_rate = schedules.end_learning_rate;
  run.options.weight_decay = schedules.weight_decay;
}

Position position_of(const CheckpointReader& reader, const Wanted& wanted, const config::Experiment& experiment) {
  Position position;
  if (wanted.position == Wanted::Position::kNew) return position;
  position.iteration = experiment.get_optional_int("override_ckpt_iteration").value_or(reader.index().iteration);
  position.consumed_samples = reader.index().consumed_samples;
  position.log_interval = reader.index().training->log_interval;
  // Megatron's scheduler is loaded with the optimizer, and begins anew without it.
  if (wanted.optimizer == OptimizerState::kIncluded)
    position.schedule_samples = reader.index().training->schedule_samples;
  return position;
}

void load_masters_from_weights(const std::string& folder, const RunState& run) {
  const checkpoint::StoredModel stored = checkpoint::open_model(folder);
  for (const engine::StateTensor& state : run.optimizer.state_tensors()) {
    const NamedTensor master{state.parameter, checkpoint::kMaster, state.tensor, state.low_bits};
    const bool is_plain = master.type() == at::kFloat || master.type() == at::kDouble;
    if (state.part != engine::StateTensor::Part::kMaster || !is_plain) continue;
    const auto index = stored.weights->find(state.parameter);
    PRIMUS_CHECK(index.has_value(), "no weights for {}", state.parameter);
    at::Tensor target = state.low_bits.defined() ? at::empty(state.tensor.sizes(), at::kFloat) : state.tensor;
    copy_into(*stored.weights, *index, target);
    if (state.low_bits.defined()) master.set(target);
  }
}

}  // namespace primus::train
