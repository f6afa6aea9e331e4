#include "model/pass_layer.hpp"

#include <utility>

namespace primus::model {
namespace {

/// Tokens whose residual streams x_TC is.
std::int64_t rows_of(const PassContext& pass, const PassTensor& x_TC) {
  return x_TC.num_elements() / pass.spec.residual_width();
}

/// Hidden states of so many tokens.
PassTensor hidden_of(const PassContext& pass, std::int64_t rows) {
  return pass.ledger.tensor(rows * pass.spec.hidden_size, pass.activations());
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

bool has_head(const PassContext& pass) {
  return pass.spec.hyper && pass.spec.hyper->has_head();
}

bool has_dropout(const PassContext& pass) {
  return pass.spec.dropout.hidden > 0.0;
}

}  // namespace

void scale_embedding(const PassContext& pass, DType type) {
  if (pass.spec.width_scaling && pass.spec.width_scaling->embedding != 1.0) pass.ledger.number(type);
}

std::int64_t hidden_elements(const ModelSpec& spec, const PassSaved& layer) {
  return layer.declared(LayerSlot::kInput).num_elements() / spec.num_streams();
}

LayerPass::LayerPass(const ModelSpec& spec, int layer, const SavedDeclaration& declared)
    : attention_{LayerSlot::kInput,       LayerSlot::kInputRstd, LayerSlot::kInputMix,
                 LayerSlot::kMixerOutput, LayerSlot::kMixer,     mixer_pass(spec, layer)},
      mlp_{LayerSlot::kMiddle,    LayerSlot::kMiddleRstd, LayerSlot::kMiddleMix,
           LayerSlot::kMlpOutput, LayerSlot::kMlp,        mlp_of(spec, declared)} {}

PassTensor LayerPass::read(const PassContext& pass, const Half& half, PassSaved& saved) {
  const PassTensor& input = saved.at(half.input_slot);
  if (!pass.spec.hyper) return input;
  return PassStreams(pass, PassStreams::Kind::kConnection, rows_of(pass, input))
      .read(half.input_slot, half.mix_slot, saved);
}

void LayerPass::add_to_residual(const PassContext& pass, const Half& half, const PassTensor& normed_TH,
                                PassSaved& saved, PassMode mode) {
  const DType residual = pass.policy.residual_type();
  if (residual == pass.activations() && !has_dropout(pass)) return half.sublayer->forward(pass, normed_TH, saved, mode);
  const PassTensor output_TH = pass.ledger.like(normed_TH);
  half.sublayer->forward(pass, normed_TH, saved, mode);
  dropout_into_sum(pass, output_TH, residual);
}

void LayerPass::half_forward(const PassContext& pass, const Half& half, const PassTensor& normed_TH, PassSaved& saved,
                             PassMode mode) {
  const std::int64_t rows = rows_of(pass, saved.at(half.input_slot));
  PassNorm(pass.spec, pass.spec.hidden_size)
      .forward(pass, read(pass, half, saved), rows, pass.activations(), half.rstd_slot, saved);
  PassSaved& own = saved.child(half.child);
  if (!pass.spec.hyper) return add_to_residual(pass, half, normed_TH, own, mode);
  saved.allocate(half.output_slot);
  half.sublayer->forward(pass, normed_TH, own, mode);
  PassStreams(pass, PassStreams::Kind::kConnection, rows).write();
}

void LayerPass::attention_half(const PassContext& pass, const Half& half, const PassTensor& normed_TH, PassSaved& saved,
                               PassMode mode) {
  saved.allocate(LayerSlot::kMiddle);
  half_forward(pass, half, normed_TH, saved, mode);
  if (mode == PassMode::kTraining) saved.child(half.child).drop_remade();
}

void LayerPass::forward(const PassContext& pass, PassSaved& saved, PassMode mode) const {
  const PassTensor normed_TH = hidden_of(pass, rows_of(pass, saved.at(LayerSlot::kInput)));
  attention_half(pass, attention_, normed_TH, saved, mode);
  half_forward(pass, mlp_, normed_TH, saved, mode);
  if (mode == PassMode::kTraining) saved.drop_remade();
}

void LayerPass::restore(const PassContext& pass, PassSaved& saved) const {
  if (!saved.is_missing(LayerSlot::kMiddle)) return;
  const PassTensor normed_TH = hidden_of(pass, rows_of(pass, saved.at(LayerSlot::kInput)));
  attention_half(pass, attention_, normed_TH, saved, PassMode::kRecompute);
}

PassTensor LayerPass::restored_input(const PassContext& pass, const Half& half, const PassTensor& read_TH,
                                     PassSaved& saved) {
  const std::int64_t rows = read_TH.num_elements() / pass.spec.hidden_size;
  PassTensor normed_TH = hidden_of(pass, rows);
  PassNorm(pass.spec, pass.spec.hidden_size).forward(pass, read_TH, rows, pass.activations(), half.rstd_slot, saved);
  PassSaved& own = saved.child(half.child);
  if (pass.spec.hyper && saved.is_missing(half.output_slot)) {
    saved.allocate(half.output_slot);
    half.sublayer->forward(pass, normed_TH, own, PassMode::kRecompute);
  } else {
    half.sublayer->restore(pass, normed_TH, own);
  }
  return normed_TH;
}

PassTensor LayerPass::half_backward(const PassContext& pass, const Half& half, PassTensor dy_TC, PassSaved& saved) {
  if (pass.spec.hyper) return streams_backward(pass, half, std::move(dy_TC), saved);
  PassLedger& ledger = pass.ledger;
  const PassTensor input = saved.at(half.input_slot);
  const std::int64_t rows = rows_of(pass, input);
  const PassNorm norm(pass.spec, pass.spec.hidden_size);
  const PassTensor normed_TH = restored_input(pass, half, input, saved);
  const PassTensor rstd = saved.at(half.rstd_slot);
  PassTensor doutput_TH = ledger.converted(dy_TC, pass.activations());
  if (has_dropout(pass)) {
    doutput_TH = hidden_of(pass, rows);
    ledger.convert_briefly(dy_TC.num_elements(), dy_TC.dtype(), pass.activations());
  }
  const PassTensor dnormed_TH = hidden_of(pass, rows);
  half.sublayer->backward(pass, doutput_TH, normed_TH, saved.child(half.child));
  doutput_TH.reset();
  if (pass.spec.residual_after_norm == Part::kAbsent) {
    norm.backward(pass, dnormed_TH, input.dtype(), rows);
  } else {
    ledger.combine_into(dy_TC.num_elements(), dy_TC.dtype(), dnormed_TH.dtype());
    norm.backward(pass, dy_TC, input.dtype(), rows);
  }
  saved.release(half.input_slot);
  saved.release(half.rstd_slot);
  return dy_TC;
}

PassTensor LayerPass::streams_backward(const PassContext& pass, const Half& half, PassTensor dy_TC, PassSaved& saved) {
  const PassTensor read_TH = read(pass, half, saved);
  const PassTensor input = saved.at(half.input_slot);
  const PassTensor mix_TM = saved.at(half.mix_slot);
  const std::int64_t rows = rows_of(pass, input);
  const PassStreams streams(pass, PassStreams::Kind::kConnection, rows);
  const PassTensor normed_TH = restored_input(pass, half, read_TH, saved);
  PassTensor doutput_TH = hidden_of(pass, rows);
  PassTensor dweight_TM = streams.write_backward();
  saved.release(half.output_slot);
  const PassTensor dnormed_TH = hidden_of(pass, rows);
  half.sublayer->backward(pass, doutput_TH, normed_TH, saved.child(half.child));
  doutput_TH.reset();
  const PassTensor dread_TH = hidden_of(pass, rows);
  PassNorm(pass.spec, pass.spec.hidden_size).backward(pass, dnormed_TH, read_TH.dtype(), rows);
  streams.read_backward(std::move(dweight_TM));
  for (const int slot : {half.input_slot, half.rstd_slot, half.mix_slot}) saved.release(slot);
  return dy_TC;
}

PassTensor LayerPass::backward(const PassContext& pass, PassTensor dy_TC, PassSaved& saved) const {
  PassTensor dmiddle_TC = half_backward(pass, mlp_, std::move(dy_TC), saved);
  return half_backward(pass, attention_, std::move(dmiddle_TC), saved);
}

PassTensor OutputPass::read(const PassContext& pass, PassSaved& saved) const {
  const PassTensor& input = saved.at(OutputSlot::kInput);
  if (!has_head(pass)) {
    if (pass.spec.num_streams() == 1) return input;
    PassTensor mean_TH = pass.ledger.tensor(input.num_elements() / pass.spec.num_streams(), input.dtype());
    pass.ledger.number(input.dtype());
    return mean_TH;
  }
  return PassStreams(pass, PassStreams::Kind::kHead, rows_of(pass, input))
      .read(OutputSlot::kInput, OutputSlot::kMix, saved);
}

PassTensor OutputPass::normed(const PassContext& pass, PassSaved& saved) const {
  const PassTensor read_TH = read(pass, saved);
  const std::int64_t rows = rows_of(pass, saved.at(OutputSlot::kInput));
  PassTensor normed_TH = pass.ledger.tensor(read_TH.num_elements(), pass.policy.parameters);
  PassNorm(pass.spec, pass.spec.hidden_size).apply(pass, read_TH, rows, normed_TH.dtype());
  return normed_TH;
}

PassTensor OutputPass::forward(const PassContext& pass, PassSaved& saved) const {
  const std::int64_t tokens = rows_of(pass, saved.at(OutputSlot::kInput));
  const ProductSizes product{tokens, pass.spec.hidden_size, share(pass.spec.padded_vocab_size, pass.sharding.tensor)};
  const ProductTypes types{pass.policy.parameters, pass.policy.logit_type()};
  const PassTensor normed_TH = pass.ledger.tensor(tokens * pass.spec.hidden_size, pass.policy.parameters);
  PassNorm(pass.spec, pass.spec.hidden_size)
      .forward(pass, read(pass, saved), tokens, normed_TH.dtype(), OutputSlot::kRstd, saved);
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
  const PassTensor input = saved.at(OutputSlot::kInput);
  const PassTensor rstd = saved.at(OutputSlot::kRstd);
  const std::int64_t tokens = rows_of(pass, input);
  PassTensor gradient_TH;
  if (fusion_ == LossFusion::kFused) {
    gradient_TH = saved.at(OutputSlot::kHiddenGradient);
  } else {
    gradient_TH = pass.ledger.tensor(tokens * pass.spec.hidden_size, pass.policy.parameters);
    if (training_ == Training::kTrained) normed(pass, saved);
    pass.ledger.scratch(
        pass.scratch.product_backward({tokens, pass.spec.hidden_size, saved.declared(OutputSlot::kLogits).shape.at(1)},
                                      {pass.policy.parameters, pass.policy.logit_type()}));
  }
  const PassTensor read_TH = read(pass, saved);
  PassTensor dread_TH = pass.ledger.like(read_TH);
  PassNorm(pass.spec, pass.spec.hidden_size).backward(pass, gradient_TH, input.dtype(), tokens);
  PassTensor dinput_TC = dread_TH;
  if (has_head(pass)) {
    const PassTensor mix_TN = saved.at(OutputSlot::kMix);
    dinput_TC = pass.ledger.like(input);
    PassStreams(pass, PassStreams::Kind::kHead, tokens).read_backward(pass.ledger.like(mix_TN));
  } else if (pass.spec.num_streams() > 1) {
    dinput_TC = pass.ledger.like(input);
    pass.ledger.number(dread_TH.dtype());
  }
  saved.release_all();
  return dinput_TC;
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
  const std::int64_t elements = hidden_elements(pass.spec, saved.child(MtpSlot::kLayer));
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
  const std::int64_t elements = hidden_elements(pass.spec, layer_saved);
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
  PassTensor gradient_TC;
  if (has_loss_ == Part::kPresent) {
    gradient_TC = output_.backward(pass, dnormed_TH, output_saved);
  } else {
    gradient_TC = ledger.like(output_saved.at(OutputSlot::kInput));
    output_saved.release_all();
  }
  layer_.restore(pass, layer_saved);
  gradient_TC = layer_.backward(pass, std::move(gradient_TC), layer_saved);
  const PassTensor gradient_TH =
      ledger.converted(sum_of_streams(pass, std::exchange(gradient_TC, {})), pass.policy.parameters);

  const std::int64_t elements = hidden_elements(pass.spec, layer_saved);
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
