#pragma once
// Kimi delta attention (Kimi Linear, 2025): queries, keys and values behind a short convolution, and a delta rule whose
// state forgets row by row. What the decays are made of comes through a low rank, and so does what the output gate is
// made of, or that has full rank; the output is normed, gated by a sigmoid and projected back. What is kept is what the
// layer's input was projected to and the rule's output; the rest is made again.
#include "nn/delta_core.hpp"

namespace primus::nn {

class KimiDeltaAttention final : public Sublayer {
 public:
  KimiDeltaAttention(const model::ModelSpec& spec, int layer, ParameterStore& parameters);

  void forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) override;
  void restore(const Tensor& x_TH, Saved& saved, const StepContext& step) override;
  void backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) override;
  void weight_grad(Saved& saved) override;

 private:
  /// Parts of what the input was projected to, as views of it.
  struct Parts {
    Tensor mixed_TC, write_TA;  // of DeltaCore::Input
    Tensor gate_TAV;            // of full rank; else undefined
    Tensor low_decay_TR;        // low ranks
    Tensor low_gate_TR;         // undefined beside a gate of full rank
  };
  Parts parts(const Tensor& projected, const Tensor& low_rank) const;
  void project(const Tensor& x_TH, Saved& saved) const;
  void attend(Saved& saved, const StepContext& step) const;
  /// With the decays before their gate, which are made of their low rank.
  DeltaCore::Input rule_input(const Parts& in) const;
  /// Before its sigmoid.
  Tensor output_gate(const Parts& in) const;
  /// Through the rule and its inputs' gates into the gradients of the convolution's and the writes' inputs; returns
  /// that of the decays before their gate.
  Tensor rule_backward(const Tensor& dcontext_TAV, const Parts& in, const StepContext& step, Parts& gradient);
  void add_weight_gradients(const std::vector<Tensor>& deferred) const;

  model::KimiDeltaSpec delta_;
  Parameter& in_;
  Parameter& low_rank_;
  Parameter& decay_;
  Parameter* gate_ = nullptr;  // of a low rank
  DeltaCore core_;
};

}  // namespace primus::nn
