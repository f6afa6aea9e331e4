#include "engine/optimizer.hpp"

#include <ATen/TensorOperators.h>

#include "base/philox.hpp"
#include "ops/allocator.hpp"
#include "ops/muon/muon.hpp"

namespace primus::engine {
namespace {

using model::OptimizerKind;

/// A type with scales spans few powers of ten: it holds the root of second moments.
ops::StateForm second_moment_form(DType type) {
  return type == DType::kFloat8 || type == DType::kFloat16 ? ops::StateForm::kRoot : ops::StateForm::kPlain;
}

bool is_at_the_ends(const model::ParameterDescriptor& parameter) {
  return parameter.component == model::Component::kEmbedding || parameter.component == model::Component::kOutput;
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

// Rows of a, b, c, as the Emerging-Optimizers package has them (its papers: Jordan's Muon, Polar Express, AOL).
std::vector<ops::NewtonSchulzStep> newton_schulz_steps(const model::MuonSpec& muon) {
  using Steps = std::vector<ops::NewtonSchulzStep>;
  static const Steps kSimple = {{3.4445, -4.7750, 2.0315}};
  static const Steps kQuintic = {{4.0848, -6.8946, 2.9270},
                                 {3.9505, -6.3029, 2.6377},
                                 {3.7418, -5.5913, 2.3037},
                                 {2.8769, -3.1427, 1.2046},
                                 {2.8366, -3.0525, 1.2012}};
  static const Steps kPolarExpress = {{8.2051, -22.9019, 16.4607}, {4.0664, -2.8612, 0.5184}, {3.9096, -2.8234, 0.5250},
                                      {3.2856, -2.4153, 0.4853},   {2.2779, -1.6198, 0.3985}, {1.8726, -1.2307, 0.3585},
                                      {1.8564, -1.2132, 0.3568},   {1.8750, -1.2500, 0.3750}};
  static const Steps kAol = {
      {4.0098, -7.0585, 2.4635}, {3.4585, -5.5479, 2.5959}, {2.7573, -3.2939, 1.4254}, {2.7215, -3.0494, 1.3169}};
  const Steps& rows = muon.coefficients == model::MuonCoefficients::kSimple         ? kSimple
                      : muon.coefficients == model::MuonCoefficients::kQuintic      ? kQuintic
                      : muon.coefficients == model::MuonCoefficients::kPolarExpress ? kPolarExpress
                                                                                    : kAol;
  Steps steps;
  for (std::int64_t i = 0; i < muon.num_steps; ++i) {
    // Polar Express repeats its last row, the others begin again.
    const std::int64_t row = muon.coefficients == model::MuonCoefficients::kPolarExpress
                                 ? std::min<std::int64_t>(i, std::ssize(rows) - 1)
                                 : i % std::ssize(rows);
    steps.push_back(rows[static_cast<std::size_t>(row)]);
  }
  return steps;
}

double muon_factor(const model::MuonSpec& muon, std::int64_t outputs, std::int64_t inputs) {
  const auto out = static_cast<double>(outputs);
  const auto in = static_cast<double>(inputs);
  switch (muon.scale) {
    case model::MuonScale::kSpectral:
      return muon.extra_scale * std::sqrt(std::max(out, in));
    case model::MuonScale::kUnitRmsNorm:
      return muon.extra_scale * std::sqrt(out / in);
    case model::MuonScale::kShape:
      return muon.extra_scale * std::sqrt(std::max(1.0, out / in));
  }
  return 0.0;
}

/// Rows of the matrices that are made orthogonal on their own.
std::vector<std::int64_t> muon_rows(const model::MuonSpec& muon, const model::ParameterDescriptor& parameter) {
  const bool is_qkv = parameter.name.ends_with("linear_qkv.weight");
  if (is_qkv && muon.split_qkv == model::MuonSpec::SplitQkv::kOn) return parameter.shards.at(0).segments;
  return {parameter.shape[parameter.shape.size() - 2]};
}

/// The update of a matrix, or of a stack of them: orthogonal, scaled to its size.
at::Tensor muon_direction(const model::MuonSpec& muon, const model::ParameterDescriptor& parameter,
                          const at::Tensor& momentum) {
  const std::vector<ops::NewtonSchulzStep> steps = newton_schulz_steps(muon);
  std::vector<at::Tensor> parts;
  std::int64_t first = 0;
  for (const std::int64_t rows : muon_rows(muon, parameter)) {
    const at::Tensor part = momentum.narrow(-2, first, rows);
    parts.push_back(ops::newton_schulz(part, steps) * muon_factor(muon, rows, momentum.size(-1)));
    first += rows;
  }
  return at::cat(parts, -2);
}

}  // namespace

Optimizer::Optimizer(nn::ParameterStore& parameters, const model::NumericPolicy& policy,
                     const model::OptimizerSpec& spec)
    : spec_(spec), policy_(policy) {
  const ops::MemoryScope scope(ops::MemoryTag::kOptimizer);
  gate_ = ops::make_update_gate(parameters.device());
  end_gate_ = gate_;
  end_gate_.rates_2 = at::zeros_like(gate_.rates_2);
  for (const auto& parameter : parameters.all()) {
    if (!parameter->gradient().defined()) continue;
    State state{parameter.get(), spec.rule(parameter->descriptor), {}};
    const at::Tensor& weight = parameter->weight;
    if (policy.has_master_copy()) {
      state.stored.master = ops::make_state(weight, policy.master);
    }
    state.stored.first_moment = ops::make_state(weight, policy.first_moment);
    if (state.rule == OptimizerKind::kAdam) {
      state.stored.second_moment =
          ops::make_state(weight, policy.second_moment, second_moment_form(policy.second_moment));
    }
    state.stored.key = stream_id(parameter->descriptor.name);
    PRIMUS_CHECK(parameters.device().is_cpu() || is_fused(state), "{}: no GPU kernel moves this parameter",
                 parameter->descriptor.name);
    states_.push_back(std::move(state));
  }
  take_masters();
}

void Optimizer::take_masters() {
  for (State& state : states_) {
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
  std::vector<StateTensor> tensors;
  const auto add = [&](const State& state, StateTensor::Part part, const ops::StoredState& stored) {
    const std::string& name = state.parameter->descriptor.name;
    if (stored.is_held()) tensors.push_back({name, part, StateTensor::Holds::kValues, stored.values});
    if (stored.scale_B.defined()) tensors.push_back({name, part, StateTensor::Holds::kScales, stored.scale_B});
  };
  for (const State& state : states_) {
    add(state, StateTensor::Part::kMaster, state.stored.master);
    add(state, StateTensor::Part::kFirstMoment, state.stored.first_moment);
    add(state, StateTensor::Part::kSecondMoment, state.stored.second_moment);
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
  return is_at_the_ends(parameter.descriptor) ? end_gate_ : gate_;
}

void Optimizer::set_rates(const StepRates& rates) {
  std::array<double, 2> values = {rates.learning_rate, rates.weight_decay};
  gate_.rates_2.copy_(at::from_blob(values.data(), {2}, at::kDouble));
  values[0] = rates.end_learning_rate.value_or(rates.learning_rate);
  end_gate_.rates_2.copy_(at::from_blob(values.data(), {2}, at::kDouble));
}

void Optimizer::muon_update(State& state, ops::Decays decays) {
  const ops::UpdateGate& gate = gate_of(*state.parameter);
  if (*gate.proceed_1.const_data_ptr<std::int32_t>() == 0) return;
  const model::MuonSpec& muon = spec_.muon;
  at::Tensor& weight = state.parameter->weight;
  const at::ScalarType wide = ops::to_aten(policy_.statistics);
  const double* rates = gate.rates_2.const_data_ptr<double>();
  const double decay = decays == ops::Decays::kYes ? rates[1] : 0.0;
  const std::int64_t num_steps = *gate.num_steps_1.const_data_ptr<std::int64_t>();

  const at::Tensor gradient = state.parameter->gradient().to(wide) * gate.grad_scale_1.item<double>();
  at::Tensor momentum = ops::load_state(state.stored.first_moment).view(weight.sizes());
  momentum = momentum * muon.momentum + gradient * (1.0 - muon.momentum);
  ops::store_state(momentum.view({-1}), ops::rounding_of(state.stored.key, num_steps, 0), state.stored.first_moment);
  const bool is_nesterov = muon.nesterov == model::MuonSpec::Nesterov::kOn;
  const at::Tensor seen = is_nesterov ? gradient * (1.0 - muon.momentum) + momentum * muon.momentum : momentum;
  const at::Tensor direction = muon_direction(muon, state.parameter->descriptor, seen);

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
  if (state.rule == OptimizerKind::kMuon) return muon_update(state, decays);
  const ops::AdamWOptions options = options_of(spec_, state.rule);
  const ops::UpdateGate& gate = gate_of(*state.parameter);
  at::Tensor& weight = state.parameter->weight;
  if (!is_fused(state)) {
    return ops::stored_update(element_rule(state.rule), options, gate, decays, state.parameter->gradient(),
                              state.stored, weight);
  }
  at::Tensor& master = state.stored.master.is_held() ? state.stored.master.values : weight;
  ops::adamw_step(options, gate, decays, state.parameter->gradient(), master, state.stored.first_moment.values,
                  state.stored.second_moment.values, weight);
}

void Optimizer::step(const at::Tensor& loss_sum_1, const at::Tensor& square_sum_1, double clip_grad) {
  ops::close_gate(loss_sum_1, square_sum_1, clip_grad, gate_);
  for (State& state : states_) update(state);
}

}  // namespace primus::engine
