#pragma once
// The indexer of compressed attention: it picks each query's entries by scores over small entries of its own, and
// learns where attention looks among those that it picked. What it reads gets no gradient from it.
// Legend: T tokens, H hidden, L latent width of the queries, I indexer heads, D their size, W words of bits.
#include "nn/key_compressor.hpp"
#include "ops/indexer/indexer.hpp"

namespace primus::nn {

/// Attention whose softmax is over other keys too.
struct EntryAttention {
  Tensor query_BSAD, entry_BCD, lse_BAS;
  Tensor selected_BSW;
  double scale = 1.0;
};

class EntryIndexer {
 public:
  EntryIndexer(const model::ModelSpec& spec, int layer, ParameterStore& parameters);

  /// selected_BSW <- the entries that each query picks of those in its sight.
  void select(const Tensor& x_TH, const Tensor& latent_TL, const StepContext& step, Tensor& selected_BSW) const;

  bool is_taught() const { return loss_coefficient_ > 0.0; }
  /// Gradient of the loss on a micro-batch; what the weight gradients need is appended to `left`.
  void teach(const Tensor& x_TH, const Tensor& latent_TL, const StepContext& step, const EntryAttention& attention,
             std::vector<Tensor>& left);
  /// From what `teach` left.
  void add_weight_gradients(std::span<const Tensor> left);
  static constexpr std::size_t kNumDeferred = 6;

  void begin_step();
  /// Sum over the step's micro-batches so far of the loss, without its coefficient.
  double loss() const { return loss_1_.item<double>(); }

 private:
  struct Heads {
    ops::IndexerInput input;
    Tensor key_gate_TE;
    KeyCompressor::Entries entries;
  };
  Heads heads(const Tensor& x_TH, const Tensor& latent_TL, const StepContext& step) const;
  ops::IndexerOptions options(const StepContext& step) const;

  model::IndexerSpec spec_;
  model::RopePairs pairs_;
  double loss_coefficient_;
  Parameter& query_;
  Parameter& weights_;
  KeyCompressor compressor_;
  std::int64_t key_gate_width_;
  Tensor loss_1_;  // fp64; undefined: nothing is taught
};

}  // namespace primus::nn
