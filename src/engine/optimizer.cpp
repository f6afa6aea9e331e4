#include "engine/optimizer.hpp"

#include <ATen/TensorOperators.h>

#include "base/philox.hpp"
#include "engine/matrix_rules.hpp"
#include "model/optimizer_groups.hpp"
#include "ops/allocator.hpp"
#include "ops/device.hpp"
#include "ops/host_copy.hpp"

namespace primus::engine {
namespace {

using model::OptimizerKind;

/// A type with scales spans few powers of ten: it holds the root of second moments.
ops::StateForm second_moment_form(DType type) {
  return type == DType::kFloat8 || type == DType::kFloat16 ? ops::StateForm::kRoot : ops::StateForm::kPlain;
}

ops::UpdateRule element_rule(OptimizerKind kind) {
  if (kind == OptimizerKind::kSgd) return ops::UpdateRule::kSgd;
  return kind == OptimizerKind::kLion ? ops::UpdateRule::kLion : ops::UpdateRule::kAdamW;
}

ops::AdamWOptions options_of(const model::OptimizerSpec& spec, OptimizerKind kind) {
  if (kind == OptimizerKind::kSgd) return {.beta1 = spec.sgd_momentum, .beta2 = 0.0, .epsilon = 0.0};
  if (kind == OptimizerKind::kLion) return {.beta1 = spec.lion_beta1, .beta2 = spec.lion_beta2, .epsilon = 0.0};
  return {.beta1 = spec.beta1, .beta2 = spec.beta2, .epsilon = spec.epsilon};
}

}  // namespace

Optimizer::Optimizer(nn::ParameterStore& parameters, const model::NumericPolicy& policy,
                     const model::OptimizerSpec& spec)
    : spec_(spec), policy_(policy) {
  const ops::MemoryScope scope(ops::MemoryTag::kOptimizer);
  gate_ = ops::make_update_gate(parameters.device());
  for (ops::UpdateGate* gate : {&end_gate_, &scaled_gate_}) {
    *gate = gate_;
    gate->rates_2 = at::zeros_like(gate_.rates_2);
  }
  for (const auto& parameter : parameters.all()) {
    if (!parameter->is_trained()) continue;
    State state{parameter.get(), spec.rule(parameter->descriptor), {}, {}};
    if (const double factor = spec.rate_factor(parameter->descriptor); factor != 1.0) scaled_rate_factor_ = factor;
    const at::Tensor& weight = parameter->weight;
    const model::StatePlace place = weight.is_cuda() ? spec.place(parameter->descriptor) : model::StatePlace::kDevice;
    if (policy.master_form == model::MasterForm::kBesideWeight) {
      state.stored.low_bits = ops::state_zeros(weight, weight.sizes(), at::kShort, place);
    } else if (policy.has_master_copy()) {
      state.stored.master = ops::make_state(weight, policy.master, ops::StateForm::kPlain, place);
    }
    state.stored.first_moment = ops::make_state(weight, policy.first_moment, ops::StateForm::kPlain, place);
    if (model::has_second_moment(state.rule)) {
      state.stored.second_moment =
          ops::make_state(weight, policy.second_moment, second_moment_form(policy.second_moment), place);
    }
    if (state.rule == OptimizerKind::kSoap) {
      state.soap = ops::make_soap_state(weight, ops::to_aten(policy.statistics));
    }
    state.stored.key = stream_id(parameter->descriptor.name);
    PRIMUS_CHECK(parameters.device().is_cpu() || !model::moves_matrices(state.rule),
                 "{}: no GPU kernel moves this parameter", parameter->descriptor.name);
    states_.push_back(std::move(state));
  }
  take_masters();
}

void Optimizer::await_host_state() const {
  if (spec_.host_fraction > 0.0) ops::synchronize(gate_.rates_2.device());
}

void Optimizer::take_masters() {
  await_host_state();
  for (State& state : states_) {
    if (state.stored.low_bits.defined()) state.stored.low_bits.zero_();
    ops::StoredState& master = state.stored.master;
    if (!master.is_held()) continue;
    const at::Tensor& weight = state.parameter->weight;
    if (master.type == DType::kFloat32 || master.type == DType::kFloat64) {
      master.values.copy_(weight);
    } else {
      ops::store_state(weight.to(at::kFloat).view({-1}), {}, master);
    }
  }
}

std::vector<StateTensor> Optimizer::state_tensors() const {
  await_host_state();
  std::vector<StateTensor> tensors;
  const auto add = [&](const State& state, StateTensor::Part part, const ops::StoredState& stored) {
    const std::string& name = state.parameter->descriptor.name;
    if (stored.is_held()) tensors.push_back({name, part, StateTensor::Holds::kValues, stored.values});
    if (stored.scale_B.defined()) tensors.push_back({name, part, StateTensor::Holds::kScales, stored.scale_B});
  };
  for (const State& state : states_) {
    if (state.stored.low_bits.defined()) {
      tensors.push_back({state.parameter->descriptor.name, StateTensor::Part::kMaster, StateTensor::Holds::kValues,
                         state.parameter->weight, state.stored.low_bits});
    }
    add(state, StateTensor::Part::kMaster, state.stored.master);
    add(state, StateTensor::Part::kFirstMoment, state.stored.first_moment);
    add(state, StateTensor::Part::kSecondMoment, state.stored.second_moment);
    if (!state.soap.is_held()) continue;
    const std::string& name = state.parameter->descriptor.name;
    for (const auto& [part, tensor] : {std::pair{StateTensor::Part::kRowAverage, state.soap.rows_EMM},
                                       std::pair{StateTensor::Part::kColumnAverage, state.soap.columns_ENN},
                                       std::pair{StateTensor::Part::kRowBasis, state.soap.row_basis_EMM},
                                       std::pair{StateTensor::Part::kColumnBasis, state.soap.column_basis_ENN}})
      tensors.push_back({name, part, StateTensor::Holds::kValues, tensor});
  }
  return tensors;
}

void Optimizer::set_num_steps(std::int64_t num_steps) {
  gate_.num_steps_1.fill_(num_steps);
}

bool Optimizer::is_fused(const State& state) const {
  const DType wide = policy_.statistics;
  return state.rule == OptimizerKind::kAdam && policy_.main_gradients == wide && policy_.master == wide &&
         policy_.first_moment == wide && policy_.second_moment == wide;
}

const ops::UpdateGate& Optimizer::gate_of(const nn::Parameter& parameter) const {
  // A rate that the user wrote is not scaled.
  if (has_end_rate_ && model::is_at_the_ends(parameter.descriptor)) return end_gate_;
  return spec_.rate_factor(parameter.descriptor) != 1.0 ? scaled_gate_ : gate_;
}

void Optimizer::set_rates(const StepRates& rates) {
  has_end_rate_ = rates.end_learning_rate.has_value();
  const at::Device device = gate_.rates_2.device();
  const auto write = [&](double learning_rate, at::Tensor& rates_2) {
    const at::Tensor values = ops::staging({2}, at::kDouble, device);
    values.data_ptr<double>()[0] = learning_rate;
    values.data_ptr<double>()[1] = rates.weight_decay;
    rates_2.copy_(values, /*non_blocking=*/true);
  };
  write(rates.learning_rate, gate_.rates_2);
  write(rates.end_learning_rate.value_or(rates.learning_rate), end_gate_.rates_2);
  write(rates.learning_rate * scaled_rate_factor_, scaled_gate_.rates_2);
}

at::Tensor Optimizer::muon_step(State& state, const at::Tensor& gradient, std::int64_t num_steps) {
  const model::MuonSpec& muon = spec_.muon;
  at::Tensor momentum = ops::load_state(state.stored.first_moment).view(gradient.sizes());
  momentum = momentum * muon.momentum + gradient * (1.0 - muon.momentum);
  ops::store_state(momentum.view({-1}), ops::rounding_of(state.stored.key, num_steps, 0), state.stored.first_moment);
  const bool is_nesterov = muon.nesterov == model::MuonSpec::Nesterov::kOn;
  const at::Tensor seen = is_nesterov ? gradient * (1.0 - muon.momentum) + momentum * muon.momentum : momentum;
  const at::Tensor direction = muon_direction(muon, state.parameter->descriptor, seen);
  if (state.rule == OptimizerKind::kMuon) return direction;
  at::Tensor second = ops::load_state(state.stored.second_moment).view(gradient.sizes());
  const at::Tensor scaled = adaptive_muon_direction(muon, direction, second);
  ops::store_state(second.view({-1}), ops::rounding_of(state.stored.key, num_steps, 1), state.stored.second_moment);
  return scaled;
}

at::Tensor Optimizer::soap_step(State& state, const at::Tensor& gradient, std::int64_t num_steps) {
  at::Tensor first = ops::load_state(state.stored.first_moment).view(gradient.sizes());
  at::Tensor second = ops::load_state(state.stored.second_moment).view(gradient.sizes());
  const ops::SoapOptions options{.beta1 = spec_.beta1, .beta2 = spec_.beta2, .epsilon = spec_.epsilon};
  const at::Tensor direction = ops::soap_direction(gradient, num_steps, options, state.soap, first, second);
  ops::store_state(first.view({-1}), ops::rounding_of(state.stored.key, num_steps, 0), state.stored.first_moment);
  ops::store_state(second.view({-1}), ops::rounding_of(state.stored.key, num_steps, 1), state.stored.second_moment);
  return direction;
}

void Optimizer::matrix_update(State& state, ops::Decays decays) {
  const ops::UpdateGate& gate = gate_of(*state.parameter);
  if (*gate.proceed_1.const_data_ptr<std::int32_t>() == 0) return;
  at::Tensor& weight = state.parameter->weight;
  const at::ScalarType wide = ops::to_aten(policy_.statistics);
  const double* rates = gate.rates_2.const_data_ptr<double>();
  const double decay = decays == ops::Decays::kYes ? rates[1] : 0.0;
  const std::int64_t num_steps = *gate.num_steps_1.const_data_ptr<std::int64_t>();
  const at::Tensor gradient = state.parameter->gradient().to(wide) * gate.grad_scale_1.item<double>();
  const at::Tensor direction = state.rule == OptimizerKind::kSoap ? soap_step(state, gradient, num_steps)
                                                                  : muon_step(state, gradient, num_steps);
  ops::StoredState& stored = state.stored.master;
  const at::Tensor master = stored.is_held() ? ops::load_state(stored).view(weight.sizes()) : weight;
  const at::Tensor updated = master - rates[0] * (decay * master + direction);
  if (stored.is_held()) {
    ops::store_state(updated.contiguous().view({-1}), ops::rounding_of(state.stored.key, num_steps, 2), stored);
  }
  weight.copy_(updated);
}

void Optimizer::update(State& state) {
  const ops::Decays decays =
      spec_.decay(state.parameter->descriptor) == model::Decay::kYes ? ops::Decays::kYes : ops::Decays::kNo;
  if (model::moves_matrices(state.rule)) return matrix_update(state, decays);
  ops::AdamWOptions options = options_of(spec_, state.rule);
  options.epsilon *= spec_.epsilon_factor(state.parameter->descriptor);
  const ops::UpdateGate& gate = gate_of(*state.parameter);
  at::Tensor& weight = state.parameter->weight;
  if (!is_fused(state)) {
    return ops::stored_update(element_rule(state.rule), options, gate, decays, state.parameter->gradient(),
                              state.stored, weight);
  }
  if (state.stored.low_bits.defined()) {
    return ops::adamw_halves_step(options, gate, decays, state.parameter->gradient(), state.stored.low_bits,
                                  state.stored.first_moment.values, state.stored.second_moment.values, weight);
  }
  at::Tensor& master = state.stored.master.is_held() ? state.stored.master.values : weight;
  ops::adamw_step(options, gate, decays, state.parameter->gradient(), master, state.stored.first_moment.values,
                  state.stored.second_moment.values, weight);
}

void Optimizer::scale_rows(nn::Parameter& parameter, std::int64_t first, std::int64_t count, double factor) {
  const auto own =
      std::find_if(states_.begin(), states_.end(), [&](const State& state) { return state.parameter == &parameter; });
  PRIMUS_CHECK(own != states_.end(), "{} is not trained", parameter.descriptor.name);
  PRIMUS_CHECK(!own->stored.low_bits.defined(), "{}: rows of a master in halves", parameter.descriptor.name);
  ops::StoredState& stored = own->stored.master;
  if (!stored.is_held()) {
    parameter.weight.narrow(0, first, count).mul_(factor);
    return;
  }
  const at::Tensor master = ops::load_state(stored).view(parameter.weight.sizes()).clone();
  master.narrow(0, first, count).mul_(factor);
  ops::store_state(master.view({-1}), {}, stored);
  parameter.weight.copy_(master);
}

void Optimizer::step(const at::Tensor& loss_sum_1, const at::Tensor& square_sum_1, double clip_grad) {
  ops::close_gate(loss_sum_1, square_sum_1, clip_grad, gate_);
  for (State& state : states_) update(state);
}

}  // namespace primus::engine
