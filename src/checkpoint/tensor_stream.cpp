#include "checkpoint/tensor_stream.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"

namespace primus::checkpoint {
namespace {

constexpr std::int64_t kChunkBytes = std::int64_t{4} << 20;

enum class Direction { kToParameter, kToTensor };

/// Element of the tensor's block that holds the parameter's (row, column).
std::int64_t transposed_place(const Block& block, std::int64_t row, std::int64_t column) {
  const std::int64_t part = block.rows / block.groups;
  return column * block.rows + (row % part) * block.groups + row / part;
}

template <typename Element>
void transpose(const Block& block, Direction direction, std::span<const std::byte> in, std::span<std::byte> out) {
  const auto* from = reinterpret_cast<const Element*>(in.data());
  auto* to = reinterpret_cast<Element*>(out.data());
  // In squares that fit a cache: one side is walked across its rows.
  constexpr std::int64_t kSide = 64;
  for (std::int64_t row_begin = 0; row_begin < block.rows; row_begin += kSide) {
    const std::int64_t row_end = std::min(row_begin + kSide, block.rows);
    for (std::int64_t column_begin = 0; column_begin < block.columns; column_begin += kSide) {
      const std::int64_t column_end = std::min(column_begin + kSide, block.columns);
      for (std::int64_t row = row_begin; row < row_end; ++row) {
        for (std::int64_t column = column_begin; column < column_end; ++column) {
          const std::int64_t ours = row * block.columns + column;
          const std::int64_t theirs = transposed_place(block, row, column);
          if (direction == Direction::kToParameter) {
            to[ours] = from[theirs];
          } else {
            to[theirs] = from[ours];
          }
        }
      }
    }
  }
}

void transpose(const Block& block, Direction direction, std::int64_t element_bytes, std::span<const std::byte> in,
               std::span<std::byte> out) {
  switch (element_bytes) {
    case 2:
      return transpose<std::uint16_t>(block, direction, in, out);
    case 4:
      return transpose<std::uint32_t>(block, direction, in, out);
    default:
      PRIMUS_CHECK(element_bytes == 8, "elements of {} bytes", element_bytes);
      return transpose<std::uint64_t>(block, direction, in, out);
  }
}

void stream_block(const Block& block, Direction direction, std::int64_t element_bytes, const ReadElements& read,
                  const Sink& sink, std::vector<std::byte>& buffer) {
  const bool to_parameter = direction == Direction::kToParameter;
  const std::size_t source = to_parameter ? block.tensor : block.parameter;
  const std::int64_t begin = to_parameter ? block.tensor_begin : block.parameter_begin;
  if (block.rows > 0) {
    const auto bytes = static_cast<std::size_t>(block.count * element_bytes);
    buffer.resize(2 * bytes);
    const std::span all(buffer);
    read(source, begin, all.first(bytes));
    transpose(block, direction, element_bytes, all.first(bytes), all.last(bytes));
    sink(all.last(bytes));
    return;
  }
  const std::int64_t chunk = kChunkBytes / element_bytes;
  for (std::int64_t done = 0; done < block.count; done += chunk) {
    const std::int64_t count = std::min(chunk, block.count - done);
    buffer.resize(static_cast<std::size_t>(count * element_bytes));
    read(source, begin + done, buffer);
    sink(buffer);
  }
}

}  // namespace

void stream_parameter(std::span<const Block> blocks, std::int64_t num_elements, std::int64_t element_bytes,
                      const ReadElements& read_tensor, const Sink& sink) {
  std::vector<std::byte> buffer;
  std::int64_t reached = 0;
  for (const Block& block : blocks) {
    PRIMUS_CHECK(block.parameter_begin == reached, "element {} of parameter {} comes from nowhere", reached,
                 block.parameter);
    stream_block(block, Direction::kToParameter, element_bytes, read_tensor, sink, buffer);
    reached += block.count;
  }
  buffer.clear();
  for (std::int64_t rest = (num_elements - reached) * element_bytes; rest > 0; rest -= kChunkBytes) {
    buffer.assign(static_cast<std::size_t>(std::min(rest, kChunkBytes)), std::byte{0});
    sink(buffer);
  }
}

void stream_tensor(std::span<const Block> blocks, std::int64_t element_bytes, const ReadElements& read_parameter,
                   const Sink& sink) {
  std::vector<std::byte> buffer;
  std::int64_t reached = 0;
  for (const Block& block : blocks) {
    PRIMUS_CHECK(block.tensor_begin == reached, "element {} of tensor {} comes from nowhere", reached, block.tensor);
    stream_block(block, Direction::kToTensor, element_bytes, read_parameter, sink, buffer);
    reached += block.count;
  }
}

std::vector<std::vector<Block>> blocks_by_tensor(const TensorMapping& mapping) {
  std::vector<std::vector<Block>> sorted(mapping.tensors.size());
  for (const Block& block : mapping.blocks) sorted[block.tensor].push_back(block);
  for (std::vector<Block>& blocks : sorted) std::ranges::sort(blocks, {}, &Block::tensor_begin);
  return sorted;
}

std::vector<std::vector<Block>> blocks_by_parameter(const TensorMapping& mapping, std::size_t num_parameters) {
  std::vector<std::vector<Block>> sorted(num_parameters);
  for (const Block& block : mapping.blocks) sorted[block.parameter].push_back(block);
  for (std::vector<Block>& blocks : sorted) std::ranges::sort(blocks, {}, &Block::parameter_begin);
  return sorted;
}

}  // namespace primus::checkpoint
