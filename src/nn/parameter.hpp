#pragma once
// Parameters as tensors, made from their descriptors.
#include <map>
#include <memory>
#include <vector>

#include "model/numerics.hpp"
#include "model/parameters.hpp"
#include "ops/dtype.hpp"
#include "ops/write.hpp"

namespace primus::nn {

using at::Tensor;

/// Where a weight gradient goes, and whether it is the first one of the step.
struct GradientTarget {
  Tensor& sum;
  ops::Write write;
};

/// Has anything been added to a main gradient since the step began? If not, its memory holds nothing of meaning.
/// kSquared: it is whole, and its squares are in the parameter's square_sum_1.
enum class GradientSum { kEmpty, kBegun, kSquared };

/// A parameter on this rank: what GEMMs read and what weight gradients are added into. A buffer has no main gradient.
struct Parameter {
  model::ParameterDescriptor descriptor;
  Tensor weight;
  Tensor main_grad;     // in the accumulator's type; where gradients are held narrower, there while a window is open
  Tensor held_grad;     // narrower gradients between windows
  Tensor square_sum_1;  // fp64, shared; defined: the first product is the whole gradient, whose squares may go there
  at::ScalarType sum_type = at::kFloat;
  at::ScalarType held_type = at::kFloat;
  GradientSum state = GradientSum::kEmpty;

  bool is_trained() const { return descriptor.trained == model::Trained::kYes; }
  bool is_held_narrower() const { return held_type != sum_type; }

  /// What reduction, norm and optimizer read; undefined for a buffer, and before backward where it is not resident.
  Tensor& gradient() { return is_held_narrower() ? held_grad : main_grad; }
  const Tensor& gradient() const { return is_held_narrower() ? held_grad : main_grad; }

  /// For an op that can overwrite: the sum, allocated if it is not there. The caller writes all of it.
  GradientTarget product_target();
  /// For an op that can only add: the sum, zeroed if nothing has been added yet.
  Tensor& sum_target();
};

/// Between steps, and in forward: are the main gradients' memory kept, or given back? (decision 18)
enum class GradientMemory { kResident, kReleased };

/// All parameters of this rank, in the model's order.
class ParameterStore {
 public:
  /// Allocates (tagged as parameters and, on a CPU, main gradients, zeroed) and initialises: values depend on seed,
  /// name and global index only, not on the device.
  ParameterStore(std::vector<model::ParameterDescriptor> descriptors, const model::NumericPolicy& policy,
                 std::uint64_t seed, at::Device device = at::kCPU);

  at::Device device() const { return device_; }

  /// Throws InternalError if there is none of this name.
  Parameter& get(std::string_view name);
  std::vector<std::unique_ptr<Parameter>>& all() { return parameters_; }
  const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }

  /// Before the first micro-batch of a step: what was summed is forgotten. Nothing is zeroed: the first gradient of
  /// each parameter overwrites. `square_sum_1`: defined where each gradient of this step is one product; takes the
  /// squares of those that can be summed as they are written.
  void begin_gradients(GradientMemory memory, const Tensor& square_sum_1 = {});
  /// After the last backward: gradients that nothing was added to become 0.
  void complete_gradients();

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
