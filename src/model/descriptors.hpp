#pragma once
// What the files that describe parameters share: names, initialisation, and the usual kinds of a descriptor.
#include <iterator>
#include <string>
#include <vector>

#include "model/parameters.hpp"

namespace primus::model {

using Descriptors = std::vector<ParameterDescriptor>;

/// What the descriptors of one layer share.
struct Naming {
  std::string ours;          // "decoder.layers.3."
  std::string hugging_face;  // "model.layers.3."
  int layer;
};

Naming layer_naming(int layer);

/// Megatron's initialisation: σ, and σ/sqrt(2·layers) for projections back into the residual stream, so that its
/// variance does not grow with depth.
Init input_init(const ModelSpec& spec);
Init output_init(const ModelSpec& spec);
/// Of embeddings, and with scales by width of the output layer: no width is in it.
Init embedding_init(const ModelSpec& spec);

ParameterDescriptor matrix(const Naming& naming, const std::string& name, std::vector<std::int64_t> shape,
                           Component component, Init init);

/// A weight of ones of this width. `hugging_face` empty: it has no counterpart there.
ParameterDescriptor norm_weight(const Naming& naming, const std::string& name, std::int64_t width, Component component,
                                const std::string& hugging_face);

/// Zeros, without decay, whole on every rank.
ParameterDescriptor bias_vector(const Naming& naming, const std::string& name, std::vector<std::int64_t> shape,
                                Component component);

HuggingFaceSlice whole_rows(const std::string& name, const ParameterDescriptor& parameter, int axis = 0);

/// Norm `name` (without ".weight") over `width` values: its weight, and a bias where the model's norms are LayerNorms.
Descriptors norm_parameters(const ModelSpec& spec, const Naming& naming, const std::string& name, std::int64_t width,
                            Component component, const std::string& hugging_face);

/// Norm `name` (without ".weight") before a part of a layer: one weight, and a bias where the norm is a LayerNorm.
Descriptors layer_norm(const ModelSpec& spec, const Naming& naming, const std::string& name,
                       const std::string& hugging_face);

/// What makes the weights of hyper-connections around a half of a layer, or of the head behind the last layer: a matrix
/// over all streams, biases, and a scale for each group of weights. None where there is one stream.
Descriptors hyper_connection(const ModelSpec& spec, const Naming& naming, const std::string& name,
                             const std::string& hugging_face);
Descriptors hyper_head(const ModelSpec& spec, const Naming& naming);

inline void append(Descriptors& all, Descriptors more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace primus::model
