#include "nn/key_compressor.hpp"

#include "nn/rope_tables.hpp"

namespace primus::nn {

void turn_tail(const RopeTables& rope, model::RopePairs pairs, ops::RopeDirection direction, const Tensor& x_TAD) {
  const std::int64_t width = 2 * rope.cos_SP.size(1);
  Tensor tail = x_TAD.narrow(2, x_TAD.size(2) - width, width);
  const auto layout = pairs == model::RopePairs::kHalves ? ops::RopeLayout::kHalves : ops::RopeLayout::kInterleaved;
  ops::rope_apply(rope.cos_SP, rope.sin_SP, layout, direction, tail);
}

KeyCompressor::KeyCompressor(const model::ModelSpec& spec, int layer, const std::string& name, std::int64_t size,
                             ParameterStore& parameters)
    : ratio_(spec.compressed.ratio(layer)),
      size_(size),
      key_width_(spec.compressed.key_width(layer, size)),
      overlap_(key_width_ == size ? ops::WindowOverlap::kNone : ops::WindowOverlap::kPrevious),
      pairs_(spec.rope.pairs),
      projection_(parameters.get(name + ".linear_key_gate.weight")),
      bias_(parameters.get(name + ".position_bias")),
      norm_(spec, name + ".norm", parameters) {}

ops::CompressorInput KeyCompressor::halves(const Tensor& key_gate_TE, const StepContext& step, Tensor bias) const {
  const Tensor by_sequence = key_gate_TE.unflatten(0, {step.batch.num_sequences, step.batch.seq_length});
  return {by_sequence.narrow(2, 0, key_width_), by_sequence.narrow(2, key_width_, key_width_), std::move(bias)};
}

RopeTables KeyCompressor::tables(const StepContext& step) const {
  const auto [batch, sequence] = step.batch;
  const ops::Windows windows(windowing(step), batch, sequence);
  PRIMUS_CHECK(step.entry_rope.cos_SP.defined(), "entries have positions, and no tables are given");
  const std::int64_t rows_of_sequence = step.entry_rope.cos_SP.size(0) == batch * sequence ? sequence : 0;
  Tensor rows = at::empty({batch * windows.capacity()}, at::kLong);
  auto* row = rows.data_ptr<std::int64_t>();
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t entry = 0; entry < windows.capacity(); ++entry) {
      const bool is_there = entry < windows.num_entries(b);
      *row++ = is_there ? b * rows_of_sequence + windows.first_token(b, entry) : 0;
    }
  }
  return at_positions(step.entry_rope, rows);
}

KeyCompressor::Entries KeyCompressor::entries(const Tensor& key_gate_TE, const StepContext& step) const {
  const std::int64_t batch = step.batch.num_sequences;
  const std::int64_t capacity = step.batch.seq_length / ratio_;
  const at::ScalarType statistics = ops::accumulator_type(key_gate_TE.scalar_type());
  Entries made;
  made.pooled_CD = workspace({batch * capacity, size_}, key_gate_TE);
  Tensor pooled_BCD = made.pooled_CD.view({batch, capacity, size_});
  ops::compressor_forward(halves(key_gate_TE, step, bias_.weight.to(statistics)), windowing(step), overlap_,
                          pooled_BCD);
  made.entry_BCD = workspace({batch, capacity, size_}, key_gate_TE);
  Tensor normed_CD = made.entry_BCD.view({batch * capacity, size_});
  made.statistics = norm_.forward(made.pooled_CD, normed_CD);
  turn_tail(tables(step), pairs_, ops::RopeDirection::kForward, normed_CD.unsqueeze(1));
  return made;
}

void KeyCompressor::backward(const Entries& made, Tensor& dentry_BCD, const Tensor& key_gate_TE,
                             const StepContext& step, Tensor& dkey_gate_TE) {
  const at::ScalarType statistics = ops::accumulator_type(key_gate_TE.scalar_type());
  const Tensor dnormed_CD = dentry_BCD.view(made.pooled_CD.sizes());
  turn_tail(tables(step), pairs_, ops::RopeDirection::kBackward, dnormed_CD.unsqueeze(1));
  Tensor dpooled_CD = workspace({made.pooled_CD.size(0), size_}, key_gate_TE);
  norm_.backward(dnormed_CD, made.pooled_CD, made.statistics, dpooled_CD, ops::Write::kOverwrite);
  ops::CompressorInput gradient = halves(dkey_gate_TE, step, bias_.sum_target());
  ops::compressor_backward(dpooled_CD.view(made.entry_BCD.sizes()),
                           halves(key_gate_TE, step, bias_.weight.to(statistics)), windowing(step), overlap_, gradient);
}

}  // namespace primus::nn
