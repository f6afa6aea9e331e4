#pragma once
// Tensors block by block from one naming into the other. What is held is one block, not a tensor.
#include <functional>
#include <span>

#include "checkpoint/hugging_face_tensors.hpp"

namespace primus::checkpoint {

/// Fill `out` with the elements of tensor (or parameter) `index` from element `begin` on, in the type that is asked
/// for.
using ReadElements = std::function<void(std::size_t index, std::int64_t begin, std::span<std::byte> out)>;

/// Takes the bytes of a tensor, in order and in pieces.
using Sink = std::function<void(std::span<const std::byte> bytes)>;

/// The elements of a parameter, made from its Hugging Face tensors. `blocks`: those of this parameter, in its order.
/// Rows of a padded vocabulary are zeros, `num_elements` of the parameter in all.
void stream_parameter(std::span<const Block> blocks, std::int64_t num_elements, std::int64_t element_bytes,
                      const ReadElements& read_tensor, const Sink& sink);

/// The elements of a Hugging Face tensor, made from our parameters. `blocks`: those of this tensor, in its order.
void stream_tensor(std::span<const Block> blocks, std::int64_t element_bytes, const ReadElements& read_parameter,
                   const Sink& sink);

/// Blocks by tensor, each tensor's in its own order.
std::vector<std::vector<Block>> blocks_by_tensor(const TensorMapping& mapping);
/// Blocks by parameter, each parameter's in its own order.
std::vector<std::vector<Block>> blocks_by_parameter(const TensorMapping& mapping, std::size_t num_parameters);

}  // namespace primus::checkpoint
