#pragma once
// Entries that stand for windows of a layer's tokens: keys and gates by one projection, put together by learnt weights
// (ops/compressor), normed, and turned by the position of their first token. They are made again wherever they are
// read: what is kept is the projection. Legend: T tokens, B sequences, H hidden, C entries of a sequence, D their size,
// E key width.
#include "nn/layer.hpp"
#include "nn/norm.hpp"
#include "ops/compressor/compressor.hpp"
#include "ops/rope/rope.hpp"

namespace primus::nn {

/// Turns the last elements of each head of x_TAD, or back; as many as the tables have.
void turn_tail(const RopeTables& rope, model::RopePairs pairs, ops::RopeDirection direction, const Tensor& x_TAD);

class KeyCompressor {
 public:
  /// `name` of the parameters' common part; entries of `size`.
  KeyCompressor(const model::ModelSpec& spec, int layer, const std::string& name, std::int64_t size,
                ParameterStore& parameters);

  Parameter& projection() const { return projection_; }
  /// Of a micro-batch whose sequences have room for one: the entries, and what their backward reads.
  struct Entries {
    Tensor pooled_CD, statistics;  // before the norm
    Tensor entry_BCD;
  };
  Entries entries(const Tensor& key_gate_TE, const StepContext& step) const;
  /// dkey_gate (overwritten) from dentry, which is spoilt; norm and bias add to their gradients.
  void backward(const Entries& made, Tensor& dentry_BCD, const Tensor& key_gate_TE, const StepContext& step,
                Tensor& dkey_gate_TE);

  ops::Windowing windowing(const StepContext& step) const { return {ratio_, step.first_key_BS}; }

 private:
  /// Tables whose rows are the entries'.
  RopeTables tables(const StepContext& step) const;
  ops::CompressorInput halves(const Tensor& key_gate_TE, const StepContext& step, Tensor bias) const;

  std::int64_t ratio_, size_, key_width_;
  ops::WindowOverlap overlap_;
  model::RopePairs pairs_;
  Parameter& projection_;
  Parameter& bias_;
  Norm norm_;
};

}  // namespace primus::nn
