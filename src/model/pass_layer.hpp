#pragma once
// Transformer layers, output layer and prediction depths of a pass, in bytes.
#include "model/pass_context.hpp"

namespace primus::model {

/// nn::TransformerLayer's twin.
class LayerPass {
 public:
  LayerPass(const ModelSpec& spec, int layer, const SavedDeclaration& declared);

  void forward(const PassContext& pass, PassSaved& saved, PassMode mode) const;
  void restore(const PassContext& pass, PassSaved& saved) const;
  /// Takes the gradient of its output, returns its input's.
  PassTensor backward(const PassContext& pass, PassTensor dy_TH, PassSaved& saved) const;

 private:
  struct Half {
    int input_slot, rstd_slot, mix_slot, output_slot, child;
    std::unique_ptr<PassSublayer> sublayer;
  };
  static PassTensor read(const PassContext& pass, const Half& half, PassSaved& saved);
  static void add_to_residual(const PassContext& pass, const Half& half, const PassTensor& normed_TH, PassSaved& saved,
                              PassMode mode);
  static void half_forward(const PassContext& pass, const Half& half, const PassTensor& normed_TH, PassSaved& saved,
                           PassMode mode);
  static void attention_half(const PassContext& pass, const Half& half, const PassTensor& normed_TH, PassSaved& saved,
                             PassMode mode);
  static PassTensor restored_input(const PassContext& pass, const Half& half, const PassTensor& read_TH,
                                   PassSaved& saved);
  static PassTensor half_backward(const PassContext& pass, const Half& half, PassTensor dy_TC, PassSaved& saved);
  static PassTensor streams_backward(const PassContext& pass, const Half& half, PassTensor dy_TC, PassSaved& saved);

  Half attention_;
  Half mlp_;
};

/// nn::OutputLayer's twin.
class OutputPass {
 public:
  enum class Training { kFrozen, kTrained };
  OutputPass(LossFusion fusion, Training training) : fusion_(fusion), training_(training) {}

  /// The losses of the tokens.
  PassTensor forward(const PassContext& pass, PassSaved& saved) const;
  PassTensor normed(const PassContext& pass, PassSaved& saved) const;
  PassTensor backward(const PassContext& pass, const PassTensor& dnormed_TH, PassSaved& saved) const;

 private:
  PassTensor read(const PassContext& pass, PassSaved& saved) const;

  LossFusion fusion_;
  Training training_;
};

/// nn::MtpDepth's twin.
class MtpPass {
 public:
  MtpPass(const ModelSpec& spec, LossFusion fusion, int depth, const SavedDeclaration& declared);

  /// The losses, or nothing where they are taken on another stage.
  PassTensor forward(const PassContext& pass, PassSaved& saved) const;
  PassTensor normed(const PassContext& pass, PassSaved& saved) const;
  PassTensor backward(const PassContext& pass, const PassTensor& dnormed_TH, PassSaved& saved) const;

 private:
  struct Joined {
    PassTensor embedding_TH, both_T2H;
  };
  Joined join(const PassContext& pass, PassSaved& saved) const;

  Part detached_;
  Part has_loss_;
  LayerPass layer_;
  OutputPass output_;
};

/// The embedding's output, or its gradient, in `type`, times its factor, if it has one.
void scale_embedding(const PassContext& pass, DType type);

/// [tokens, hidden] of a layer's tokens.
std::int64_t hidden_elements(const ModelSpec& spec, const PassSaved& layer);

}  // namespace primus::model
