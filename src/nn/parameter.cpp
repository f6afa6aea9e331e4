#include "nn/parameter.hpp"

#include "base/philox.hpp"
#include "ops/allocator.hpp"
#include "ops/zone.hpp"

namespace primus::nn {

namespace {

constexpr std::int64_t kValuesPerTask = 1 << 14;

template <typename Value>
void fill(Tensor& weight, const Value& value_of_index) {
  ops::dispatch_floating(weight.scalar_type(), "initialise", [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* values = weight.data_ptr<T>();
    at::parallel_for(0, weight.numel(), kValuesPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) values[i] = static_cast<T>(value_of_index(i));
    });
  });
}

void allocate_gradient(const Parameter& parameter, at::ScalarType type, Tensor& gradient) {
  const ops::MemoryScope scope(ops::MemoryTag::kMainGradients);
  gradient = at::empty(parameter.descriptor.shape, parameter.weight.options().dtype(type));
}

void zero_gradient(Parameter& parameter) {
  Tensor& gradient = parameter.gradient();
  if (!gradient.defined()) allocate_gradient(parameter, parameter.held_type, gradient);
  gradient.zero_();
  parameter.state = GradientSum::kBegun;
}

}  // namespace

GradientTarget Parameter::product_target() {
  if (!main_grad.defined()) {
    PRIMUS_CHECK(is_trained() && !is_held_narrower(), "{}: a gradient outside of a window", descriptor.name);
    allocate_gradient(*this, sum_type, main_grad);
  }
  PRIMUS_CHECK(state != GradientSum::kSquared, "{}: a second term after its squares were added", descriptor.name);
  const bool is_first = std::exchange(state, GradientSum::kBegun) == GradientSum::kEmpty;
  return {main_grad, is_first ? ops::Write::kOverwrite : ops::Write::kAccumulate};
}

Tensor& Parameter::sum_target() {
  const auto [sum, write] = product_target();
  if (write == ops::Write::kOverwrite) sum.zero_();
  return sum;
}

void initialise(const model::ParameterDescriptor& descriptor, std::uint64_t seed, Tensor& weight) {
  switch (descriptor.init.kind) {
    case model::InitKind::kOnes:
      fill(weight, [](std::int64_t) { return 1.0; });
      return;
    case model::InitKind::kZeros:
      fill(weight, [](std::int64_t) { return 0.0; });
      return;
    case model::InitKind::kConstant:
      fill(weight, [&](std::int64_t) { return descriptor.init.value; });
      return;
    case model::InitKind::kUniform: {
      const Philox generator(seed, descriptor.name);
      const double bound = descriptor.init.bound;
      fill(weight,
           [&](std::int64_t i) { return bound * (2.0 * generator.uniform(static_cast<std::uint64_t>(i)) - 1.0); });
      return;
    }
    case model::InitKind::kLogOfUniform: {
      const Philox generator(seed, descriptor.name);
      const auto [low, high] = std::pair{descriptor.init.low, descriptor.init.high};
      fill(weight, [&](std::int64_t i) {
        return std::log(low + (high - low) * generator.uniform(static_cast<std::uint64_t>(i)));
      });
      return;
    }
    case model::InitKind::kStepBias: {
      const Philox generator(seed, descriptor.name);
      const auto [low, high] = std::pair{std::log(descriptor.init.low), std::log(descriptor.init.high)};
      fill(weight, [&](std::int64_t i) {
        const double step = std::exp(low + (high - low) * generator.uniform(static_cast<std::uint64_t>(i)));
        return std::log(std::expm1(step));
      });
      return;
    }
    case model::InitKind::kNormal: {
      const Philox generator(seed, descriptor.name);
      const double std = descriptor.init.std;
      fill(weight, [&](std::int64_t i) { return std * generator.normal(static_cast<std::uint64_t>(i)); });
      return;
    }
  }
}

ParameterStore::ParameterStore(std::vector<model::ParameterDescriptor> descriptors, const model::NumericPolicy& policy,
                               std::uint64_t seed, at::Device device)
    : device_(device) {
  for (model::ParameterDescriptor& descriptor : descriptors) {
    auto parameter = std::make_unique<Parameter>();
    {
      const ops::MemoryScope scope(ops::MemoryTag::kParameters);
      // Buffers steer routing in fp32 whatever the weights are (semantics.md 1.1).
      const bool trained = descriptor.trained == model::Trained::kYes;
      const at::ScalarType dtype = ops::to_aten(trained ? policy.parameters : policy.router);
      Tensor values = at::empty(descriptor.shape, dtype);
      initialise(descriptor, seed, values);
      parameter->weight = values.to(device);
    }
    parameter->descriptor = std::move(descriptor);
    const bool is_narrow = size_bytes(policy.main_gradients) < size_bytes(policy.statistics);
    parameter->held_type = ops::to_aten(policy.main_gradients);
    parameter->sum_type = is_narrow ? ops::accumulator_type(parameter->weight.scalar_type()) : parameter->held_type;
    // On a GPU the first backward allocates them.
    if (parameter->is_trained() && device.is_cpu()) zero_gradient(*parameter);
    const bool is_new = by_name_.emplace(parameter->descriptor.name, parameter.get()).second;
    PRIMUS_CHECK(is_new, "two parameters are called {}", parameter->descriptor.name);
    parameters_.push_back(std::move(parameter));
  }
}

Parameter& ParameterStore::get(std::string_view name) {
  const auto found = by_name_.find(name);
  PRIMUS_CHECK(found != by_name_.end(), "there is no parameter {}", name);
  return *found->second;
}

void ParameterStore::begin_gradients(GradientMemory memory, const Tensor& square_sum_1) {
  for (const auto& parameter : parameters_) {
    parameter->state = GradientSum::kEmpty;
    parameter->square_sum_1 = parameter->is_held_narrower() ? Tensor() : square_sum_1;
    if (memory == GradientMemory::kReleased) parameter->gradient().reset();
  }
}

void ParameterStore::complete_gradients() {
  const ops::ZoneScope zone(ops::Zone::kZeroGradients);
  for (const auto& parameter : parameters_) {
    if (parameter->is_trained() && parameter->state == GradientSum::kEmpty) zero_gradient(*parameter);
  }
}

std::vector<Parameter*> ParameterStore::of_layer(int layer) {
  std::vector<Parameter*> found;
  for (const auto& parameter : parameters_) {
    if (parameter->descriptor.layer == layer) found.push_back(parameter.get());
  }
  return found;
}

GradientWindow::GradientWindow(ParameterStore& parameters, int layer) {
  for (Parameter* parameter : parameters.of_layer(layer)) {
    // One that is open already (the shared output layer of a prediction depth) is its opener's to close.
    if (!parameter->is_trained() || !parameter->is_held_narrower() || parameter->main_grad.defined()) continue;
    parameter->main_grad =
        at::empty(parameter->descriptor.shape, parameter->weight.options().dtype(parameter->sum_type));
    if (parameter->state == GradientSum::kBegun) parameter->main_grad.copy_(parameter->held_grad);
    open_.push_back(parameter);
  }
}

GradientWindow::~GradientWindow() {
  for (Parameter* parameter : open_) {
    if (parameter->state == GradientSum::kBegun) {
      if (!parameter->held_grad.defined()) allocate_gradient(*parameter, parameter->held_type, parameter->held_grad);
      parameter->held_grad.copy_(parameter->main_grad);
    }
    parameter->main_grad.reset();
  }
}

}  // namespace primus::nn
