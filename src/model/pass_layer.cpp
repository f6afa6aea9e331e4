#include "model/pass_layer.hpp"

namespace primus::model {
namespace {

PassTensor activation_like(const PassContext& pass, const PassTensor& x_TH) {
  return pass.ledger.tensor(x_TH.num_elements(), pass.activations());
}

std::int64_t rows_of(const PassContext& pass, const PassTensor& x_TH) {
  return x_TH.num_elements() / pass.spec.hidden_size;
}

std::unique_ptr<PassSublayer> mlp_of(const ModelSpec& spec, const SavedDeclaration& declared) {
  const bool is_dense = declared.children.at(LayerSlot::kMlp).tensors.size() == 1;
  return is_dense ? dense_mlp_pass() : moe_pass(spec);
}

/// x times a number.
PassTensor scaled(const PassContext& pass, const PassTensor& x) {
  const std::vector<PassTensor> factor = pass.ledger.number(x.dtype());
  return pass.ledger.like(x);
}

bool has_dropout(const PassContext& pass) {
  return pass.spec.dropout.hidden > 0.0;
}

}  // namespace

void scale_embedding(const PassContext& pass, DType type) {
  if (pass.spec.width_scaling && pass.spec.width_scaling->embedding != 1.0) pass.ledger.number(type);
}

std::int64_t hidden_elements(const PassSaved& layer) {
  return layer.declared(LayerSlot::kInput).num_elements();
}

LayerPass::LayerPass(const ModelSpec& spec, int layer, const SavedDeclaration& declared)
    : attention_{LayerSlot::kInput, LayerSlot::kInputRstd, LayerSlot::kMixer, mixer_pass(spec, layer)},
      mlp_{LayerSlot::kMiddle, LayerSlot::kMiddleRstd, LayerSlot::kMlp, mlp_of(spec, declared)} {}

void LayerPass::half_forward(const PassContext& pass, const Half& half, const PassTensor& normed_TH, PassSaved& saved,
                             PassMode mode) {
  PassSaved& own = saved.child(half.child);
  const DType residual = pass.policy.residual_type();
  if (residual == pass.activations() && !has_dropout(pass)) return half.sublayer->forward(pass, normed_TH, own, mode);
  const PassTensor output_TH = activation_like(pass, normed_TH);
  half.sublayer->forward(pass, normed_TH, own, mode);
  dropout_into_sum(pass, output_TH, residual);
}

void LayerPass::attention_half(const PassContext& pass, const Half& half, const PassTensor& normed_TH, PassSaved& saved,
                               PassMode mode) {
  const PassTensor input = saved.at(half.input_slot);
  PassNorm(pass.spec, pass.spec.hidden_size)
      .forward(pass, input, rows_of(pass, input), pass.activations(), half.rstd_slot, saved);
  saved.allocate(LayerSlot::kMiddle);
  half_forward(pass, half, normed_TH, saved, mode);
  if (mode == PassMode::kTraining) saved.child(half.child).drop_remade();
}

void LayerPass::forward(const PassContext& pass, PassSaved& saved, PassMode mode) const {
  const PassTensor normed_TH = activation_like(pass, saved.at(LayerSlot::kInput));
  attention_half(pass, attention_, normed_TH, saved, mode);
  const PassTensor middle = saved.at(mlp_.input_slot);
  PassNorm(pass.spec, pass.spec.hidden_size)
      .forward(pass, middle, rows_of(pass, middle), pass.activations(), mlp_.rstd_slot, saved);
  half_forward(pass, mlp_, normed_TH, saved, mode);
  if (mode == PassMode::kTraining) saved.drop_remade();
}

void LayerPass::restore(const PassContext& pass, PassSaved& saved) const {
  if (!saved.is_missing(LayerSlot::kMiddle)) return;
  const PassTensor normed_TH = activation_like(pass, saved.at(LayerSlot::kInput));
  attention_half(pass, attention_, normed_TH, saved, PassMode::kRecompute);
}

PassTensor LayerPass::half_backward(const PassContext& pass, const Half& half, PassTensor dy_TH, PassSaved& saved) {
  PassLedger& ledger = pass.ledger;
  const PassTensor input = saved.at(half.input_slot);
  const std::int64_t rows = rows_of(pass, input);
  const PassNorm norm(pass.spec, pass.spec.hidden_size);
  const PassTensor normed_TH = activation_like(pass, input);
  norm.forward(pass, input, rows, pass.activations(), half.rstd_slot, saved);
  const PassTensor rstd = saved.at(half.rstd_slot);
  half.sublayer->restore(pass, normed_TH, saved.child(half.child));
  PassTensor doutput_TH = ledger.converted(dy_TH, pass.activations());
  if (has_dropout(pass)) {
    doutput_TH = activation_like(pass, dy_TH);
    ledger.convert_briefly(dy_TH.num_elements(), dy_TH.dtype(), pass.activations());
  }
  const PassTensor dnormed_TH = activation_like(pass, input);
  half.sublayer->backward(pass, doutput_TH, normed_TH, saved.child(half.child));
  doutput_TH.reset();
  if (pass.spec.residual_after_norm == Part::kAbsent) {
    norm.backward(pass, dnormed_TH, input.dtype(), rows);
  } else {
    ledger.combine_into(dy_TH.num_elements(), dy_TH.dtype(), dnormed_TH.dtype());
    norm.backward(pass, dy_TH, input.dtype(), rows);
  }
  saved.release(half.input_slot);
  saved.release(half.rstd_slot);
  return dy_TH;
}

PassTensor LayerPass::backward(const PassContext& pass, PassTensor dy_TH, PassSaved& saved) const {
  PassTensor dmiddle_TH = half_backward(pass, mlp_, std::move(dy_TH), saved);
  return half_backward(pass, attention_, std::move(dmiddle_TH), saved);
}

PassTensor OutputPass::normed(const PassContext& pass, PassSaved& saved) const {
  const PassTensor& input = saved.at(OutputSlot::kInput);
  PassTensor normed_TH = pass.ledger.tensor(input.num_elements(), pass.policy.parameters);
  PassNorm(pass.spec, pass.spec.hidden_size).apply(pass, input, rows_of(pass, input), normed_TH.dtype());
  return normed_TH;
}

PassTensor OutputPass::forward(const PassContext& pass, PassSaved& saved) const {
  const PassTensor& hidden = saved.at(OutputSlot::kInput);
  const std::int64_t tokens = rows_of(pass, hidden);
  const ProductSizes product{tokens, pass.spec.hidden_size, share(pass.spec.padded_vocab_size, pass.sharding.tensor)};
  const ProductTypes types{pass.policy.parameters, pass.policy.logit_type()};
  const PassTensor normed_TH = pass.ledger.tensor(hidden.num_elements(), pass.policy.parameters);
  PassNorm(pass.spec, pass.spec.hidden_size).forward(pass, hidden, tokens, normed_TH.dtype(), OutputSlot::kRstd, saved);
  PassTensor loss_T = pass.ledger.tensor(tokens, pass.policy.statistics);
  const PassTensor grad_T = scaled(pass, loss_T);
  if (fusion_ == LossFusion::kFused) {
    saved.allocate(OutputSlot::kHiddenGradient);
    pass.ledger.scratch(pass.scratch.fused_loss(product, types));
  } else {
    saved.allocate(OutputSlot::kLogits);
    pass.ledger.scratch(pass.scratch.product_forward(product, types));
  }
  return loss_T;
}

PassTensor OutputPass::backward(const PassContext& pass, const PassTensor&, PassSaved& saved) const {
  const PassTensor hidden = saved.at(OutputSlot::kInput);
  const PassTensor rstd = saved.at(OutputSlot::kRstd);
  const std::int64_t tokens = rows_of(pass, hidden);
  PassTensor gradient_TH;
  if (fusion_ == LossFusion::kFused) {
    gradient_TH = saved.at(OutputSlot::kHiddenGradient);
  } else {
    gradient_TH = pass.ledger.tensor(hidden.num_elements(), pass.policy.parameters);
    if (training_ == Training::kTrained) normed(pass, saved);
    pass.ledger.scratch(
        pass.scratch.product_backward({tokens, pass.spec.hidden_size, saved.declared(OutputSlot::kLogits).shape.at(1)},
                                      {pass.policy.parameters, pass.policy.logit_type()}));
  }
  PassTensor dhidden_TH = pass.ledger.like(hidden);
  PassNorm(pass.spec, pass.spec.hidden_size).backward(pass, gradient_TH, hidden.dtype(), tokens);
  saved.release_all();
  return dhidden_TH;
}

MtpPass::MtpPass(const ModelSpec& spec, LossFusion fusion, int depth, const SavedDeclaration& declared)
    : detached_(spec.mtp_variant.detached),
      has_loss_(Part::kAbsent),
      layer_(spec, static_cast<int>(spec.num_layers()) + depth, declared.children.at(MtpSlot::kLayer)),
      output_(fusion, detached_ == Part::kPresent ? OutputPass::Training::kFrozen : OutputPass::Training::kTrained) {
  const SavedDeclaration& output = declared.children.at(MtpSlot::kOutput);
  for (const int slot : {OutputSlot::kHiddenGradient, OutputSlot::kLogits}) {
    if (output.tensors.at(static_cast<std::size_t>(slot)).num_elements() > 0) has_loss_ = Part::kPresent;
  }
}

MtpPass::Joined MtpPass::join(const PassContext& pass, PassSaved& saved) const {
  const std::int64_t elements = hidden_elements(saved.child(MtpSlot::kLayer));
  const std::int64_t tokens = elements / pass.spec.hidden_size;
  const DType type = pass.policy.parameters;
  Joined joined{pass.ledger.tensor(elements, type), pass.ledger.tensor(2 * elements, type)};
  scale_embedding(pass, type);
  const PassNorm norm(pass.spec, pass.spec.hidden_size);
  for (const int slot : {MtpSlot::kEmbeddingRstd, MtpSlot::kHiddenRstd}) {
    norm.forward(pass, joined.embedding_TH, tokens, type, slot, saved);
  }
  return joined;
}

PassTensor MtpPass::forward(const PassContext& pass, PassSaved& saved) const {
  PassSaved& layer_saved = saved.child(MtpSlot::kLayer);
  PassSaved& output_saved = saved.child(MtpSlot::kOutput);
  const std::int64_t elements = hidden_elements(layer_saved);
  const PassTensor joined_TH = pass.ledger.tensor(elements, pass.policy.parameters);
  join(pass, saved);
  pass.product_forward(elements / pass.spec.hidden_size, 2 * pass.spec.hidden_size, pass.spec.hidden_size);
  layer_saved.allocate(LayerSlot::kInput);
  output_saved.allocate(OutputSlot::kInput);
  layer_.forward(pass, layer_saved, PassMode::kTraining);
  if (has_loss_ == Part::kPresent) return output_.forward(pass, output_saved);
  output_saved.allocate(OutputSlot::kRstd);
  return {};
}

PassTensor MtpPass::normed(const PassContext& pass, PassSaved& saved) const {
  return output_.normed(pass, saved.child(MtpSlot::kOutput));
}

PassTensor MtpPass::backward(const PassContext& pass, const PassTensor& dnormed_TH, PassSaved& saved) const {
  PassLedger& ledger = pass.ledger;
  PassSaved& layer_saved = saved.child(MtpSlot::kLayer);
  PassSaved& output_saved = saved.child(MtpSlot::kOutput);
  PassTensor gradient_TH;
  if (has_loss_ == Part::kPresent) {
    gradient_TH = output_.backward(pass, dnormed_TH, output_saved);
  } else {
    gradient_TH = ledger.like(output_saved.at(OutputSlot::kInput));
    output_saved.release_all();
  }
  layer_.restore(pass, layer_saved);
  gradient_TH = layer_.backward(pass, std::move(gradient_TH), layer_saved);
  gradient_TH = ledger.converted(gradient_TH, pass.policy.parameters);

  const std::int64_t elements = hidden_elements(layer_saved);
  const std::int64_t tokens = elements / pass.spec.hidden_size;
  const DType type = pass.policy.parameters;
  const Joined joined = join(pass, saved);
  const PassTensor dboth_T2H = ledger.tensor(2 * elements, type);
  pass.product_backward(tokens, 2 * pass.spec.hidden_size, pass.spec.hidden_size);
  PassTensor dembedding_TH = ledger.tensor(elements, type);
  const PassNorm norm(pass.spec, pass.spec.hidden_size);
  norm.backward(pass, dboth_T2H, type, tokens);
  if (detached_ == Part::kAbsent) {
    scale_embedding(pass, type);
    dembedding_TH.reset();
  }
  PassTensor dhidden_TH = ledger.tensor(elements, type);
  norm.backward(pass, dboth_T2H, type, tokens);
  saved.release(MtpSlot::kEmbeddingRstd);
  saved.release(MtpSlot::kHiddenRstd);
  return dhidden_TH;
}

}  // namespace primus::model
