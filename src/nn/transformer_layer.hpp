#pragma once
// One layer: x1 = x + attention(norm(x)); x2 = x1 + mlp(norm(x1)). The residual stream's tensors are what is kept; the
// normed inputs are made again in backward. With residuals after the norm x1 = norm(x) + attention(norm(x)), and x2
// alike. With several residual streams x, x1 and x2 are all of them side by side: a half's norm sees what its
// hyper-connection reads, and its output is written back by that.
#include "nn/hyper_connection.hpp"
#include "nn/layer.hpp"
#include "nn/moe.hpp"
#include "nn/norm.hpp"
#include "nn/residual_dropout.hpp"

namespace primus::nn {

class TransformerLayer {
 public:
  TransformerLayer(const model::ModelSpec& spec, const model::NumericPolicy& policy, int layer,
                   ParameterStore& parameters);

  /// output_TC (overwritten) from saved's kInput, which the caller has filled. In training, what is to be made again is
  /// dropped.
  void forward(Saved& saved, const StepContext& step, Tensor& output_TC);

  /// Before backward, where the whole layer is made again: the half before the MLP, from saved's kInput.
  void restore(Saved& saved, const StepContext& step);

  /// Gradient of the layer's input from that of its output. With kWithBackward it may be dy_TC's own storage.
  Tensor backward(Tensor dy_TC, Saved& saved, const StepContext& step);

  void weight_grad(Saved& saved);

  Sublayer& attention() { return *attention_.sublayer; }
  /// nullptr in a dense layer.
  Moe* moe() { return moe_; }

 private:
  /// A sublayer with the norm before it and what happens to its output on the way into the residual stream, and where
  /// its tensors are kept.
  struct Half {
    std::string name;
    Norm norm;
    ResidualDropout dropout;
    int input_slot, rstd_slot, mix_slot, output_slot, child;
    std::optional<HyperConnection> streams;  // several residual streams
    std::unique_ptr<Sublayer> sublayer;
  };
  Half make_half(const model::ModelSpec& spec, int layer, const char* part, const char* norm,
                 ParameterStore& parameters) const;
  std::string observed_name(const Half& half, const StepContext& step, const char* end) const;
  /// What the half's norm sees: its input, or what is read of several streams.
  Tensor read(const Half& half, Saved& saved) const;
  /// From the half's input: output_TC (overwritten). `normed_TH` is scratch.
  void half_forward(const Half& half, Saved& saved, const StepContext& step, Tensor& normed_TH, Tensor& output_TC);
  /// y_TH (overwritten): the sublayer's output behind dropout.
  void sublayer_output(const Half& half, const Tensor& normed_TH, Saved& saved, const StepContext& step, Tensor& y_TH);
  /// residual_TH (overwritten): what the sublayer's output is added to, and that output.
  void add_to_residual(const Half& half, const Tensor& input, const Tensor& normed_TH, Saved& saved,
                       const StepContext& step, Tensor& residual_TH);
  /// saved's kMiddle from its kInput; `normed_TH` is scratch.
  void attention_half(Saved& saved, const StepContext& step, Tensor& normed_TH);
  /// One half of the layer, backwards: a sublayer and the norm before it.
  Tensor half_backward(Tensor dy_TC, Half& half, Saved& saved, const StepContext& step);
  Tensor streams_backward(Tensor dy_TC, Half& half, Saved& saved, const StepContext& step);
  /// What backward needs of the sublayer, made again where it is missing, and the normed input.
  Tensor restored_input(const Half& half, const Tensor& read_TH, Saved& saved, const StepContext& step);
  /// dnormed_TH; reads the gradient of the sublayer's output behind dropout.
  Tensor sublayer_backward(Half& half, const Tensor& doutput_TH, const Tensor& normed_TH, Saved& saved,
                           const StepContext& step);
  /// An uninitialised tensor for the hidden states of x_TC's tokens, in the type that sublayers compute in.
  Tensor hidden_like(const Tensor& x_TC) const {
    return at::empty({x_TC.size(0), hidden_}, x_TC.options().dtype(activations_));
  }

  std::int64_t hidden_;
  at::ScalarType activations_;  // the residual stream may be wider
  enum class Residual { kInput, kNormedInput } residual_;
  Half attention_;
  Half mlp_;
  Moe* moe_ = nullptr;  // mlp_'s sublayer in an MoE layer
};

}  // namespace primus::nn
