#include "train/step_observers.hpp"

#include "base/error.hpp"

namespace primus::train {
namespace {

template <class Write>
void told(const StepObservers::Alarm& alarm, const Write& write) {
  try {
    write();
  } catch (const UserError& error) {
    alarm(error.what());
  }
}

}  // namespace

StepObservers::StepObservers(const config::Experiment& experiment, const nn::ParameterStore& parameters, int num_layers,
                             std::int64_t first_step)
    : dumps_(dump_options(experiment), parameters) {
  if (auto options = routing_trace_options(experiment, num_layers)) {
    trace_.emplace(std::move(*options), parameters, first_step);
  }
}

nn::Observer* StepObservers::begin(std::int64_t step, const Alarm& alarm) {
  is_dumped_ = dumps_.begin(step + 1);
  is_traced_ = false;
  if (trace_) told(alarm, [&] { is_traced_ = trace_->begin(step); });
  return is_dumped_ || is_traced_ ? this : nullptr;
}

void StepObservers::finish(const Alarm& alarm) {
  if (is_dumped_) told(alarm, [&] { dumps_.finish(); });
  if (is_traced_) told(alarm, [&] { trace_->finish(); });
}

void StepObservers::begin_step() {
  if (is_dumped_) dumps_.begin_step();
  if (is_traced_) trace_->begin_step();
}

void StepObservers::begin_micro_batch(int micro_batch) {
  if (is_dumped_) dumps_.begin_micro_batch(micro_batch);
  if (is_traced_) trace_->begin_micro_batch(micro_batch);
}

void StepObservers::activation(const std::string& name, const at::Tensor& values) {
  if (is_dumped_) dumps_.activation(name, values);
}

void StepObservers::gradient(const std::string& name, const at::Tensor& values) {
  if (is_dumped_) dumps_.gradient(name, values);
}

void StepObservers::routing(const nn::Routing& routing) {
  if (is_dumped_) dumps_.routing(routing);
  if (is_traced_) trace_->routing(routing);
}

void StepObservers::gradients_ready() {
  if (is_dumped_) dumps_.gradients_ready();
}

}  // namespace primus::train
