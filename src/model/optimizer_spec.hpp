#pragma once
// Which optimizer a run has, and what it holds for each parameter: the trainer allocates it, the projection adds it up.
#include <span>
#include <vector>

#include "config/experiment.hpp"
#include "model/numerics.hpp"
#include "model/parameters.hpp"
#include "model/sharding.hpp"

namespace primus::model {

/// kAdaptiveMuon: Muon with second moments of its directions. kSoap: Adam in the eigenbasis of the gradients' moments.
enum class OptimizerKind { kAdam, kSgd, kLion, kMuon, kAdaptiveMuon, kSoap };

/// Does this rule move matrices as matrices, so that what is none needs another one?
constexpr bool moves_matrices(OptimizerKind kind) {
  return kind == OptimizerKind::kMuon || kind == OptimizerKind::kAdaptiveMuon || kind == OptimizerKind::kSoap;
}
constexpr bool has_second_moment(OptimizerKind kind) {
  return kind == OptimizerKind::kAdam || kind == OptimizerKind::kAdaptiveMuon || kind == OptimizerKind::kSoap;
}

/// How an orthogonal update is scaled to the matrix.
enum class MuonScale { kSpectral, kUnitRmsNorm, kShape };

/// Coefficients of the Newton-Schulz iteration, by the names that Megatron gives them.
enum class MuonCoefficients { kSimple, kQuintic, kPolarExpress, kAol };

struct MuonSpec {
  double momentum = 0.95;
  enum class Nesterov { kOff, kOn } nesterov = Nesterov::kOff;
  enum class SplitQkv { kOff, kOn } split_qkv = SplitQkv::kOn;  // queries, keys and values as matrices of their own
  MuonScale scale = MuonScale::kSpectral;
  double extra_scale = 1.0;
  MuonCoefficients coefficients = MuonCoefficients::kQuintic;
  std::int64_t num_steps = 5;
  double second_decay = 0.95;    // of kAdaptiveMuon's second moments
  double second_epsilon = 1e-8;  // added to their root
};

/// Where a parameter's master copy and moments are kept: on the device that moves it, or in the host's memory, which a
/// GPU reads and writes over its bus (optimizer_cpu_offload).
enum class StatePlace { kDevice, kHost };

struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kAdam;
  OptimizerKind scalar_kind = OptimizerKind::kAdam;  // beside a rule of matrices: of what is none between layers
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double sgd_momentum = 0.9;
  double lion_beta1 = 0.95;
  double lion_beta2 = 0.98;
  MuonSpec muon;
  enum class QkNormDecay { kNo, kYes } qk_norm_decay = QkNormDecay::kNo;  // norms on queries and keys decay after all
  double width = 1.0;          // of the model over its base's, where learning rates are scaled by it
  double host_fraction = 0.0;  // of the layers, whose state a GPU's run keeps on the host

  /// The rule by which this parameter moves; by a rule of matrices those other than embedding and output do.
  OptimizerKind rule(const ParameterDescriptor& parameter) const;
  Decay decay(const ParameterDescriptor& parameter) const;

  /// On a GPU. Layers on the host are spread evenly; what is in no layer goes there with all of them.
  StatePlace place(const ParameterDescriptor& parameter) const { return place(parameter.layer); }
  StatePlace place(int layer) const;

  /// Factor on the learning rate by width: matrices other than the embedding move 1/width as fast by Adam and Lion;
  /// everything else `width` times as fast by SGD. Muon's step knows the width already.
  double rate_factor(const ParameterDescriptor& parameter) const;
  /// Factor on Adam's epsilon, alike; where another optimizer has the matrices there is none.
  double epsilon_factor(const ParameterDescriptor& parameter) const;
};

OptimizerSpec optimizer_spec(const config::Experiment& experiment);

/// Elements that share a scale where state is held in fp8 or fp16.
inline constexpr std::int64_t kStateBlock = 128;

/// Bytes of `num_elements` values held in `type`, their scales included.
std::int64_t state_bytes(DType type, std::int64_t num_elements);

/// Master copy and moments of one parameter (none for a buffer).
std::int64_t optimizer_bytes(const OptimizerSpec& optimizer, const NumericPolicy& policy,
                             const ParameterDescriptor& parameter);

/// Among how many ranks each kind of state is divided: those that sum a dense parameter's gradient, and an expert's.
struct StateParts {
  std::int64_t dense = 1;
  std::int64_t expert = 1;

  std::int64_t of(const ParameterDescriptor& parameter) const {
    return parameter.reduction == GradReduction::kExpertDataParallel ? expert : dense;
  }
};

/// How a rank's resident state is divided, over the shards of the model (Sharding) and over the data ranks.
struct ResidentSharding {
  Sharding model;
  StateParts parameters;  // more than one part: fully sharded data parallelism
  StateParts gradients;
  StateParts optimizer;  // more than one part: the distributed optimizer
};

/// What a run holds from its first step to its last, beside activations.
struct ResidentBytes {
  std::int64_t parameters = 0;
  std::int64_t main_gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t optimizer_on_host = 0;  // in the host's memory, which is none of the device's

  /// On the device.
  std::int64_t total() const { return parameters + main_gradients + optimizer; }
  ResidentBytes& operator+=(const ResidentBytes& other);
};

/// Divided state is cut evenly over the ranks, each parameter's last part filled up.
ResidentBytes resident_bytes(std::span<const ParameterDescriptor> parameters, const OptimizerSpec& optimizer,
                             const NumericPolicy& policy, const ResidentSharding& sharding = {});

/// At most what the update holds for a moment. Rules of elements: nothing. Rules of matrices, which a CPU alone has,
/// work on one parameter at a time in the statistics' type.
std::int64_t update_workspace(std::span<const ParameterDescriptor> parameters, const OptimizerSpec& optimizer,
                              const NumericPolicy& policy);

}  // namespace primus::model
