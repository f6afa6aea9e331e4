#pragma once
// Gated DeltaNet: one projection gives queries, keys and values, which a short convolution mixes, an output gate, and a
// write strength and a decay a head; the delta rule's output is normed, gated and projected back. What is kept is the
// projection's output and the rule's; the convolution's is made again.
#include "nn/layer.hpp"
#include "ops/decay_gate/decay_gate.hpp"
#include "ops/delta_rule/delta_rule.hpp"
#include "ops/gated_norm/gated_norm.hpp"
#include "ops/short_conv/short_conv.hpp"

namespace primus::nn {

class GatedDeltaNet final : public Sublayer {
 public:
  GatedDeltaNet(const model::ModelSpec& spec, int layer, ParameterStore& parameters);

  void forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) override;
  void restore(const Tensor& x_TH, Saved& saved, const StepContext& step) override;
  void backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) override;
  void weight_grad(Saved& saved) override;

 private:
  /// Parts of the projection's rows, as views of it.
  struct Parts {
    Tensor mixed_TC;   // queries, keys and values, as the convolution reads them
    Tensor gate_TAV;   // of the output
    Tensor write_TA;   // before the sigmoid
    Tensor decay_TA1;  // before the decay gate
  };
  Parts parts(const Tensor& projected) const;
  void project(const Tensor& x_TH, Saved& saved) const;
  void attend(Saved& saved, const StepContext& step) const;
  ops::ShortConv convolution(const StepContext& step) const;
  ops::DecayGate decay_gate() const { return {a_log_.weight, dt_bias_.weight, {}}; }
  ops::GatedNorm output_norm() const { return {norm_.weight, ops::NormGate::kSilu, epsilon_}; }
  /// Heads of the convolution's output.
  struct Heads {
    Tensor q_TGK, k_TGK, v_TAV;
  };
  Heads heads(const Tensor& mixed_TC) const;
  /// What the rule reads: the convolution's output, decay and write strength, made from the projection.
  ops::DeltaRule rule(const Parts& in, const StepContext& step) const;
  /// Through the rule, its inputs' gates and the convolution, into the projection's gradient.
  void rule_backward(const Tensor& dcontext_TAV, const Parts& in, const StepContext& step, Parts& gradient);
  void add_weight_gradients(const std::vector<Tensor>& deferred) const;

  model::GatedDeltaSpec delta_;
  double epsilon_;
  Parameter& in_;
  Parameter& conv_;
  Parameter& dt_bias_;
  Parameter& a_log_;
  Parameter& norm_;
  Parameter& out_;
};

}  // namespace primus::nn
