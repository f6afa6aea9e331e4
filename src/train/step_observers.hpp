#pragma once
// Who looks at the steps of a run: dumps and the routing trace, as the experiment asks for them.
#include <functional>
#include <optional>

#include "train/routing_trace.hpp"
#include "train/step_dumps.hpp"

namespace primus::train {

class StepObservers final : public nn::Observer {
 public:
  /// Called with the message of a file that cannot be written: no reason to end the run.
  using Alarm = std::function<void(const std::string& message)>;

  /// `first_step`: the run's next one, from 0. Throws UserError.
  StepObservers(const config::Experiment& experiment, const nn::ParameterStore& parameters, int num_layers,
                std::int64_t first_step);

  /// Before step `step`: whom the step is to tell what it does, or nullptr.
  nn::Observer* begin(std::int64_t step, const Alarm& alarm);
  /// After it.
  void finish(const Alarm& alarm);

  void begin_step() override;
  void begin_micro_batch(int micro_batch) override;
  void activation(const std::string& name, const at::Tensor& values) override;
  void gradient(const std::string& name, const at::Tensor& values) override;
  void routing(const nn::Routing& routing) override;
  void gradients_ready() override;

 private:
  StepDumps dumps_;
  std::optional<RoutingTrace> trace_;
  bool is_dumped_ = false;  // this step
  bool is_traced_ = false;
};

}  // namespace primus::train
