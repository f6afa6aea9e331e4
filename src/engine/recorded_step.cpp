// A step as recorded pieces: everything up to the first micro-batch's backward, one further micro-batch, and the
// update. What changes from step to step lies in tensors that the pieces read: the micro-batch, the factors on its
// tokens' gradients, and the optimizer's rates and counts.
#include "engine/step_runner.hpp"

namespace primus::engine {
namespace {

using schedule::ActionKind;

/// The first steps make plans, choose kernels and allocate what stays; none of that can be recorded.
constexpr int kWarmSteps = 2;

/// Forward and backward of one micro-batch after another, then the reduction, then the update?
bool is_plain(const std::vector<schedule::Action>& actions, std::size_t num_micro_batches) {
  if (actions.size() != 2 * num_micro_batches + 2) return false;
  for (std::size_t m = 0; m < num_micro_batches; ++m) {
    const schedule::Action& forward = actions[2 * m];
    const schedule::Action& backward = actions[2 * m + 1];
    const auto number = static_cast<std::int64_t>(m);
    if (forward.kind != ActionKind::kForward || forward.micro_batch.value != number) return false;
    if (backward.kind != ActionKind::kBackward || backward.micro_batch.value != number) return false;
  }
  return actions[actions.size() - 2].kind == ActionKind::kReduceGradients &&
         actions.back().kind == ActionKind::kOptimizerStep;
}

/// A recorded kernel has the arguments of the step that recorded it: it would draw the same numbers again and again.
bool draws_by_token(const model::ModelSpec& spec) {
  return spec.moe && spec.moe->router.draws_by_token();
}

std::vector<nn::LossInput*> losses_of(nn::MicroBatchInput& input) {
  std::vector<nn::LossInput*> losses = {&input.loss};
  for (nn::DepthInput& depth : input.depths) losses.push_back(&depth.loss);
  return losses;
}

/// Tensors like those of `input`, of the recording's own.
nn::MicroBatchInput buffers_like(const nn::MicroBatchInput& input) {
  nn::MicroBatchInput own = input;
  nn::for_each_tensor(own, [](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.clone();
  });
  for (nn::LossInput* loss : losses_of(own)) loss->grad_T = at::empty_like(loss->mask_T);
  return own;
}

}  // namespace

StepRunner::Recording* StepRunner::recording_for(const std::vector<schedule::Action>& actions, const StepInput& input) {
  const std::size_t num_micro_batches = input.micro_batches.size();
  const bool can_be = settings_.launch == Launch::kRecorded && parameters_.device().is_cuda() && !rerun_.is_on() &&
                      settings_.loss_scale.kind == LossScaleSettings::Kind::kConstant && input.observer == nullptr &&
                      !draws_by_token(spec_) && is_plain(actions, num_micro_batches);
  if (!can_be) return nullptr;
  const auto found = recordings_.find(num_micro_batches);
  if (found != recordings_.end()) return &found->second;
  if (num_launched_[num_micro_batches]++ < kWarmSteps) return nullptr;
  return &record(input);
}

StepRunner::Recording& StepRunner::record(const StepInput& input) {
  const std::size_t num_micro_batches = input.micro_batches.size();
  if (num_micro_batches == 1) {
    std::erase_if(recordings_, [](const auto& recording) { return recording.first > 1; });
    parameters_.begin_gradients(nn::GradientMemory::kReleased);
  }
  Recording recording;
  recording.recorder = ops::make_recorder();
  recording.micro_batches.assign(num_micro_batches, buffers_like(input.micro_batches.front()));
  recording.input.micro_batches = recording.micro_batches;
  Recording& kept = recordings_[num_micro_batches] = std::move(recording);
  kept.running.input = &kept.input;
  kept.first = kept.recorder->record([&] {
    begin(kept.running, num_micro_batches);
    forward(kept.running, {0});
    backward(kept.running, {0});
  });
  if (num_micro_batches > 1) {
    kept.further = kept.recorder->record([&] {
      forward(kept.running, {1});
      backward(kept.running, {1});
    });
  }
  kept.last = kept.recorder->record([&] {
    finish(kept.running);
    optimizer_step(kept.running);
  });
  return kept;
}

void StepRunner::replay(Recording& recording, const StepInput& input) {
  nn::MicroBatchInput& own = recording.micro_batches.front();
  for (std::size_t m = 0; m < input.micro_batches.size(); ++m) {
    nn::MicroBatchInput given = input.micro_batches[m];
    std::vector<at::Tensor> tensors;
    nn::for_each_tensor(given, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
    auto next = tensors.begin();
    nn::for_each_tensor(own, [&](at::Tensor& tensor) {
      PRIMUS_CHECK(next != tensors.end() && next->defined() == tensor.defined(), "a micro-batch of another kind");
      if (tensor.defined()) tensor.copy_(*next, /*non_blocking=*/true);
      ++next;
    });
    const std::vector<nn::LossInput*> losses = losses_of(own);
    const std::vector<nn::LossInput*> given_losses = losses_of(given);
    for (std::size_t i = 0; i < losses.size(); ++i) {
      losses[i]->grad_T.copy_(nn::loss_gradient(*given_losses[i], scaler_.scale()));
    }
    recording.recorder->replay(m == 0 ? recording.first : recording.further);
  }
  recording.recorder->replay(recording.last);
}

}  // namespace primus::engine
