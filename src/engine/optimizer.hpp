#pragma once
// The optimizer over a parameter store: rules by parameter, state in the policy's types, Megatron's decay and rate
// groups from the descriptors.
#include "model/optimizer_spec.hpp"
#include "nn/parameter.hpp"
#include "ops/adamw/adamw.hpp"
#include "ops/soap/soap.hpp"
#include "ops/update/update.hpp"

namespace primus::engine {

/// What changes from step to step.
struct StepRates {
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  std::optional<double> end_learning_rate;  // of embedding and output layer, where they have one of their own
};

/// One tensor of the optimizer's state, as it is held. What is written into it is the new state.
struct StateTensor {
  std::string parameter;
  enum class Part {
    kMaster,
    kFirstMoment,
    kSecondMoment,
    kRowAverage,  // SOAP's averages and their eigenvectors
    kColumnAverage,
    kRowBasis,
    kColumnBasis
  } part;
  enum class Holds { kValues, kScales } holds;
  at::Tensor tensor;
  at::Tensor low_bits = {};  // defined: `tensor` is the weight, and both are halves of an fp32 value
};

class Optimizer {
 public:
  /// Allocates master copies (where the weights' type is narrower) and moments for every trained parameter. On a
  /// GPU: rules of single elements only (train/device_support.hpp says so to the user).
  Optimizer(nn::ParameterStore& parameters, const model::NumericPolicy& policy, const model::OptimizerSpec& spec);

  /// For the steps that are begun from now on.
  void set_rates(const StepRates& rates);

  /// One update of every trained parameter from its gradient, unless the loss or the gradients' norm is not finite:
  /// that, and clipping to the norm `clip_grad` (0: none), is decided on the parameters' device (decision 16). Both
  /// sums: fp64, there.
  void step(const at::Tensor& loss_sum_1, const at::Tensor& square_sum_1, double clip_grad);

  /// Multiplies rows of a parameter, in its master copy too, from outside the update.
  void scale_rows(nn::Parameter& parameter, std::int64_t first, std::int64_t count, double factor);

  /// What the last step decided.
  const ops::UpdateGate& gate() const { return gate_; }

  /// Updates done so far; the moments' bias correction depends on it. Waits for the device.
  std::int64_t num_steps() const { return gate_.num_steps_1.item<std::int64_t>(); }

  /// All of its state but the count of updates, in the parameters' order: for saving and for loading, before the next
  /// step is begun. Waits for the device where state is on the host.
  std::vector<StateTensor> state_tensors() const;
  void set_num_steps(std::int64_t num_steps);
  /// Copies the weights into the master copies, when they have been changed from outside.
  void take_masters();

  /// Bytes of the gate: what the optimizer holds beside optimizer_bytes of each parameter.
  static constexpr std::int64_t kGateBytes = 3 * 2 * 8 + 8 + 8 + 4;

 private:
  struct State {
    nn::Parameter* parameter;
    model::OptimizerKind rule;
    ops::UpdateState stored;
    ops::SoapState soap;  // where the rule is SOAP
  };

  /// Is the whole of a parameter's update the one fused op?
  bool is_fused(const State& state) const;
  const ops::UpdateGate& gate_of(const nn::Parameter& parameter) const;
  void update(State& state);
  /// State on the host is read and written by the device's work that is under way.
  void await_host_state() const;
  /// Directions of update number `num_steps`; they move the state.
  at::Tensor muon_step(State& state, const at::Tensor& gradient, std::int64_t num_steps);
  at::Tensor soap_step(State& state, const at::Tensor& gradient, std::int64_t num_steps);
  void matrix_update(State& state, ops::Decays decays);

  model::OptimizerSpec spec_;
  model::NumericPolicy policy_;
  ops::UpdateGate gate_;
  ops::UpdateGate end_gate_;         // shares all but the rates with gate_
  ops::UpdateGate scaled_gate_;      // alike, of parameters whose rate is scaled by the model's width
  double scaled_rate_factor_ = 1.0;  // one a run: by matrices, or by everything else
  bool has_end_rate_ = false;
  std::vector<State> states_;
};

}  // namespace primus::engine
