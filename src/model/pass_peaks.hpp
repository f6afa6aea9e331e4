#pragma once
// The most that a micro-batch's passes hold at one time, from what the layers declare and from a walk over the same
// code in bytes (pass_context.hpp): tensors kept for backward, the layers' tensors of a moment, the ops' own.
#include "model/op_scratch.hpp"
#include "model/pass_ledger.hpp"
#include "model/recompute.hpp"

namespace primus::model {

/// Main gradients: resident and so none of a pass's tensors, or allocated by the pass that first reaches them
/// (decision 18; a step of one micro-batch on a GPU). A layer's count from the beginning of its backward pass on.
enum class PassGradients { kResident, kAsTheyCome };

/// A stage of a model, or all of it (whole_model), and one of its micro-batches.
struct PassInput {
  const ModelSpec& spec;
  const NumericPolicy& policy;
  BatchShape batch;
  LossFusion fusion = LossFusion::kUnfused;
  StageContent content;
  Sharding sharding = {};
  OpScratch scratch = {};
  PassGradients gradients = PassGradients::kResident;
  std::optional<std::int64_t> left_out = {};  // number of a workspace tensor: see PassLedger
};

struct MicroBatchPeaks {
  PassPeaks forward;
  PassPeaks backward;
  std::int64_t num_tensors = 0;  // of workspace, in both
  std::int64_t left = 0;         // bytes still held behind backward: none
};

/// `stage`: the stage's declaration (stage_saved), marked (mark_recomputed_stage) or not. Where prediction depths mix
/// hidden states, as if each part gave every row.
MicroBatchPeaks pass_peaks(const PassInput& input, const SavedDeclaration& stage);

}  // namespace primus::model
