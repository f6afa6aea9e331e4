#pragma once
// Recomputation: which saved tensors are dropped after forward and made again in backward, as marks on the layers' own
// declarations. Layers read the marks (nn/saved.hpp); there is no second list of what a layer keeps.
#include <span>
#include <string_view>
#include <vector>

#include "config/experiment.hpp"
#include "model/saved_tensors.hpp"

namespace primus::model {

/// A part of every layer that runs again. kLayerNorm and kMoeActivation name outputs that no layer here keeps.
enum class RecomputeModule { kCoreAttention, kMlaUpProjection, kMoeActivation, kLayerNorm, kMlp, kMoe, kSharedExperts };

/// How much of one layer is made again: kAll of the layers of a group behind its first.
enum class LayerRecompute { kNone, kAllButInput, kAll };

struct RecomputeSpec {
  /// By layer, the prediction depths' behind the decoder's; empty: none.
  std::vector<LayerRecompute> layers;
  std::vector<RecomputeModule> modules;

  bool has(RecomputeModule module) const;
  LayerRecompute of(int layer) const;
};

/// Name in recompute_modules.
std::string_view name(RecomputeModule module);

/// From recompute_granularity, recompute_method, recompute_num_layers, recompute_layer_ids and recompute_modules.
/// Groups and counts of layers begin anew on every stage: `layers_by_stage`, in order; none: the model is one stage.
RecomputeSpec recompute_spec(const config::Experiment& experiment, const ModelSpec& spec,
                             std::span<const int> layers_by_stage = {});

/// Marks what is made again in the declaration of one layer (layer_saved) or of the model (model_saved).
void mark_recomputed_layer(const ModelSpec& spec, const RecomputeSpec& recompute, int layer,
                           SavedDeclaration& declared);
void mark_recomputed(const ModelSpec& spec, const RecomputeSpec& recompute, SavedDeclaration& model);

/// The same in stage_saved's declaration.
void mark_recomputed_stage(const ModelSpec& spec, const RecomputeSpec& recompute, const StageContent& content,
                           SavedDeclaration& stage);

}  // namespace primus::model
