#include "nn/compressed_attention.hpp"

#include <cmath>

#include "nn/weight_gradients.hpp"
#include "ops/gemm/gemm.hpp"

// Legend: T tokens, H hidden, A heads, D their size, E width of keys and gates that entries are made of.
namespace primus::nn {
namespace {

using Slot = model::CompressedSlot;

std::string name_of(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.self_attention.{}", layer, part);
}

}  // namespace

CompressedAttention::CompressedAttention(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : spec_(spec.compressed),
      ratio_(spec_.ratio(layer)),
      pairs_(spec.rope.pairs),
      scale_(1.0 / std::sqrt(static_cast<double>(spec_.head_dim))),
      query_down_(parameters.get(name_of(layer, "linear_q_down_proj.weight"))),
      query_down_norm_(spec, name_of(layer, "q_layernorm"), parameters),
      query_up_(parameters.get(name_of(layer, "linear_q_up_proj.weight"))),
      query_norm_(Norm::without_weight(spec.norm_epsilon, spec_.head_dim, query_up_.weight)),
      key_(parameters.get(name_of(layer, "linear_kv_proj.weight"))),
      key_norm_(spec, name_of(layer, "kv_layernorm"), parameters),
      output_(spec, layer, parameters) {
  for (const model::RopeSpec* rope : {&spec.rope, &spec.compressed.entry_rope}) {
    PRIMUS_CHECK(rope->type != model::RopeType::kYarn || rope->mscale == rope->mscale_all_dim,
                 "tables that turn a context back must not scale it");
  }
  if (spec_.sinks == model::Part::kPresent) sinks_ = &parameters.get(name_of(layer, "core_attention.sinks"));
  if (ratio_ > 0) compressor_.emplace(spec, layer, name_of(layer, "compressor"), spec_.head_dim, parameters);
  if (spec_.picks_entries(layer)) indexer_.emplace(spec, layer, parameters);
}

void CompressedAttention::begin_step() {
  if (indexer_) indexer_->begin_step();
}

std::optional<double> CompressedAttention::indexer_loss() const {
  return indexer_ && indexer_->is_taught() ? std::optional(indexer_->loss()) : std::nullopt;
}

const RopeTables& CompressedAttention::tables(const StepContext& step) const {
  return ratio_ > 0 ? step.entry_rope : step.rope;
}

void CompressedAttention::turn(const StepContext& step, ops::RopeDirection direction, const Tensor& x_TAD) const {
  turn_tail(tables(step), pairs_, direction, x_TAD);
}

void CompressedAttention::project(const Tensor& x_TH, Saved& saved) {
  if (saved.is_missing(Slot::kQueryDown)) {
    ops::linear_forward(x_TH, query_down_.weight, saved.allocate(Slot::kQueryDown));
  }
  if (saved.is_missing(Slot::kKey)) {
    Tensor key_TD = flat(saved.allocate(Slot::kKey));
    ops::linear_forward(x_TH, key_.weight, key_TD);
  }
  if (saved.is_missing(Slot::kKeyGate)) {
    ops::linear_forward(x_TH, compressor_->projection().weight, saved.allocate(Slot::kKeyGate));
  }
  if (!saved.is_missing(Slot::kQueryUp)) return;
  Tensor query_TQ = flat(saved.allocate(Slot::kQueryUp));
  ops::linear_forward(latent(saved), query_up_.weight, query_TQ);
}

Tensor CompressedAttention::latent(Saved& saved) const {
  const Tensor& down = saved.at(Slot::kQueryDown);
  Tensor normed = at::empty_like(down);
  query_down_norm_.forward(down, Slot::kQueryDownRstd, saved, normed);
  return normed;
}

CompressedAttention::Heads CompressedAttention::heads(Saved& saved, const StepContext& step) const {
  Heads made{at::empty_like(saved.at(Slot::kQueryUp)), at::empty_like(saved.at(Slot::kKey))};
  query_norm_.forward(saved.at(Slot::kQueryUp), Slot::kQueryRstd, saved, made.query_TAD);
  key_norm_.forward(saved.at(Slot::kKey), Slot::kKeyRstd, saved, made.key_T1D);
  turn(step, ops::RopeDirection::kForward, made.query_TAD);
  turn(step, ops::RopeDirection::kForward, made.key_T1D);
  return made;
}

bool CompressedAttention::has_entries(const StepContext& step) const {
  return compressor_ && step.batch.seq_length >= ratio_;
}

ops::AttentionOptions CompressedAttention::window_options(const Tensor& like, const StepContext& step) const {
  ops::AttentionOptions options{
      .scale = scale_, .window = spec_.window, .first_key_BS = step.first_key_BS, .sink_A = {}};
  if (sinks_ != nullptr) options.sink_A = sinks_->weight.to(ops::accumulator_type(like.scalar_type()));
  return options;
}

ops::CompressedAttentionOptions CompressedAttention::entry_options(Saved& saved, const StepContext& step) const {
  return {.scale = scale_,
          .windowing = compressor_->windowing(step),
          .selected_BSW = indexer_ ? saved.at(Slot::kSelected) : Tensor()};
}

void CompressedAttention::attend(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  if (indexer_ && has_entries(step) && saved.is_missing(Slot::kSelected)) {
    const Tensor latent_TL = latent(saved);
    indexer_->select(x_TH, latent_TL, step, saved.allocate(Slot::kSelected));
  }
  const Heads in = heads(saved, step);
  const Tensor query_BSAD = by_sequence(in.query_TAD, step.batch);
  const Tensor key_BS1D = by_sequence(in.key_T1D, step.batch);
  Tensor& context_TAD = saved.allocate(Slot::kContext);
  Tensor context_BSAD = by_sequence(context_TAD, step.batch);
  Tensor& lse_BAS = saved.allocate(Slot::kLogSumExp);
  ops::attention_forward(query_BSAD, key_BS1D, key_BS1D, window_options(query_BSAD, step), context_BSAD, lse_BAS);
  if (has_entries(step)) {
    const KeyCompressor::Entries made = compressor_->entries(saved.at(Slot::kKeyGate), step);
    ops::compressed_attention_forward(query_BSAD, made.entry_BCD, entry_options(saved, step), context_BSAD, lse_BAS);
  }
  turn(step, ops::RopeDirection::kBackward, context_TAD);
}

void CompressedAttention::forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  project(x_TH, saved);
  attend(x_TH, saved, step);
  output_.down(flat(saved.at(Slot::kContext)), saved.allocate(Slot::kOutputDown));
  output_.project(saved.at(Slot::kOutputDown), residual_TH);
}

void CompressedAttention::restore(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  project(x_TH, saved);
  if (saved.is_missing(Slot::kContext)) attend(x_TH, saved, step);
  if (saved.is_missing(Slot::kOutputDown)) {
    output_.down(flat(saved.at(Slot::kContext)), saved.allocate(Slot::kOutputDown));
  }
}

CompressedAttention::Gradients CompressedAttention::core_backward(const Tensor& dcontext_TAD, const Tensor& x_TH,
                                                                  Saved& saved, const StepContext& step,
                                                                  std::vector<Tensor>& taught) {
  const Heads in = heads(saved, step);
  const Tensor query_BSAD = by_sequence(in.query_TAD, step.batch);
  const Tensor key_BS1D = by_sequence(in.key_T1D, step.batch);
  const Tensor& lse_BAS = saved.at(Slot::kLogSumExp);
  // The context as attention gave it.
  const Tensor context_TAD = saved.at(Slot::kContext).clone();
  turn(step, ops::RopeDirection::kForward, context_TAD);
  const Tensor context_BSAD = by_sequence(context_TAD, step.batch);
  const Tensor dcontext_BSAD = by_sequence(dcontext_TAD, step.batch);

  const Heads d{at::empty_like(in.query_TAD), at::empty_like(in.key_T1D)};
  Tensor dquery_BSAD = by_sequence(d.query_TAD, step.batch);
  Tensor dkey_BS1D = by_sequence(d.key_T1D, step.batch);
  const ops::AttentionOptions options = window_options(query_BSAD, step);
  if (sinks_ != nullptr) {
    ops::attention_sink_backward(dcontext_BSAD, context_BSAD, lse_BAS, options.sink_A, sinks_->sum_target());
  }
  {
    const Tensor dvalue_T1D = at::empty_like(in.key_T1D);
    Tensor dvalue_BS1D = by_sequence(dvalue_T1D, step.batch);
    ops::attention_backward(dcontext_BSAD, query_BSAD, key_BS1D, key_BS1D, context_BSAD, lse_BAS, options, dquery_BSAD,
                            dkey_BS1D, dvalue_BS1D);
    d.key_T1D.add_(dvalue_T1D);
  }
  Gradients gradients;
  if (compressor_) gradients.key_gate_TE = at::empty_like(saved.at(Slot::kKeyGate));
  if (has_entries(step)) {
    const Tensor& key_gate_TE = saved.at(Slot::kKeyGate);
    const KeyCompressor::Entries made = compressor_->entries(key_gate_TE, step);
    Tensor dentry_BCD = at::empty_like(made.entry_BCD);
    ops::compressed_attention_backward(dcontext_BSAD, query_BSAD, made.entry_BCD, context_BSAD, lse_BAS,
                                       entry_options(saved, step), dquery_BSAD, dentry_BCD);
    compressor_->backward(made, dentry_BCD, key_gate_TE, step, gradients.key_gate_TE);
    if (indexer_ && indexer_->is_taught()) {
      indexer_->teach(x_TH, latent(saved), step,
                      {query_BSAD, made.entry_BCD, lse_BAS, saved.at(Slot::kSelected), scale_}, taught);
    }
  } else if (compressor_) {
    gradients.key_gate_TE.zero_();
  }
  turn(step, ops::RopeDirection::kBackward, d.query_TAD);
  turn(step, ops::RopeDirection::kBackward, d.key_T1D);
  gradients.query_TAD = at::empty_like(d.query_TAD);
  gradients.key_T1D = at::empty_like(d.key_T1D);
  query_norm_.backward(d.query_TAD, saved.at(Slot::kQueryUp), saved.at(Slot::kQueryRstd), gradients.query_TAD,
                       ops::Write::kOverwrite);
  key_norm_.backward(d.key_T1D, saved.at(Slot::kKey), saved.at(Slot::kKeyRstd), gradients.key_T1D,
                     ops::Write::kOverwrite);
  return gradients;
}

void CompressedAttention::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                                   Tensor& dx_TH) {
  const Tensor context_TV = flat(saved.at(Slot::kContext));
  const Tensor down_TL = saved.at(Slot::kOutputDown);
  Tensor ddown_TL = at::empty_like(down_TL);
  Tensor dcontext_TAD = at::empty_like(saved.at(Slot::kContext));
  Tensor dcontext_TV = flat(dcontext_TAD);
  output_.backward(dy_TH, ddown_TL, dcontext_TV);
  turn(step, ops::RopeDirection::kForward, dcontext_TAD);
  std::vector<Tensor> taught;
  const Gradients gradients = core_backward(dcontext_TAD, x_TH, saved, step, taught);
  dcontext_TV.reset();
  dcontext_TAD.reset();

  const Tensor latent_TL = latent(saved);
  Tensor dlatent_TL = at::empty_like(latent_TL);
  ops::linear_dgrad(flat(gradients.query_TAD), query_up_.weight, dlatent_TL);
  Tensor ddown_TQ = at::empty_like(latent_TL);
  query_down_norm_.backward(dlatent_TL, saved.at(Slot::kQueryDown), saved.at(Slot::kQueryDownRstd), ddown_TQ,
                            ops::Write::kOverwrite);
  dlatent_TL.reset();
  saved.release_all();
  ops::linear_dgrad(ddown_TQ, query_down_.weight, dx_TH);
  ops::linear_dgrad(flat(gradients.key_T1D), key_.weight, dx_TH, ops::Write::kAccumulate);
  if (compressor_) {
    ops::linear_dgrad(gradients.key_gate_TE, compressor_->projection().weight, dx_TH, ops::Write::kAccumulate);
  }
  std::vector<Tensor> deferred = {dy_TH,
                                  down_TL,
                                  ddown_TL,
                                  context_TV,
                                  flat(gradients.query_TAD),
                                  latent_TL,
                                  ddown_TQ,
                                  x_TH,
                                  flat(gradients.key_T1D)};
  if (compressor_) deferred.push_back(gradients.key_gate_TE);
  deferred.insert(deferred.end(), taught.begin(), taught.end());
  if (step.weight_grad == WeightGradTiming::kDeferred) {
    saved.deferred() = std::move(deferred);
  } else {
    add_weight_gradients(deferred);
  }
}

void CompressedAttention::weight_grad(Saved& saved) {
  add_weight_gradients(saved.deferred());
  saved.deferred().clear();
}

void CompressedAttention::add_weight_gradients(std::span<const Tensor> deferred) {
  const std::size_t num_own = compressor_ ? 10 : 9;
  // Sequences shorter than an entry teach an indexer nothing.
  if (deferred.size() > num_own) {
    indexer_->add_weight_gradients(deferred.subspan(num_own));
    deferred = deferred.first(num_own);
  }
  PRIMUS_CHECK(deferred.size() == num_own, "{} tensors were left for attention's weight gradients", deferred.size());
  const Tensor& x_TH = deferred[7];
  output_.add_weight_gradients(deferred[0], deferred[1], deferred[2], deferred[3]);
  add_linear_gradient(deferred[4], deferred[5], query_up_);
  add_linear_gradient(deferred[6], x_TH, query_down_);
  add_linear_gradient(deferred[8], x_TH, key_);
  if (compressor_) add_linear_gradient(deferred[9], x_TH, compressor_->projection());
}

}  // namespace primus::nn
