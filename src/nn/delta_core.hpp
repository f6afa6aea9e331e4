#pragma once
// What gated delta nets and Kimi delta attention share: a short convolution of queries, keys and values, the delta rule
// behind it, and the norm, the gate and the projection of its output. Tensors are made in an order and for a time that
// model/pass_mixers.cpp follows. Legend: T tokens, H hidden, G key heads of size K, A value heads of size V,
// C = 2·G·K + A·V.
#include "nn/layer.hpp"
#include "ops/decay_gate/decay_gate.hpp"
#include "ops/delta_rule/delta_rule.hpp"
#include "ops/gated_norm/gated_norm.hpp"
#include "ops/short_conv/short_conv.hpp"

namespace primus::nn {

/// Where the two differ.
struct DeltaVariant {
  ops::NormGate gate;
  enum class Decays { kOneAHead, kOneARow } decays;  // of a head's state
  std::optional<double> lowest_decay;
  std::int64_t chunk_size = 64;
};

class DeltaCore {
 public:
  DeltaCore(const model::GatedDeltaSpec& sizes, double epsilon, const DeltaVariant& variant, int layer,
            ParameterStore& parameters);

  /// What the rule is made of.
  struct Input {
    Tensor mixed_TC;   // queries, keys and values, as the convolution reads them
    Tensor decay_TAK;  // before the decay gate; K is 1 with one decay a head
    Tensor write_TA;   // before the sigmoid
  };
  /// What the rule reads: the convolution's output, decays and write strengths.
  ops::DeltaRule rule(const Input& in, const StepContext& step) const;

  struct Gradient {
    Tensor mixed_TC;  // of the convolution's output
    ops::DeltaRuleGradient of_rule;
  };
  /// Through the rule; dwrite_TA takes the gradient of Input::write_TA.
  Gradient rule_backward(const Tensor& dcontext_TAV, const ops::DeltaRule& rule, const Tensor& dwrite_TA) const;
  /// From there through the decay gate and the convolution.
  void input_backward(const Gradient& gradient, const Input& in, const StepContext& step, Tensor& ddecay_TAK,
                      Tensor& dmixed_TC);

  /// The rule's output, normed and behind its gate; made anew.
  Tensor gated(const Tensor& context_TAV, const Tensor& gate_TAV) const;
  /// dcontext_TAV, of what `gated` gave, becomes the gradient of the rule's output.
  void gated_backward(Tensor& dcontext_TAV, const Tensor& context_TAV, const Tensor& gate_TAV, Tensor& dgate_TAV);
  /// residual_TH += gated · projectionᵀ.
  void project(const Tensor& gated_TAV, Tensor& residual_TH) const;
  Parameter& projection() const { return out_; }

 private:
  struct Heads {
    Tensor q_TGK, k_TGK, v_TAV;
  };
  Heads heads(const Tensor& mixed_TC) const;
  ops::ShortConv convolution(const StepContext& step) const;
  ops::DecayGate decay_gate() const { return {a_log_.weight, dt_bias_.weight, variant_.lowest_decay}; }
  ops::GatedNorm output_norm() const { return {norm_.weight, variant_.gate, epsilon_}; }

  model::GatedDeltaSpec sizes_;
  double epsilon_;
  DeltaVariant variant_;
  Parameter& conv_;
  Parameter& dt_bias_;
  Parameter& a_log_;
  Parameter& norm_;
  Parameter& out_;
};

/// A parameter of the layer's mixer.
Parameter& mixer_parameter(ParameterStore& parameters, int layer, const char* part);

}  // namespace primus::nn
