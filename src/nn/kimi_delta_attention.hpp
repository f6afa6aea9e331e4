#pragma once
// Kimi delta attention (Kimi Linear, 2025): queries, keys and values behind a short convolution, and a delta rule whose
// state forgets row by row. What the decays are made of comes through a low rank, and so does what the output gate is
// made of, or that has full rank; the output is normed, gated by a sigmoid and projected back. What is kept is what the
// layer's input was projected to and the rule's output; the rest is made again.
#include "nn/layer.hpp"
#include "ops/decay_gate/decay_gate.hpp"
#include "ops/delta_rule/delta_rule.hpp"
#include "ops/gated_norm/gated_norm.hpp"
#include "ops/short_conv/short_conv.hpp"

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
    Tensor mixed_TC;      // queries, keys and values, as the convolution reads them
    Tensor write_TA;      // before the sigmoid
    Tensor gate_TAV;      // of full rank; else undefined
    Tensor low_decay_TR;  // low ranks
    Tensor low_gate_TR;   // undefined beside a gate of full rank
  };
  Parts parts(const Tensor& projected, const Tensor& low_rank) const;
  void project(const Tensor& x_TH, Saved& saved) const;
  void attend(Saved& saved, const StepContext& step) const;
  ops::ShortConv convolution(const StepContext& step) const;
  ops::DecayGate decay_gate() const { return {a_log_.weight, dt_bias_.weight, delta_.lowest_decay}; }
  ops::GatedNorm output_norm() const { return {norm_.weight, ops::NormGate::kSigmoid, epsilon_}; }
  /// Heads of the convolution's output.
  struct Heads {
    Tensor q_TGK, k_TGK, v_TAV;
  };
  Heads heads(const Tensor& mixed_TC) const;
  /// The decays before their gate, [T, A, K], and the output gate before its sigmoid.
  Tensor decays(const Parts& in) const;
  Tensor output_gate(const Parts& in) const;
  /// What the rule reads: the convolution's output, decays and write strengths.
  ops::DeltaRule rule(const Parts& in, const Tensor& decay_TAK, const StepContext& step) const;
  /// Through the rule and its inputs' gates into the gradients of convolution's and writes' inputs; returns that of the
  /// decays before their gate.
  Tensor rule_backward(const Tensor& dcontext_TAV, const Parts& in, const StepContext& step, Parts& gradient);
  void add_weight_gradients(const std::vector<Tensor>& deferred) const;

  model::KimiDeltaSpec delta_;
  double epsilon_;
  Parameter& in_;
  Parameter& low_rank_;
  Parameter& decay_;
  Parameter* gate_ = nullptr;  // of a low rank
  Parameter& conv_;
  Parameter& dt_bias_;
  Parameter& a_log_;
  Parameter& norm_;
  Parameter& out_;
};

}  // namespace primus::nn
