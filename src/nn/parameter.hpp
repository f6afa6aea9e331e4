#pragma once
// Parameters as tensors, made from their descriptors.
#include <map>
#include <memory>
#include <vector>

#include "model/numerics.hpp"
#include "model/parameters.hpp"
#include "ops/dtype.hpp"

namespace primus::nn {

using at::Tensor;

/// A parameter on this rank: what GEMMs read and what weight gradients are added into. A buffer has no main gradient.
struct Parameter {
  model::ParameterDescriptor descriptor;
  Tensor weight;
  Tensor main_grad;
};

/// All parameters of this rank, in the model's order.
class ParameterStore {
 public:
  /// Allocates (tagged as parameters and main gradients) and initialises: values depend on seed, name and global index
  /// only, not on the device.
  ParameterStore(std::vector<model::ParameterDescriptor> descriptors, const model::NumericPolicy& policy,
                 std::uint64_t seed, at::Device device = at::kCPU);

  at::Device device() const { return device_; }

  /// Throws InternalError if there is none of this name.
  Parameter& get(std::string_view name);
  std::vector<std::unique_ptr<Parameter>>& all() { return parameters_; }
  const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }

  /// Before the first micro-batch of a step.
  void zero_main_gradients();

 private:
  at::Device device_;
  std::vector<std::unique_ptr<Parameter>> parameters_;  // addresses stay: layers keep references
  std::map<std::string, Parameter*, std::less<>> by_name_;
};

/// Fill with the descriptor's initial values in fp64, then round to the tensor's type. Both cores work.
void initialise(const model::ParameterDescriptor& descriptor, std::uint64_t seed, Tensor& weight);

}  // namespace primus::nn
