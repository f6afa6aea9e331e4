#pragma once
// Recomputation: which saved tensors are dropped after forward and made again in backward, as marks on the layers' own
// declarations. Layers read the marks (nn/saved.hpp); there is no second list of what a layer keeps.
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
RecomputeSpec recompute_spec(const config::Experiment& experiment, const ModelSpec& spec);

/// Marks what is made again in the declaration of one layer (layer_saved) or of the model (model_saved).
void mark_recomputed_layer(const ModelSpec& spec, const RecomputeSpec& recompute, int layer,
                           SavedDeclaration& declared);
void mark_recomputed(const ModelSpec& spec, const RecomputeSpec& recompute, SavedDeclaration& model);

}  // namespace primus::model
