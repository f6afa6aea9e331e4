#include "model/op_scratch.hpp"

#include "model/logit_chunks.hpp"

namespace primus::model {
namespace {

constexpr std::int64_t kFloatBytes = size_bytes(DType::kFloat32);

}  // namespace

std::int64_t OpScratch::product(std::int64_t rows, std::int64_t columns, std::int64_t depth, DType a, DType b,
                                DType c) const {
  if (device == OpDevice::kGpu || rows == 0 || columns == 0 || a == DType::kFloat64) return 0;
  const bool is_mixed = a != DType::kFloat32 || b != DType::kFloat32 || c != DType::kFloat32;
  const std::int64_t panel_rows = is_mixed ? std::min(rows, kPanelRows) : rows;
  const std::int64_t panel_columns = is_mixed ? std::min(columns, kPanelRows) : columns;
  const std::int64_t panel_depth = is_mixed ? std::min(depth, kPanelDepth) : depth;
  std::int64_t elements = 0;
  if (a != DType::kFloat32) elements += panel_rows * panel_depth;
  if (b != DType::kFloat32) elements += panel_depth * panel_columns;
  if (c != DType::kFloat32) elements += panel_rows * panel_columns;
  if (packed_products == Part::kPresent) elements += round_up(panel_columns, kPackedColumns) * panel_depth;
  return elements * kFloatBytes;
}

std::int64_t OpScratch::product_forward(const ProductSizes& sizes, const ProductTypes& types) const {
  return product(sizes.tokens, sizes.outputs, sizes.inputs, types.operand, types.operand, types.result);
}

std::int64_t OpScratch::product_backward(const ProductSizes& sizes, const ProductTypes& types) const {
  const std::int64_t of_input =
      product(sizes.tokens, sizes.inputs, sizes.outputs, types.result, types.operand, types.operand);
  return std::max(of_input, weight_gradient(sizes, types));
}

std::int64_t OpScratch::weight_gradient(const ProductSizes& sizes, const ProductTypes& types) const {
  if (sizes.tokens == 0) return 0;
  return product(sizes.outputs, sizes.inputs, sizes.tokens, types.result, types.operand,
                 types.result == DType::kFloat64 ? types.result : DType::kFloat32);
}

std::int64_t OpScratch::grouped_forward(const ProductSizes& sizes, const ProductTypes& types) const {
  return num_threads * product_forward(sizes, types);
}

std::int64_t OpScratch::grouped_backward(const ProductSizes& sizes, const ProductTypes& types) const {
  return num_threads * product_backward(sizes, types);
}

std::int64_t OpScratch::norm_backward(std::int64_t rows, std::int64_t width, std::int64_t num_sums, DType sums) const {
  if (rows == 0) return 0;
  return divide_up(rows, norm_part_rows(rows, width)) * num_sums * width * size_bytes(sums);
}

std::int64_t OpScratch::margins(std::int64_t tokens, std::int64_t experts, DType bias) const {
  const std::int64_t elements = tokens * experts + (bias == DType::kFloat64 ? 0 : experts);
  return elements * size_bytes(DType::kFloat64);
}

std::int64_t OpScratch::attention_forward(const AttentionSizes& sizes, DType sums) const {
  if (device == OpDevice::kGpu || sizes.pairs() * sizes.sequence == 0) return 0;
  const AttentionCuts cuts{sizes, size_bytes(sums)};
  const std::int64_t pairs = cuts.takes_whole_pairs(num_threads) ? num_threads : cuts.wave(cuts.forward_pair());
  return (pairs * cuts.forward_pair() + num_threads * cuts.forward_worker()) * cuts.element_bytes;
}

std::int64_t OpScratch::attention_backward(const AttentionSizes& sizes, DType sums) const {
  // The queries' gradient is added up in the sums' type.
  if (device == OpDevice::kGpu) {
    return sizes.batch * sizes.sequence * sizes.heads * sizes.query_size * size_bytes(sums);
  }
  if (sizes.pairs() * sizes.sequence == 0) return 0;
  const AttentionCuts cuts{sizes, size_bytes(sums)};
  const std::int64_t pairs = cuts.takes_whole_pairs(num_threads) ? num_threads : cuts.wave(cuts.backward_pair());
  const std::int64_t of_pair = cuts.backward_pair() + cuts.backward_slices() * cuts.backward_part();
  return (pairs * of_pair + num_threads * AttentionCuts::kBackwardTiles) * cuts.element_bytes;
}

std::int64_t OpScratch::delta_rule_forward(const DeltaSizes& sizes, DType sums) const {
  return std::min(num_threads, sizes.num_units()) * DeltaCuts{sizes, size_bytes(sums)}.worker_bytes();
}

std::int64_t OpScratch::delta_rule_backward(const DeltaSizes& sizes, DType sums) const {
  const DeltaCuts cuts{sizes, size_bytes(sums)};
  return std::min(num_threads, sizes.num_units()) * (cuts.worker_bytes() + cuts.backward_bytes());
}

std::int64_t OpScratch::decay_gate_backward(std::int64_t tokens, std::int64_t heads, DType sums) const {
  return 2 * divide_up(tokens, kDecayTokensOfASum) * heads * size_bytes(sums);
}

std::int64_t OpScratch::gated_norm_backward(std::int64_t rows, std::int64_t width, DType sums) const {
  // A sum, and a row beside it.
  return 2 * divide_up(rows, kGatedHeadsOfASum) * width * size_bytes(sums);
}

std::int64_t OpScratch::indexer_choice(const AttentionSizes& sizes, DType sums) const {
  if (device == OpDevice::kGpu || sizes.pairs() * sizes.sequence == 0) return 0;
  const IndexerCuts cuts{sizes, size_bytes(sums)};
  return (sizes.batch * cuts.keys() + num_threads * cuts.choice_worker()) * cuts.element_bytes;
}

std::int64_t OpScratch::indexer_loss(const AttentionSizes& sizes, std::int64_t width, DType sums) const {
  if (device == OpDevice::kGpu || sizes.pairs() * sizes.sequence == 0) return 0;
  const IndexerCuts cuts{sizes, size_bytes(sums)};
  return (sizes.batch * (cuts.loss_keys() + cuts.slices() * cuts.loss_slice()) +
          num_threads * cuts.loss_worker(width)) *
         cuts.element_bytes;
}

std::int64_t OpScratch::hyper_forward(std::int64_t tokens, const HyperCuts& cuts, DType sums) const {
  const std::int64_t worker = cuts.writes() ? cuts.write_worker() : cuts.read_worker();
  return std::min(num_threads, divide_up(tokens, HyperCuts::kTokens)) * worker * size_bytes(sums);
}

std::int64_t OpScratch::hyper_backward(std::int64_t tokens, std::int64_t hidden, const HyperCuts& cuts,
                                       DType sums) const {
  const std::int64_t blocks = divide_up(tokens, HyperCuts::kTokens);
  const std::int64_t columns = divide_up(cuts.streams * hidden, HyperCuts::kColumns);
  const std::int64_t reading = tokens + std::min(num_threads, std::max(blocks, columns)) * cuts.read_backward_worker();
  const std::int64_t writing = cuts.writes() ? std::min(num_threads, blocks) * cuts.write_backward_worker() : 0;
  return std::max(reading, writing) * size_bytes(sums);
}

std::int64_t OpScratch::fused_loss(const ProductSizes& sizes, const ProductTypes& types) const {
  if (sizes.tokens == 0) return 0;
  const std::int64_t row_bytes = sizes.outputs * size_bytes(types.operand);
  const std::int64_t most = device == OpDevice::kGpu ? device_logit_chunk(row_bytes) : host_logit_chunk(row_bytes);
  ProductSizes chunk = sizes;
  chunk.tokens = std::min(sizes.tokens, most);
  return chunk.tokens * chunk.outputs * size_bytes(types.result) +
         std::max(product_forward(chunk, types), product_backward(chunk, types));
}

}  // namespace primus::model
