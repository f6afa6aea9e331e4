#pragma once
// Rotary tables and the softmax scale that belongs to them (decision 13).
#include "model/model_spec.hpp"
#include "nn/layer.hpp"

namespace primus::nn {

/// Inverse frequencies of the rotary_dim/2 pairs, scaled as the spec says.
std::vector<double> inverse_frequencies(const model::RopeSpec& rope);

/// cos and sin for positions 0 .. seq_length-1, YaRN's magnitude m(s, mscale)/m(s, mscale_all_dim) multiplied in;
/// `options`: their element type and device.
RopeTables rope_tables(const model::RopeSpec& rope, std::int64_t seq_length, at::TensorOptions options);

/// The same of layers whose keys are compressed; undefined where the model has none.
RopeTables entry_rope_tables(const model::ModelSpec& spec, std::int64_t seq_length, at::TensorOptions options);

/// The tables' rows of these positions (int64), one a token of the micro-batch.
RopeTables at_positions(const RopeTables& rope, const Tensor& positions_T);

/// Tables of the same size that leave queries and keys as they are.
RopeTables without_rotation(const RopeTables& rope);

/// 1/sqrt(query_dim), times m(s, mscale_all_dim)² with YaRN.
double softmax_scale(const model::RopeSpec& rope, std::int64_t query_dim);

/// The same of a model, whose scales by width may ask for another power of the head size.
double softmax_scale(const model::ModelSpec& spec, std::int64_t query_dim);

}  // namespace primus::nn
