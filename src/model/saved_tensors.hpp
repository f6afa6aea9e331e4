#pragma once
// What each layer keeps from forward to backward, declared: the projection adds it up, the trainer allocates from it.
// Legend: T tokens of a micro-batch, S sequence, B = T/S, H hidden, C of all residual streams, A heads, E experts, K
// top_k, L width of the experts' latent space, R rows of all experts (T·K, or what their capacity leaves), F ffn width.
// With a Sharding they are one rank's.
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/model_spec.hpp"
#include "model/numerics.hpp"
#include "model/sharding.hpp"
#include "model/stage_content.hpp"

namespace primus::model {

/// Under which heading saved bytes are reported and held bytes are counted.
enum class SavedCategory { kResidual, kNorm, kAttention, kDenseMlp, kRouter, kExperts, kSharedExperts, kLoss };
inline constexpr int kNumSavedCategories = 8;
std::string_view name(SavedCategory category);

/// kRemade: dropped after forward and made again when backward needs it (recompute.hpp). kPinned: kept whatever is made
/// again, because other layers read it too.
enum class Lifetime { kKept, kRemade, kPinned };

/// One saved tensor. A tensor that this model does not need has no elements and is not allocated.
struct SavedTensor {
  std::string_view name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::kFloat32;
  SavedCategory category = SavedCategory::kResidual;
  Lifetime lifetime = Lifetime::kKept;

  std::int64_t num_elements() const;
  std::int64_t size_bytes() const { return num_elements() * primus::size_bytes(dtype); }
};

/// A layer's declaration: its tensors in the order of its slot enum, and its sublayers'.
struct SavedDeclaration {
  std::vector<SavedTensor> tensors;
  std::vector<SavedDeclaration> children;

  /// Held from forward to backward.
  std::int64_t size_bytes() const;
  /// Adds this declaration's held bytes by category to `bytes` (kNumSavedCategories entries).
  void add_by_category(std::int64_t* bytes) const;
  /// What backward makes again, on top of size_bytes() while it works on this part.
  std::int64_t remade_bytes() const;
};

/// Size of a micro-batch.
struct BatchShape {
  std::int64_t num_sequences = 0;
  std::int64_t seq_length = 0;
  std::int64_t num_tokens() const { return num_sequences * seq_length; }
};

/// Slots, in the order of the declarations below.
struct MlaSlot {
  enum : int {
    kQueryDown,
    kQueryDownRstd,
    kKvDown,
    kKvDownRstd,
    kQuery,
    kKey,
    kValue,
    kContext,
    kLogSumExp,
    kGate,
    kSelected
  };
};
struct GqaSlot {
  enum : int { kQkv, kContext, kLogSumExp, kQueryRstd, kKeyRstd };
};
struct GatedDeltaSlot {
  enum : int { kProjected, kContext };
};
struct KimiDeltaSlot {
  enum : int { kProjected, kLowRank, kContext };
};
struct ShortConvolutionSlot {
  enum : int { kProjected };
};
struct MlpSlot {
  enum : int { kPreActivation };
};
struct MoeSlot {
  enum : int {
    kLogits,
    kIndex,
    kProb,
    kSlope,
    kOffsets,
    kRowOf,
    kSlotOf,
    kPreActivation,
    kSharedPreActivation,
    kSharedGate,
    kLatentInput,
    kLatentOutput,
    kLatentRstd,
    kReceived
  };
};
struct LayerSlot {
  enum : int { kInput, kInputRstd, kMiddle, kMiddleRstd, kInputMix, kMixerOutput, kMiddleMix, kMlpOutput };
  enum : int { kMixer, kMlp };  // children
};
/// kInputMix and the slots behind it, and kMix below: of several residual streams (ModelSpec::hyper), what the weights
/// of reading and writing are made of, and what was written. kReceived above: rows that other ranks sent to this rank's
/// experts. Without experts elsewhere they are gathered again; from elsewhere that would be a second exchange, so they
/// are kept. kHiddenGradient: fused loss only, the gradient that forward already computed; kLogits: unfused loss only.
struct OutputSlot {
  enum : int { kInput, kRstd, kHiddenGradient, kLogits, kMix };
};

/// A multi-token prediction depth; the layer's kInput is the joined projection's output.
struct MtpSlot {
  enum : int { kEmbeddingRstd, kHiddenRstd };
  enum : int { kLayer, kOutput };  // children
};

enum class LossFusion { kFused, kUnfused };

/// Is it known what a mixer of this kind keeps?
bool has_saved_tensors(MixerKind mixer);

/// What mixes the tokens of a layer: see ModelSpec::mixer. In saved_mixers.cpp.
SavedDeclaration mixer_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, int layer,
                             const Sharding& sharding = {});
SavedDeclaration dense_mlp_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch,
                                 const Sharding& sharding = {});
SavedDeclaration moe_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch,
                           const Sharding& sharding = {});
SavedDeclaration layer_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, int layer,
                             const Sharding& sharding = {});
SavedDeclaration output_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, LossFusion fusion,
                              const Sharding& sharding = {});
SavedDeclaration mtp_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, LossFusion fusion,
                           int depth, const Sharding& sharding = {});

/// All of a micro-batch on one stage: its layers in order, the output, the prediction depths. Where depths and output
/// are apart, the depths' own outputs stand behind the main one. Nothing is made again: mark_recomputed
/// (recompute.hpp) says what is.
SavedDeclaration stage_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, LossFusion fusion,
                             const StageContent& content, const Sharding& sharding = {});

/// The same of a model that is not cut.
SavedDeclaration model_saved(const ModelSpec& spec, const NumericPolicy& policy, BatchShape batch, LossFusion fusion);

}  // namespace primus::model
