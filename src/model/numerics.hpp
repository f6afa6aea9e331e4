#pragma once
// Element types of a run: one policy object that projection and trainer read (DESIGN section 7).
#include <optional>

#include "base/dtype.hpp"
#include "config/experiment.hpp"

namespace primus::model {

/// Is an fp32 master copy held whole, or as the low 16 bits that the bf16 weight lacks?
enum class MasterForm { kWhole, kBesideWeight };

struct NumericPolicy {
  DType parameters = DType::kFloat32;      // what GEMMs read
  DType activations = DType::kFloat32;     // saved tensors, and the residual stream unless `residual` says otherwise
  std::optional<DType> residual;           // of the residual stream
  std::optional<DType> logits;             // of the output logits, if another than the activations'
  DType statistics = DType::kFloat32;      // rstd, log-sum-exp, losses; what gradients are added up in
  DType router = DType::kFloat32;          // logits and probabilities
  DType main_gradients = DType::kFloat32;  // held over micro-batches
  DType master = DType::kFloat32;          // what the optimizer updates
  MasterForm master_form = MasterForm::kWhole;
  DType first_moment = DType::kFloat32;
  DType second_moment = DType::kFloat32;

  DType residual_type() const { return residual.value_or(activations); }
  DType logit_type() const { return logits.value_or(activations); }
  /// Does the optimizer keep a master copy beside the weights? fp16 masters have scales, which fp16 weights lack.
  bool has_master_copy() const { return master != parameters || parameters == DType::kFloat16; }
};

/// The policy of a run on a GPU: fp32 masters of bf16 weights are held beside them.
NumericPolicy gpu_policy(NumericPolicy policy);

/// fp32, or bf16 or fp16 beside fp32, and the optimizer's types with use_precision_aware_optimizer.
NumericPolicy numeric_policy(const config::Experiment& experiment);

/// Everything in fp64: what the proofs against autograd run in (decision 11).
NumericPolicy float64_policy();

}  // namespace primus::model
