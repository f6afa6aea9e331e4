#include "train/state_tensors.hpp"

#include "ops/adamw/adamw.hpp"
#include "ops/allocator.hpp"

namespace primus::train {
namespace {

std::string kind_of(engine::StateTensor::Part part) {
  switch (part) {
    case engine::StateTensor::Part::kMaster:
      return checkpoint::kMaster;
    case engine::StateTensor::Part::kFirstMoment:
      return checkpoint::kFirstMoment;
    case engine::StateTensor::Part::kSecondMoment:
      return checkpoint::kSecondMoment;
    case engine::StateTensor::Part::kRowAverage:
      return checkpoint::kRowAverage;
    case engine::StateTensor::Part::kColumnAverage:
      return checkpoint::kColumnAverage;
    case engine::StateTensor::Part::kRowBasis:
      return checkpoint::kRowBasis;
    case engine::StateTensor::Part::kColumnBasis:
      return checkpoint::kColumnBasis;
  }
  PRIMUS_CHECK(false, "part {}", static_cast<int>(part));
}

std::string kind_of(const engine::StateTensor& state) {
  const std::string kind = kind_of(state.part);
  return state.holds == engine::StateTensor::Holds::kScales ? kind + checkpoint::kScaleEnding : kind;
}

std::span<const std::byte> bytes_of(const at::Tensor& host) {
  return {static_cast<const std::byte*>(host.const_data_ptr()), static_cast<std::size_t>(host.nbytes())};
}

/// Elements [begin, begin + count) on the host.
at::Tensor part_of(const NamedTensor& tensor, std::int64_t begin, std::int64_t count) {
  const auto part = [&](const at::Tensor& all) { return all.view({-1}).narrow(0, begin, count).to(at::kCPU); };
  return tensor.low_bits.defined() ? ops::join_halves(part(tensor.values), part(tensor.low_bits)) : part(tensor.values);
}

/// A tensor of a GPU comes over in parts, so that the host holds one of them.
void stream_in_parts(const NamedTensor& tensor, const checkpoint::Sink& sink) {
  constexpr std::int64_t kElements = std::int64_t{1} << 22;
  const std::int64_t count = tensor.values.numel();
  for (std::int64_t begin = 0; begin < count; begin += kElements)
    sink(bytes_of(part_of(tensor, begin, std::min(kElements, count - begin))));
}

}  // namespace

void NamedTensor::set(const at::Tensor& host) const {
  at::Tensor target = values;
  if (!low_bits.defined()) return static_cast<void>(target.copy_(host));
  at::Tensor weight = at::empty(values.sizes(), at::kBFloat16);
  at::Tensor low = at::empty(values.sizes(), at::kShort);
  ops::split_halves(host, weight, low);
  target.copy_(weight);
  at::Tensor target_low = low_bits;
  target_low.copy_(low);
}

const checkpoint::ElementType& element_type_of(at::ScalarType type) {
  for (const DType dtype :
       {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8, DType::kUInt8}) {
    if (ops::to_aten(dtype) == type) return checkpoint::element_type(dtype);
  }
  PRIMUS_CHECK(false, "state of type {}", c10::toString(type));
}

std::vector<NamedTensor> state_tensors(const nn::ParameterStore& parameters, const engine::Optimizer& optimizer,
                                       OptimizerState optimizer_state) {
  std::vector<NamedTensor> tensors;
  for (const auto& parameter : parameters.all())
    tensors.push_back({parameter->descriptor.name, checkpoint::kWeight, parameter->weight});
  if (optimizer_state == OptimizerState::kLeftOut) return tensors;
  for (const engine::StateTensor& state : optimizer.state_tensors())
    tensors.push_back({state.parameter, kind_of(state), state.tensor, state.low_bits});
  return tensors;
}

std::vector<NamedTensor> host_copies(const std::vector<NamedTensor>& tensors) {
  const ops::MemoryScope scope(ops::MemoryTag::kWorkspace);
  std::vector<NamedTensor> copies;
  copies.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) {
    copies.push_back(
        {tensor.name, tensor.kind, part_of(tensor, 0, tensor.values.numel()).view(tensor.values.sizes()).clone()});
  }
  return copies;
}

checkpoint::TensorSource source_of(const NamedTensor& tensor) {
  PRIMUS_CHECK(tensor.values.is_contiguous(), "{}", tensor.name);
  return {.name = tensor.name,
          .kind = tensor.kind,
          .type = &element_type_of(tensor.type()),
          .shape = tensor.values.sizes().vec(),
          .stream = [tensor](const checkpoint::Sink& sink) {
            if (tensor.values.is_cpu() && !tensor.low_bits.defined()) return sink(bytes_of(tensor.values));
            stream_in_parts(tensor, sink);
          }};
}

}  // namespace primus::train
