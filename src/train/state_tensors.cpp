#include "train/state_tensors.hpp"

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

/// A tensor of a GPU comes over in parts, so that the host holds one of them.
void stream_from_device(const at::Tensor& values, const checkpoint::Sink& sink) {
  constexpr std::int64_t kElements = std::int64_t{1} << 22;
  const at::Tensor flat = values.view({-1});
  for (std::int64_t begin = 0; begin < flat.numel(); begin += kElements)
    sink(bytes_of(flat.narrow(0, begin, std::min(kElements, flat.numel() - begin)).to(at::kCPU)));
}

}  // namespace

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
    tensors.push_back({state.parameter, kind_of(state), state.tensor});
  return tensors;
}

std::vector<NamedTensor> host_copies(const std::vector<NamedTensor>& tensors) {
  const ops::MemoryScope scope(ops::MemoryTag::kWorkspace);
  std::vector<NamedTensor> copies;
  copies.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) {
    at::Tensor copy = at::empty(tensor.values.sizes(), tensor.values.options().device(at::kCPU));
    copies.push_back({tensor.name, tensor.kind, copy.copy_(tensor.values)});
  }
  return copies;
}

checkpoint::TensorSource source_of(const NamedTensor& tensor) {
  PRIMUS_CHECK(tensor.values.is_contiguous(), "{}", tensor.name);
  return {.name = tensor.name,
          .kind = tensor.kind,
          .type = &element_type_of(tensor.values.scalar_type()),
          .shape = tensor.values.sizes().vec(),
          .stream = [values = tensor.values](const checkpoint::Sink& sink) {
            if (values.is_cpu()) return sink(bytes_of(values));
            stream_from_device(values, sink);
          }};
}

}  // namespace primus::train
