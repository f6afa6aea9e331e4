#pragma once
// Multi-head latent attention (DeepSeek-V2): queries direct or through a low rank, keys and values through a low rank,
// position in extra elements that all heads share on the key side. With an indexer attention is sparse (DeepSeek-V3.2);
// a layer without one of its own takes the keys that the layer before picked, from the caller (Saved::borrow). A gate
// on the output is a sigmoid of a projection of the layer's input (Kimi K3).
#include "nn/attention_core.hpp"
#include "nn/key_indexer.hpp"
#include "nn/norm.hpp"

namespace primus::nn {

class MlaAttention final : public Sublayer {
 public:
  MlaAttention(const model::ModelSpec& spec, int layer, ParameterStore& parameters);

  void forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) override;
  void restore(const Tensor& x_TH, Saved& saved, const StepContext& step) override;
  void backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) override;
  void weight_grad(Saved& saved) override;
  void begin_step() override;
  void clip_logits(const model::QkClip& clip, const RowScaler& scale) override;
  std::optional<double> largest_logit() const override { return core_.largest_logit(); }
  std::optional<double> indexer_loss() const override;

 private:
  /// The low-rank part of the queries; absent when the projection is direct.
  struct QueryDown {
    Parameter& weight;
    std::optional<Norm> norm;  // of the latent vector
  };

  RopeTables tables(const StepContext& step) const;
  /// The low-rank queries, keys and values, and the gate; what is behind them, with their norms' statistics; attention.
  void project_down(const Tensor& x_TH, Saved& saved);
  void project_up(const Tensor& x_TH, Saved& saved, const StepContext& step);
  void select(const Tensor& x_TH, Saved& saved, const StepContext& step);
  void attend(Saved& saved, const StepContext& step);
  /// What the queries' up projection reads: their latent vector, normed, or the layer's input.
  Tensor query_input(const Tensor& x_TH, Saved& saved) const;
  /// What the output projection reads: attention's output, behind its gate if there is one.
  Tensor gated_context(Saved& saved) const;
  /// Turns dcontext_TV, of what the projection read, into attention's own; returns the gate's gradient.
  Tensor gate_backward(Saved& saved, Tensor& dcontext_TV) const;
  AttentionInput core_input(Saved& saved, const StepContext& step) const;
  /// x_TL normed, or itself where there is no norm; its statistics are taken from `saved`, or left there.
  Tensor normalised(const Tensor& x_TL, const std::optional<Norm>& norm, int rstd_slot, Saved& saved) const;
  /// Adds the queries' share to dx_TH; returns the tensors that their weight gradients need.
  void query_backward(const Tensor& dq_TQ, const Tensor& x_TH, Saved& saved, Tensor& dx_TH,
                      std::vector<Tensor>& deferred);
  void attention_core_backward(const Tensor& dcontext_TV, Saved& saved, const StepContext& step, Tensor& dq, Tensor& dk,
                               Tensor& dv);
  /// Gradient of the keys' and values' latent vector; returns what the up projection read.
  Tensor latent_backward(const Tensor& dkv_TD, Saved& saved, Tensor& dlatent_TL);
  void add_weight_gradients(std::span<const Tensor> deferred);

  model::MlaSpec mla_;
  enum class Rotation { kNone, kByPosition } rotation_;
  AttentionCore core_;
  std::optional<QueryDown> query_down_;
  Parameter& query_;  // linear_q_proj, or linear_q_up_proj behind the low rank
  Parameter& kv_down_;
  std::optional<Norm> kv_norm_;  // of the latent vector
  Parameter& kv_up_;
  Parameter* gate_ = nullptr;  // linear_gate_proj, of an output gate
  enum class Keys { kAll, kPicked } keys_;
  std::optional<KeyIndexer> indexer_;  // in layers that pick keys themselves
};

}  // namespace primus::nn
