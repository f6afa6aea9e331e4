#include "engine/step_runner.hpp"

#include <iterator>
#include <limits>
#include <numeric>

#include "engine/gradients.hpp"
#include "nn/rope_tables.hpp"

namespace primus::engine {
namespace {

/// Σ −p·ln p over ln E; loads without a token, and a single expert, count as balanced.
double load_entropy(std::span<const std::int64_t> loads) {
  const auto sum = static_cast<double>(std::accumulate(loads.begin(), loads.end(), std::int64_t{0}));
  if (sum == 0.0 || loads.size() < 2) return 1.0;
  double entropy = 0.0;
  for (const std::int64_t load : loads) {
    const double share = static_cast<double>(load) / sum;
    if (load > 0) entropy -= share * std::log(share);
  }
  return entropy / std::log(static_cast<double>(loads.size()));
}

ExpertLoad expert_load(int layer, std::span<const std::int64_t> loads, std::optional<std::int64_t> num_dropped) {
  const double mean = static_cast<double>(std::accumulate(loads.begin(), loads.end(), std::int64_t{0})) /
                      static_cast<double>(loads.size());
  const auto most = static_cast<double>(*std::max_element(loads.begin(), loads.end()));
  return {.layer = layer,
          .max_over_mean = mean > 0.0 ? most / mean : 0.0,
          .num_dead_experts = std::count(loads.begin(), loads.end(), std::int64_t{0}),
          .num_tokens = {loads.begin(), loads.end()},
          .entropy = load_entropy(loads),
          .num_dropped = num_dropped};
}

bool is_optimizer_step(const schedule::Action& action) {
  return action.kind == schedule::ActionKind::kOptimizerStep;
}

model::SavedDeclaration declaration_of(const model::ModelSpec& spec, const StepSettings& settings) {
  model::SavedDeclaration declaration =
      model::model_saved(spec, settings.policy, settings.micro_batch, settings.loss_fusion);
  model::mark_recomputed(spec, settings.recompute, declaration);
  return declaration;
}

/// The tables as a micro-batch's tokens have positions.
nn::RopeTables rope_of(const nn::RopeTables& rope, const nn::MicroBatchInput& input) {
  const bool is_moved = input.positions_T.defined() && rope.cos_SP.defined();
  return is_moved ? nn::at_positions(rope, input.positions_T) : rope;
}

}  // namespace

StepRunner::StepRunner(const model::ModelSpec& spec, const StepSettings& settings, nn::Model& model,
                       nn::ParameterStore& parameters, Optimizer& optimizer)
    : spec_(spec),
      settings_(settings),
      declaration_(declaration_of(spec, settings)),
      rope_(nn::rope_tables(spec.rope, settings.micro_batch.seq_length,
                            at::TensorOptions(ops::to_aten(settings.policy.statistics)).device(parameters.device()))),
      entry_rope_(nn::entry_rope_tables(spec, settings.micro_batch.seq_length, rope_.cos_SP.options())),
      groups_(comm::Groups::single()),
      model_(model),
      parameters_(parameters),
      optimizer_(optimizer),
      scaler_(settings.loss_scale),
      rerun_(settings.rerun),
      halt_1_(at::zeros({1}, at::TensorOptions(at::kDouble).device(parameters.device()))) {}

nn::StepContext StepRunner::context(const nn::MicroBatchInput& input, nn::Mode mode) const {
  return {.mode = mode,
          .batch = settings_.micro_batch,
          .rope = rope_of(rope_, input),
          .entry_rope = rope_of(entry_rope_, input),
          .first_key_BS = input.first_key_BS,
          .loss_scale = scaler_.scale(),
          .ids_T = input.ids_T,
          .groups = groups_};
}

nn::StepContext StepRunner::training_context(const Running& running, std::size_t micro_batch) const {
  const StepInput& input = *running.input;
  const std::int64_t sample =
      input.first_sample + static_cast<std::int64_t>(micro_batch) * settings_.micro_batch.num_sequences;
  nn::StepContext step = context(input.micro_batches[micro_batch], nn::Mode::kTraining);
  step.weight_grad = timing_;
  step.aux_scale = scaler_.scale() / static_cast<double>(input.micro_batches.size());
  step.first_token = sample * settings_.micro_batch.seq_length;
  step.seed = settings_.seed;
  step.observer = input.observer;
  if (step.observer != nullptr) step.observer->begin_micro_batch(static_cast<int>(micro_batch));
  return step;
}

void StepRunner::begin(Running& running, std::size_t num_micro_batches) {
  running.saved.clear();
  running.saved.resize(num_micro_batches);
  const auto scalar = at::TensorOptions(at::kDouble).device(parameters_.device());
  running.loss_sum = at::zeros({1 + spec_.num_mtp_layers}, scalar);
  running.square_sum = at::zeros({1}, scalar);
  if (settings_.after_nonfinite == AfterNonFinite::kHalt) running.loss_sum.narrow(0, 0, 1).add_(halt_1_);
  // One micro-batch: gradients appear as backward reaches a layer and take the place of freed activations. They stay
  // until the next step begins, so that a step that is not finite can be explained.
  const bool is_released = parameters_.device().is_cuda() && num_micro_batches == 1;
  // Recordings of more than one hold the addresses of resident gradients.
  if (is_released) std::erase_if(recordings_, [](const auto& recording) { return recording.first > 1; });
  parameters_.begin_gradients(is_released ? nn::GradientMemory::kReleased : nn::GradientMemory::kResident,
                              is_released && scaler_.scale() == 1.0 ? running.square_sum : at::Tensor());
  model_.begin_step();
  if (running.input->observer != nullptr) running.input->observer->begin_step();
}

void StepRunner::compute(Running& running, const std::vector<schedule::Action>& actions) {
  std::vector<schedule::Action> before;
  std::copy_if(actions.begin(), actions.end(), std::back_inserter(before),
               [](const schedule::Action& action) { return !is_optimizer_step(action); });
  walk(running, before);
  if (!rerun_.is_on()) return;
  const StepInput& input = *running.input;
  const auto suspicion = [&](double loss_sum, double norm) {
    return input.suspicion ? input.suspicion(loss_sum / input.num_tokens, norm) : std::nullopt;
  };
  if (!rerun_.first(input.step, {running.loss_sum, running.square_sum}, suspicion)) return;
  begin(running, input.micro_batches.size());
  walk(running, before);
  const RerunVerdict verdict = rerun_.second({running.loss_sum, running.square_sum});
  if (verdict.kind == RerunVerdict::Kind::kDifferent && settings_.rerun.mode == RerunMode::kValidate) {
    throw UserError(
        fmt::format("iteration {}: computed again because {}, and the two results differ (loss by {:.3g}, "
                    "gradient norm by {:.3g}, relative): this machine computes wrongly. The weights are "
                    "those of the step before.",
                    input.step, verdict.why, verdict.loss_difference, verdict.norm_difference));
  }
  running.result.rerun = verdict;
}

void StepRunner::launch(Running& running, const std::vector<schedule::Action>& actions) {
  begin(running, running.input->micro_batches.size());
  compute(running, actions);
  if (running.input->observer != nullptr) running.input->observer->gradients_ready();
  if (std::any_of(actions.begin(), actions.end(), is_optimizer_step)) optimizer_step(running);
}

void StepRunner::submit(const std::vector<schedule::Action>& actions, const StepInput& input) {
  optimizer_.set_rates(input.rates);
  const bool has_weight_grad = std::any_of(actions.begin(), actions.end(), [](const schedule::Action& action) {
    return action.kind == schedule::ActionKind::kWeightGrad;
  });
  timing_ = has_weight_grad ? nn::WeightGradTiming::kDeferred : nn::WeightGradTiming::kWithBackward;
  if (Recording* recording = recording_for(actions, input)) {
    replay(*recording, input);
    under_way_.push_back(begin_read_back(recording->running, input));
    return;
  }
  Running running;
  running.input = &input;
  try {
    launch(running, actions);
    under_way_.push_back(begin_read_back(running, input));
  } catch (const NonFiniteError& error) {
    UnderWay ended{.result = std::move(running.result), .copy = std::nullopt, .depth_num_tokens = {}};
    ended.result.loss = ended.result.grad_norm = std::numeric_limits<double>::quiet_NaN();
    std::string reason = error.what();
    if (const auto weight = first_nonfinite_weight(parameters_)) {
      reason += fmt::format("; the first parameter with such a value is {}", *weight);
    }
    skip(ended.result, std::move(reason));
    under_way_.push_back(std::move(ended));
  }
}

StepResult StepRunner::collect() {
  PRIMUS_CHECK(!under_way_.empty(), "no step is under way");
  UnderWay step = std::move(under_way_.front());
  under_way_.pop_front();
  if (step.copy) read_back(step);
  step.result.loss_scale = scaler_.scale();
  const bool is_good = step.result.outcome == StepOutcome::kUpdated;
  scaler_.update(is_good ? LossScaler::Step::kGood : LossScaler::Step::kOverflow);
  return std::move(step.result);
}

void StepRunner::walk(Running& running, const std::vector<schedule::Action>& actions) {
  for (const schedule::Action& action : actions) {
    switch (action.kind) {
      case schedule::ActionKind::kForward:
        forward(running, action.micro_batch);
        break;
      case schedule::ActionKind::kBackward:
        backward(running, action.micro_batch);
        break;
      case schedule::ActionKind::kWeightGrad:
        weight_grad(running, action.micro_batch);
        break;
      case schedule::ActionKind::kReduceGradients:
        finish(running);
        break;
      default:
        PRIMUS_CHECK(false, "{} in a run of one pipeline stage", schedule::name(action.kind));
    }
  }
}

void StepRunner::forward(Running& running, schedule::MicroBatch micro_batch) {
  const auto m = static_cast<std::size_t>(micro_batch.value);
  running.saved.at(m) = std::make_unique<nn::Saved>(declaration_, parameters_.device());
  const nn::StepContext step = training_context(running, m);
  running.loss_sum.add_(model_.forward(running.input->micro_batches[m], *running.saved[m], step));
}

void StepRunner::backward(Running& running, schedule::MicroBatch micro_batch) {
  const auto m = static_cast<std::size_t>(micro_batch.value);
  const nn::StepContext step = training_context(running, m);
  model_.backward(running.input->micro_batches[m], *running.saved.at(m), step);
  if (timing_ == nn::WeightGradTiming::kWithBackward) running.saved[m].reset();
}

void StepRunner::weight_grad(Running& running, schedule::MicroBatch micro_batch) {
  const auto m = static_cast<std::size_t>(micro_batch.value);
  model_.weight_grad(*running.saved.at(m));
  running.saved[m].reset();
}

void StepRunner::finish(Running& running) {
  parameters_.complete_gradients();
  reduce_gradients(parameters_, groups_);
  groups_.data.all_reduce_sum(running.loss_sum);
  if (scaler_.scale() != 1.0) unscale_gradients();
  global_gradient_square_sum(parameters_, groups_, running.square_sum);
}

void StepRunner::unscale_gradients() {
  for (const auto& parameter : parameters_.all()) {
    if (parameter->is_trained()) parameter->gradient().mul_(1.0 / scaler_.scale());
  }
}

void StepRunner::skip(StepResult& result, std::string reason) const {
  // Below its smallest value the scale cannot be what overflows.
  const bool may_mend = settings_.loss_scale.kind == LossScaleSettings::Kind::kDynamic &&
                        scaler_.scale() > settings_.loss_scale.smallest && !first_nonfinite_weight(parameters_);
  result.outcome = may_mend ? StepOutcome::kSkippedOverflow : StepOutcome::kSkippedNonFinite;
  result.nonfinite = std::move(reason);
}

std::string StepRunner::describe_nonfinite(const StepResult& result) const {
  const std::string what = std::isfinite(result.loss) ? "the gradient norm is not finite" : "the loss is not finite";
  if (const auto weight = first_nonfinite_weight(parameters_)) {
    return fmt::format("{}: the first parameter with such a value is {}", what, *weight);
  }
  if (const auto gradient = first_nonfinite_gradient(parameters_)) {
    return fmt::format("{}: the first parameter whose gradient has such a value is {}", what, *gradient);
  }
  return what + ", though every gradient is: a sum overflows";
}

void StepRunner::optimizer_step(Running& running) {
  const at::Tensor loss_1 = running.loss_sum.narrow(0, 0, 1);
  optimizer_.step(loss_1, running.square_sum, settings_.clip_grad);
  for (const nn::Model::RoutedLayer& routed : model_.routed_layers()) {
    routed.moe->router().update_bias(groups_.data, optimizer_.gate().proceed_1);
  }
  if (settings_.after_nonfinite == AfterNonFinite::kHalt) halt_1_.copy_(loss_1.add(running.square_sum).mul_(0.0));
}

StepRunner::UnderWay StepRunner::begin_read_back(const Running& running, const StepInput& input) {
  std::vector<at::Tensor> tensors = {at::cat({running.loss_sum, running.square_sum})};
  std::vector<at::Tensor> counts;
  std::vector<at::Tensor> losses;
  std::vector<std::optional<std::int64_t>> num_dropped;
  for (const nn::Model::RoutedLayer& routed : model_.routed_layers()) {
    counts.push_back(routed.moe->metrics().tokens_per_expert_E);
    losses.push_back(routed.moe->metrics().loss_4);
    num_dropped.push_back(routed.moe->metrics().num_dropped);
  }
  // One copy for all layers.
  if (!counts.empty()) tensors.insert(tensors.end(), {at::cat(counts), at::cat(losses).to(at::kDouble)});
  return {.result = running.result,
          .copy = ops::HostCopy(tensors),
          .num_tokens = input.num_tokens,
          .depth_num_tokens = input.depth_num_tokens,
          .num_micro_batches = input.micro_batches.size(),
          .num_dropped = std::move(num_dropped)};
}

void StepRunner::read_back(UnderWay& step) {
  StepResult& result = step.result;
  const std::vector<at::Tensor>& values = step.copy->wait();
  const std::span<const double> sum(values[0].const_data_ptr<double>(), static_cast<std::size_t>(values[0].numel()));
  result.loss = sum.front() / step.num_tokens;
  result.grad_norm = std::sqrt(sum.back());
  for (std::size_t depth = 0; depth + 2 < sum.size(); ++depth) {
    result.mtp_losses.push_back(sum[depth + 1] / step.depth_num_tokens.at(depth));
  }
  if (values.size() > 1) collect_router_metrics(step, values[1], values[2]);
  result.largest_logit = model_.largest_logit();
  if (const auto loss = model_.indexer_loss()) {
    result.indexer_loss = *loss / static_cast<double>(step.num_micro_batches);
  }
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) return skip(result, describe_nonfinite(result));
  if (!spec_.qk_clip) return;
  model_.clip_logits(*spec_.qk_clip, [&](nn::Parameter& parameter, std::int64_t first, std::int64_t count,
                                         double factor) { optimizer_.scale_rows(parameter, first, count, factor); });
}

void StepRunner::collect_router_metrics(UnderWay& step, const at::Tensor& counts_LE, const at::Tensor& loss_4L) {
  StepResult& result = step.result;
  const std::vector<nn::Model::RoutedLayer> layers = model_.routed_layers();
  std::int64_t num_passes = 0;
  std::int64_t num_balanced = 0;
  const std::int64_t num_experts = counts_LE.numel() / std::ssize(layers);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    num_passes += layers[i].num_passes;
    if (spec_.router(layers[i].layer).losses.has_balance()) num_balanced += layers[i].num_passes;
    const auto* first = counts_LE.const_data_ptr<std::int64_t>() + static_cast<std::int64_t>(i) * num_experts;
    result.expert_loads.push_back(
        expert_load(layers[i].layer, {first, static_cast<std::size_t>(num_experts)}, step.num_dropped.at(i)));
  }
  const at::Tensor loss_L4 = loss_4L.view({std::ssize(layers), -1});
  const auto mean = [&](int loss, std::int64_t passes) {
    const double count = static_cast<double>(passes) * static_cast<double>(step.num_micro_batches);
    return loss_L4.select(1, loss).sum().item<double>() / std::max(count, 1.0);
  };
  const model::RouterLosses& coefficients = spec_.moe->router.losses;
  double num_ways = 0.0;
  for (const auto& [loss, coefficient] : {std::pair<int, double>{ops::RouterLoss::kAux, coefficients.aux},
                                          {ops::RouterLoss::kSeqAux, coefficients.seq_aux},
                                          {ops::RouterLoss::kGlobalAux, coefficients.global_aux}}) {
    if (coefficient == 0.0) continue;
    result.load_balancing_loss += mean(loss, num_balanced) / coefficient;
    num_ways += 1.0;
  }
  result.load_balancing_loss /= std::max(num_ways, 1.0);
  if (coefficients.z != 0.0) result.z_loss = mean(ops::RouterLoss::kZ, num_passes) / coefficients.z;
}

double StepRunner::evaluate(const nn::MicroBatchInput& input, std::int64_t num_sequences) {
  nn::StepContext step = context(input, nn::Mode::kEvaluation);
  step.batch.num_sequences = num_sequences;
  const bool is_like_training = num_sequences == settings_.micro_batch.num_sequences;
  nn::Saved saved(
      is_like_training ? declaration_ : model::model_saved(spec_, settings_.policy, step.batch, settings_.loss_fusion),
      parameters_.device());
  return model_.forward(input, saved, step).item<double>();
}

}  // namespace primus::engine
