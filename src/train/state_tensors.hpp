#pragma once
// The tensors of a run's state, with the names that they have in a checkpoint.
#include "checkpoint/checkpoint_writer.hpp"
#include "engine/optimizer.hpp"

namespace primus::train {

enum class OptimizerState { kLeftOut, kIncluded };

struct NamedTensor {
  std::string name;
  std::string kind;  // checkpoint::kWeight and so on
  at::Tensor values;
  at::Tensor low_bits = {};  // defined: `values` are bf16 weights, and what is meant are the fp32 masters of both

  at::ScalarType type() const { return low_bits.defined() ? at::kFloat : values.scalar_type(); }
  /// Takes over what a checkpoint has, from the host.
  void set(const at::Tensor& host) const;
};

/// Parameters and buffers in the model's order, then the optimizer's state. They share memory with the run.
std::vector<NamedTensor> state_tensors(const nn::ParameterStore& parameters, const engine::Optimizer& optimizer,
                                       OptimizerState optimizer_state);

/// Copies in the host's memory, which do not change when training goes on.
std::vector<NamedTensor> host_copies(const std::vector<NamedTensor>& tensors);

/// What gives a tensor's bytes; it shares memory with the tensor.
checkpoint::TensorSource source_of(const NamedTensor& tensor);

const checkpoint::ElementType& element_type_of(at::ScalarType type);

}  // namespace primus::train
