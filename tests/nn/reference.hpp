#pragma once
// The same model written a second time: plain formulas in fp64 under libtorch's autograd, no op of ours. The oracle of
// D1.
#include <functional>
#include <map>
#include <string>

#include "model/model_spec.hpp"
#include "nn/parameter.hpp"
#include "support/tensors.hpp"

namespace primus::test {

/// Leaves in fp64 by parameter name; a tied output uses the embedding's.
using ReferenceParameters = std::map<std::string, Tensor>;

/// fp64 copies of a store's weights that autograd follows.
ReferenceParameters reference_parameters(const nn::ParameterStore& store);

/// Largest relative error of the store's main gradients against the references' (parameters without a gradient: against
/// zero). `worst` names the parameter.
double worst_gradient_error(const nn::ParameterStore& store, const ReferenceParameters& reference, std::string* worst);

/// Packed samples: each token's position and the first token that it sees, [B, S] of any integer type. Undefined: the
/// sequence is one document.
struct PackedDocuments {
  Tensor position_BS = {};
  Tensor first_key_BS = {};
  int repetition = 0;  // of a layer that has been applied before
  /// Sparse attention: which keys the last choice hides, bool [B, S, S]; a layer without an indexer reads it.
  Tensor* hidden_BSS = nullptr;
};

/// The model's norm `name` (without ".weight") of x.
Tensor reference_norm(const Tensor& x, const model::ModelSpec& spec, const ReferenceParameters& p,
                      const std::string& name);

/// x_BSH -> attention's output [B, S, H]; an indexer's loss is added to `aux_loss`.
Tensor reference_attention(const Tensor& x_BSH, const model::ModelSpec& spec, int layer, const ReferenceParameters& p,
                           Tensor* aux_loss, const PackedDocuments& packed = {});

/// What a router's input may have beside the tokens. Tensors undefined: not there.
struct ReferenceRouting {
  Tensor jitter_TH;        // factors of the router's input
  Tensor is_routed_T;      // bool
  Tensor earlier_count_E;  // for the global loss: counts of the step's earlier micro-batches, added up
  std::int64_t num_earlier = 0;
};

/// Output and losses (coefficients included) of a dense or MoE block on the normed input x_BSH. In reference_mlp.cpp.
struct ReferenceBlock {
  Tensor y_BSH;
  Tensor aux_loss;  // undefined in a dense block
  Tensor count_E;   // choices of each expert
};
ReferenceBlock reference_mlp(const Tensor& x_BSH, const model::ModelSpec& spec, int layer, const ReferenceParameters& p,
                             const ReferenceRouting& routing = {});

/// The same of a gated delta net. In reference_linear.cpp.
Tensor reference_gated_delta(const Tensor& x_BSH, const model::ModelSpec& spec, int layer, const ReferenceParameters& p,
                             const PackedDocuments& packed);

/// The same of Kimi delta attention. In reference_linear.cpp.
Tensor reference_kimi_delta(const Tensor& x_BSH, const model::ModelSpec& spec, int layer, const ReferenceParameters& p,
                            const PackedDocuments& packed);

/// The same of LFM2's convolution. In reference_linear.cpp.
Tensor reference_short_convolution(const Tensor& x_BSH, const model::ModelSpec& spec, int layer,
                                   const ReferenceParameters& p, const PackedDocuments& packed);

/// The same of whatever mixes the layer's tokens.
Tensor reference_mixer(const Tensor& x_BSH, const model::ModelSpec& spec, int layer, const ReferenceParameters& p,
                       Tensor* aux_loss, const PackedDocuments& packed = {});

/// All residual streams [B, S, C] through the hyper-connection around the half `part` of a layer, which makes y_BSH of
/// z_BSH. In reference_streams.cpp, as the next two.
Tensor reference_connection(const Tensor& x_BSC, const model::ModelSpec& spec, const std::string& part,
                            const ReferenceParameters& p, const std::function<Tensor(const Tensor&)>& half);
/// x_BSH as each of a token's residual streams.
Tensor reference_streams(const Tensor& x_BSH, const model::ModelSpec& spec);
/// One hidden state [B, S, H] of the streams, before the norm of the output of `part`.
Tensor reference_contraction(const Tensor& x_BSC, const model::ModelSpec& spec, const ReferenceParameters& p,
                             const std::string& part);

/// Of all residual streams side by side, [B, S, C].
Tensor reference_layer(const Tensor& x_BSC, const model::ModelSpec& spec, int layer, const ReferenceParameters& p,
                       Tensor* aux_loss, const PackedDocuments& packed = {});

/// ids and labels [B, S]: masked sum of token losses, the sum of the layers' auxiliary losses, and each prediction
/// depth's mean loss over its own tokens.
struct ReferenceLoss {
  Tensor loss_sum;
  Tensor aux_loss;
  std::vector<Tensor> mtp_losses;

  /// What a step's gradients are of.
  Tensor total(const model::ModelSpec& spec, double num_tokens) const;
};
ReferenceLoss reference_model(const Tensor& ids_BS, const Tensor& labels_BS, const Tensor& mask_BS,
                              const model::ModelSpec& spec, const ReferenceParameters& p,
                              const PackedDocuments& packed = {}, const Tensor& document_BS = {});

}  // namespace primus::test
