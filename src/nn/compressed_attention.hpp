#pragma once
// DeepSeek-V4's attention (model::CompressedAttentionSpec): one vector a token is key and value of all heads, seen in a
// window; entries stand for windows of earlier tokens; one softmax with a sink spans both. Because a value is turned
// like a key, the context is turned back by its query's position, and depends on distances alone.
#include "nn/entry_indexer.hpp"
#include "nn/grouped_output.hpp"
#include "ops/compressed_attention/compressed_attention.hpp"

namespace primus::nn {

class CompressedAttention final : public Sublayer {
 public:
  CompressedAttention(const model::ModelSpec& spec, int layer, ParameterStore& parameters);

  void forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) override;
  void restore(const Tensor& x_TH, Saved& saved, const StepContext& step) override;
  void backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) override;
  void weight_grad(Saved& saved) override;
  void begin_step() override;
  std::optional<double> indexer_loss() const override;

 private:
  /// Queries and keys of a micro-batch, normed and turned.
  struct Heads {
    Tensor query_TAD, key_T1D;
  };

  const RopeTables& tables(const StepContext& step) const;
  void turn(const StepContext& step, ops::RopeDirection direction, const Tensor& x_TAD) const;
  void project(const Tensor& x_TH, Saved& saved);
  Tensor latent(Saved& saved) const;
  Heads heads(Saved& saved, const StepContext& step) const;
  /// Is a sequence long enough for one?
  bool has_entries(const StepContext& step) const;
  ops::AttentionOptions window_options(const Tensor& like, const StepContext& step) const;
  ops::CompressedAttentionOptions entry_options(Saved& saved, const StepContext& step) const;
  void attend(const Tensor& x_TH, Saved& saved, const StepContext& step);
  /// Gradients of what the projections gave, from that of the context before it was turned back.
  struct Gradients {
    Tensor query_TAD, key_T1D, key_gate_TE;
  };
  Gradients core_backward(const Tensor& dcontext_TAD, const Tensor& x_TH, Saved& saved, const StepContext& step,
                          std::vector<Tensor>& taught);
  void add_weight_gradients(std::span<const Tensor> deferred);

  model::CompressedAttentionSpec spec_;
  std::int64_t ratio_;
  model::RopePairs pairs_;
  double scale_;
  Parameter& query_down_;
  Norm query_down_norm_;
  Parameter& query_up_;
  Norm query_norm_;  // of each head, without a weight
  Parameter& key_;
  Norm key_norm_;
  Parameter* sinks_ = nullptr;
  GroupedOutput output_;
  std::optional<KeyCompressor> compressor_;  // in layers with entries
  std::optional<EntryIndexer> indexer_;      // in those that pick them
};

}  // namespace primus::nn
