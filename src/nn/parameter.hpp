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
  Tensor main_grad;  // in the accumulator's type; where gradients are held narrower, there while a window is open
  Tensor held_grad;  // narrower gradients between windows; else undefined

  /// What reduction, norm and optimizer read; undefined for a buffer.
  Tensor& gradient() { return held_grad.defined() ? held_grad : main_grad; }
  const Tensor& gradient() const { return held_grad.defined() ? held_grad : main_grad; }
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

  /// Those of one layer by its global number; -1: those outside the layers.
  std::vector<Parameter*> of_layer(int layer);

 private:
  at::Device device_;
  std::vector<std::unique_ptr<Parameter>> parameters_;  // addresses stay: layers keep references
  std::map<std::string, Parameter*, std::less<>> by_name_;
};

/// Where main gradients are held in a narrower type than they are added up in: while a window is open, those of one
/// layer stand in the wide type, and are rounded when it closes. Elsewhere a window does nothing.
class GradientWindow {
 public:
  GradientWindow(ParameterStore& parameters, int layer);
  ~GradientWindow();
  GradientWindow(const GradientWindow&) = delete;
  GradientWindow& operator=(const GradientWindow&) = delete;

 private:
  std::vector<Parameter*> open_;
};

/// Fill with the descriptor's initial values in fp64, then round to the tensor's type. Both cores work.
void initialise(const model::ParameterDescriptor& descriptor, std::uint64_t seed, Tensor& weight);

}  // namespace primus::nn
