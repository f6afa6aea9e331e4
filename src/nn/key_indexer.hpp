#pragma once
// The indexer of sparse attention: small heads that pick the keys of each query, and the loss that teaches them where
// attention looks. Nothing of it is kept but the choice, and no gradient leaves it: its inputs are read as constants.
// Legend: T tokens, B sequences, S length, H hidden, L width of what its queries are made of (the queries' latent
// vector, or H), I heads, D their size, W words of bits.
#include "nn/attention_core.hpp"
#include "ops/indexer/indexer.hpp"
#include "ops/norm/norm.hpp"
#include "ops/rope/rope.hpp"

namespace primus::nn {

/// What the indexer reads of a micro-batch, and the tables that turn its heads.
struct IndexerSource {
  Tensor x_TH, latent_TL;
  RopeTables rope;
};

class KeyIndexer {
 public:
  KeyIndexer(const model::ModelSpec& spec, int layer, ParameterStore& parameters);

  /// selected_BSW <- the keys that each query picks of those in its sight.
  void select(const IndexerSource& source, const StepContext& step, const ops::AttentionOptions& attention,
              Tensor& selected_BSW) const;

  bool is_taught() const { return loss_coefficient_ > 0.0; }
  /// Gradient of the loss on the micro-batch whose attention has these queries and keys; what the weight gradients need
  /// is appended to `left`.
  void teach(const IndexerSource& source, const StepContext& step, const AttentionInput& in,
             ops::AttentionOptions attention, std::vector<Tensor>& left);
  /// From what `teach` left.
  void add_weight_gradients(std::span<const Tensor> left);
  static constexpr std::size_t kNumDeferred = 6;

  void begin_step();
  /// Sum over the step's micro-batches so far of the loss, without its coefficient.
  double loss() const { return loss_1_.item<double>(); }

 private:
  struct Heads {
    ops::IndexerInput input;
    Tensor key_TD, statistics;  // the keys before their norm, and what it left
  };
  Heads heads(const IndexerSource& source, model::BatchShape batch) const;
  /// Turns queries [T, I, D] or keys [T, 1, D] as the model says, or back.
  void turn(const RopeTables& rope, ops::RopeDirection direction, Tensor& x_TID) const;
  ops::NormParameters norm_values() const;

  model::IndexerSpec spec_;
  ops::IndexerOptions options_;
  ops::NormOptions norm_;
  double loss_coefficient_;
  Parameter& query_;
  Parameter& key_;
  Parameter& norm_weight_;
  Parameter& norm_bias_;
  Parameter& weights_;
  Tensor loss_1_;  // fp64; undefined: nothing is taught
};

}  // namespace primus::nn
