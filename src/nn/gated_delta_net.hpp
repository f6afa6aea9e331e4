#pragma once
// Gated DeltaNet: one projection gives queries, keys and values, which a short convolution mixes, an output gate, and a
// write strength and a decay a head; the delta rule's output is normed, gated and projected back. What is kept is the
// projection's output and the rule's; the convolution's is made again.
#include "nn/delta_core.hpp"

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
    DeltaCore::Input input;
    Tensor gate_TAV;  // of the output
  };
  Parts parts(const Tensor& projected) const;
  void project(const Tensor& x_TH, Saved& saved) const;
  void attend(Saved& saved, const StepContext& step) const;
  void add_weight_gradients(const std::vector<Tensor>& deferred) const;

  model::GatedDeltaSpec delta_;
  Parameter& in_;
  DeltaCore core_;
};

}  // namespace primus::nn
