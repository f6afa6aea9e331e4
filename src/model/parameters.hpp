#pragma once
// Descriptors of every parameter (D3): name, global shape, how it is split and reduced, how it starts, what Hugging
// Face calls it.
#include <cstdint>
#include <string>
#include <vector>

#include "model/model_spec.hpp"
#include "model/stage_content.hpp"

namespace primus::model {

/// Part of the model that a parameter or a saved tensor belongs to; reports add up by it.
enum class Component {
  kEmbedding,
  kNorm,
  kAttention,
  kDenseMlp,
  kRouter,
  kExperts,
  kSharedExperts,
  kOutput,
  kExpertLatent,
  kPrediction,  // what joins a prediction depth's two inputs
  kHyperConnections,
};
inline constexpr int kNumComponents = 11;
std::string_view name(Component component);

enum class ShardGroup { kTensor, kExpert, kExpertTensor };

/// One split of a parameter: `axis` is cut evenly over `group`. `segments` (sizes along the axis, empty: one) are cut
/// one by one: gate and up of a fused projection each keep their share on every rank.
struct Shard {
  int axis = 0;
  ShardGroup group = ShardGroup::kTensor;
  std::vector<std::int64_t> segments;
};

/// What the tensor-parallel ranks' gradients of an unsplit parameter are: whole on each, or parts to be added up
/// (each rank saw its own share of the sequence or of the heads).
enum class TensorGradient { kWhole, kPartial };

/// Over which ranks a gradient is summed: all that saw other tokens (DP×CP), or those that hold the same experts.
enum class GradReduction { kDataParallel, kExpertDataParallel };

/// kUniform: between −bound and bound. kLogOfUniform: the logarithm of what lies between low and high. kStepBias: what
/// has a softplus whose logarithm lies evenly between those of low and high.
enum class InitKind { kNormal, kUniform, kOnes, kZeros, kConstant, kLogOfUniform, kStepBias };
struct Init {
  InitKind kind = InitKind::kNormal;
  double std = 0.0;
  double bound = 0.0;
  double low = 1.0;
  double high = 1.0;
  double value = 0.0;  // of kConstant
};

/// kTaps: a filter for each channel, [C, 1, K]; else one axis, a matrix, or a stack of them.
enum class ParameterLayout { kMatrices, kTaps };

enum class Decay { kNo, kYes };
enum class Trained { kNo, kYes };  // kNo: a buffer, such as the router's expert bias

/// One Hugging Face tensor, or rows of one, that are a slice of the parameter: `name` may hold {e} for the expert
/// number.
struct HuggingFaceSlice {
  std::string name;
  std::int64_t begin = 0;  // along the row axis (0; 1 behind the expert axis)
  std::int64_t end = 0;
  std::int64_t tensor_begin = 0;  // the slice's first row in the tensor
  std::int64_t tensor_rows = 0;   // all rows of a tensor that several slices make up; 0: the slice is the tensor
};

struct ParameterDescriptor {
  std::string name;
  std::vector<std::int64_t> shape;  // global
  Component component = Component::kEmbedding;
  int layer = -1;  // global number; -1: outside the layers
  Init init;
  std::vector<Shard> shards;
  TensorGradient tensor_gradient = TensorGradient::kWhole;
  GradReduction reduction = GradReduction::kDataParallel;
  Decay decay = Decay::kYes;
  Trained trained = Trained::kYes;
  ParameterLayout layout = ParameterLayout::kMatrices;
  std::vector<HuggingFaceSlice> hugging_face;

  std::int64_t num_elements() const;
  /// A matrix or a stack of them. A stack of experts' bias vectors has two axes too, but does not decay.
  bool is_matrix() const { return shape.size() >= 2 && decay == Decay::kYes && layout == ParameterLayout::kMatrices; }
};

/// Every parameter of the main model, in the order embedding, layers, final norm, output. MTP is not part of it.
std::vector<ParameterDescriptor> model_parameters(const ModelSpec& spec);

std::vector<ParameterDescriptor> embedding_parameters(const ModelSpec& spec);
/// Of what mixes the tokens of a layer. In parameters_mixer.cpp.
std::vector<ParameterDescriptor> mixer_parameters(const ModelSpec& spec, int layer);
std::vector<ParameterDescriptor> dense_mlp_parameters(const ModelSpec& spec, int layer);
std::vector<ParameterDescriptor> moe_parameters(const ModelSpec& spec, int layer);
std::vector<ParameterDescriptor> layer_parameters(const ModelSpec& spec, int layer);
std::vector<ParameterDescriptor> output_parameters(const ModelSpec& spec);

/// Those of one pipeline stage, each parameter of the model on exactly one stage.
std::vector<ParameterDescriptor> stage_parameters(const ModelSpec& spec, const StageContent& content);

/// The word embedding's weight, which a stage without the embedding holds again where depths or a tied output read it.
ParameterDescriptor word_embedding(const ModelSpec& spec);

/// Sums over the descriptors; nothing is allocated. Parts that architecture.hpp calls not counted are not in it.
struct ParameterCount {
  std::int64_t total = 0;
  std::int64_t active = 0;                    // with top_k of the experts, embedding and output included
  std::int64_t active_without_embedding = 0;  // likewise, without embedding and output
  std::int64_t by_component[kNumComponents] = {};
};
ParameterCount count_parameters(const ModelSpec& spec);

/// What multi-token prediction adds, depth by depth: two norms, the projection that joins them, a layer, a final norm.
/// Embedding and output are shared. A depth's layer is numbered behind the decoder's, as in DeepSeek's checkpoints.
std::vector<ParameterDescriptor> mtp_parameters(const ModelSpec& spec);

/// What a training run holds: the main model's, then the prediction depths'.
std::vector<ParameterDescriptor> training_parameters(const ModelSpec& spec);

/// Parameters of one prediction depth.
std::vector<ParameterDescriptor> mtp_depth_parameters(const ModelSpec& spec, int depth);

/// Elements of one depth of mtp_parameters.
std::int64_t count_mtp_parameters(const ModelSpec& spec);

/// The simpler formula behind the sizes that Primus states for its synthetic models (44 and 80 B of 1T and 2T):
/// L·(H² + k·3HF) + 2VH, so one square matrix of attention a layer, no shared expert, no router.
std::int64_t closed_form_active_parameters(const ModelSpec& spec);

}  // namespace primus::model
