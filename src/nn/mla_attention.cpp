#include "nn/mla_attention.hpp"

#include "nn/rope_tables.hpp"
#include "ops/attention/attention.hpp"
#include "ops/gemm/gemm.hpp"
#include "ops/rms_norm/rms_norm.hpp"
#include "ops/rope/rope.hpp"

// Legend: T tokens, H hidden, A heads, Q query/key size (N + P), V value size, L kv rank, P rotary size, D = N + V.
namespace primus::nn {
namespace {

using Slot = model::MlaSlot;

std::string weight_name(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.self_attention.{}.weight", layer, part);
}

Tensor by_sequence(const Tensor& x_TAD, model::BatchShape batch) {
  return x_TAD.view({batch.num_sequences, batch.seq_length, x_TAD.size(1), x_TAD.size(2)});
}

}  // namespace

MlaAttention::MlaAttention(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : mla_(std::get<model::MlaSpec>(spec.attention)),
      norm_epsilon_(spec.norm_epsilon),
      softmax_scale_(softmax_scale(spec.rope, mla_.query_dim())),
      query_(parameters.get(weight_name(layer, mla_.q_lora_rank ? "linear_q_up_proj" : "linear_q_proj"))),
      kv_down_(parameters.get(weight_name(layer, "linear_kv_down_proj"))),
      kv_norm_(parameters.get(weight_name(layer, "kv_layernorm"))),
      kv_up_(parameters.get(weight_name(layer, "linear_kv_up_proj"))),
      output_(parameters.get(weight_name(layer, "linear_proj"))) {
  if (mla_.q_lora_rank) {
    query_down_.emplace(QueryDown{parameters.get(weight_name(layer, "linear_q_down_proj")),
                                  parameters.get(weight_name(layer, "q_layernorm"))});
  }
}

void MlaAttention::project_down(const Tensor& x_TH, Saved& saved) {
  if (query_down_) ops::linear_forward(x_TH, query_down_->weight.weight, saved.allocate(Slot::kQueryDown));
  ops::linear_forward(x_TH, kv_down_.weight, saved.allocate(Slot::kKvDown));
}

void MlaAttention::normalise(const Tensor& x_TL, const Parameter& norm, int rstd_slot, Saved& saved,
                             Tensor& normed_TL) const {
  if (saved.is_missing(rstd_slot)) {
    ops::rms_norm_forward(x_TL, norm.weight, norm_epsilon_, normed_TL, saved.allocate(rstd_slot));
  } else {
    ops::rms_norm_apply(x_TL, norm.weight, saved.at(rstd_slot), normed_TL);
  }
}

void MlaAttention::project_up(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  const std::int64_t tokens = x_TH.size(0);
  Tensor& query = saved.allocate(Slot::kQuery);
  Tensor query_TQ = flat(query);
  if (query_down_) {
    const Tensor& down = saved.at(Slot::kQueryDown);
    Tensor normed = workspace({tokens, down.size(1)}, down);
    normalise(down, query_down_->norm, Slot::kQueryDownRstd, saved, normed);
    ops::linear_forward(normed, query_.weight, query_TQ);
  } else {
    ops::linear_forward(x_TH, query_.weight, query_TQ);
  }
  const Tensor& kv_down = saved.at(Slot::kKvDown);
  Tensor normed_TL = workspace({tokens, mla_.kv_lora_rank}, x_TH);
  normalise(kv_down.narrow(1, 0, mla_.kv_lora_rank), kv_norm_, Slot::kKvDownRstd, saved, normed_TL);
  Tensor kv_TAD = workspace({tokens, mla_.num_heads, mla_.qk_head_dim + mla_.v_head_dim}, x_TH);
  Tensor kv_flat = flat(kv_TAD);
  ops::linear_forward(normed_TL, kv_up_.weight, kv_flat);
  ops::mla_assemble_forward(kv_TAD, kv_down.narrow(1, mla_.kv_lora_rank, mla_.qk_pos_emb_head_dim), step.rope.cos_SP,
                            step.rope.sin_SP, ops::RopeLayout::kInterleaved, query, saved.allocate(Slot::kKey),
                            saved.allocate(Slot::kValue));
}

void MlaAttention::attend(Saved& saved, const StepContext& step) {
  Tensor context = by_sequence(saved.allocate(Slot::kContext), step.batch);
  ops::attention_forward(by_sequence(saved.at(Slot::kQuery), step.batch), by_sequence(saved.at(Slot::kKey), step.batch),
                         by_sequence(saved.at(Slot::kValue), step.batch), softmax_scale_, context,
                         saved.allocate(Slot::kLogSumExp));
}

void MlaAttention::forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  project_down(x_TH, saved);
  project_up(x_TH, saved, step);
  attend(saved, step);
  ops::linear_forward(flat(saved.at(Slot::kContext)), output_.weight, residual_TH, ops::Write::kAccumulate);
}

void MlaAttention::restore(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  if (saved.is_missing(Slot::kKvDown)) project_down(x_TH, saved);
  if (saved.is_missing(Slot::kQuery)) project_up(x_TH, saved, step);
  if (saved.is_missing(Slot::kContext)) attend(saved, step);
}

void MlaAttention::attention_core_backward(const Tensor& dcontext_TV, Saved& saved, const StepContext& step, Tensor& dq,
                                           Tensor& dk, Tensor& dv) {
  const Tensor& context = saved.at(Slot::kContext);
  Tensor dq_view = by_sequence(dq, step.batch);
  Tensor dk_view = by_sequence(dk, step.batch);
  Tensor dv_view = by_sequence(dv, step.batch);
  ops::attention_backward(
      by_sequence(dcontext_TV.view(context.sizes()), step.batch), by_sequence(saved.at(Slot::kQuery), step.batch),
      by_sequence(saved.at(Slot::kKey), step.batch), by_sequence(saved.at(Slot::kValue), step.batch),
      by_sequence(context, step.batch), saved.at(Slot::kLogSumExp), softmax_scale_, dq_view, dk_view, dv_view);
  for (const int slot : {Slot::kQuery, Slot::kKey, Slot::kValue, Slot::kLogSumExp}) saved.release(slot);
}

void MlaAttention::query_backward(const Tensor& dq_TQ, const Tensor& x_TH, Saved& saved, Tensor& dx_TH,
                                  std::vector<Tensor>& deferred) {
  if (!query_down_) {
    ops::linear_dgrad(dq_TQ, query_.weight, dx_TH, ops::Write::kAccumulate);
    deferred.insert(deferred.end(), {dq_TQ, x_TH});
    return;
  }
  Tensor down = saved.at(Slot::kQueryDown);
  Tensor rstd = saved.at(Slot::kQueryDownRstd);
  saved.release(Slot::kQueryDown);
  saved.release(Slot::kQueryDownRstd);
  Tensor normed = workspace({down.size(0), down.size(1)}, down);
  ops::rms_norm_apply(down, query_down_->norm.weight, rstd, normed);
  Tensor dnormed = workspace({down.size(0), down.size(1)}, down);
  ops::linear_dgrad(dq_TQ, query_.weight, dnormed);
  Tensor ddown = workspace({down.size(0), down.size(1)}, down);
  ops::rms_norm_backward(dnormed, down, query_down_->norm.weight, rstd, ddown, ops::Write::kOverwrite,
                         query_down_->norm.main_grad);
  ops::linear_dgrad(ddown, query_down_->weight.weight, dx_TH, ops::Write::kAccumulate);
  deferred.insert(deferred.end(), {dq_TQ, normed, ddown, x_TH});
}

void MlaAttention::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                            Tensor& dx_TH) {
  const std::int64_t tokens = x_TH.size(0);
  Tensor context_TV = flat(saved.at(Slot::kContext));
  Tensor dcontext_TV = workspace({tokens, mla_.num_heads * mla_.v_head_dim}, x_TH);
  ops::linear_dgrad(dy_TH, output_.weight, dcontext_TV);

  Tensor dq = workspace({tokens, mla_.num_heads, mla_.query_dim()}, x_TH);
  Tensor dk = workspace({tokens, mla_.num_heads, mla_.query_dim()}, x_TH);
  Tensor dv = workspace({tokens, mla_.num_heads, mla_.v_head_dim}, x_TH);
  attention_core_backward(dcontext_TV, saved, step, dq, dk, dv);
  dcontext_TV.reset();

  Tensor dkv = workspace({tokens, mla_.num_heads, mla_.qk_head_dim + mla_.v_head_dim}, x_TH);
  Tensor dkv_down = workspace({tokens, mla_.kv_lora_rank + mla_.qk_pos_emb_head_dim}, x_TH);
  Tensor dk_pe = dkv_down.narrow(1, mla_.kv_lora_rank, mla_.qk_pos_emb_head_dim);
  ops::mla_assemble_backward(dk, dv, step.rope.cos_SP, step.rope.sin_SP, ops::RopeLayout::kInterleaved, dq, dkv, dk_pe);
  dk.reset();
  dv.reset();

  const Tensor latent_TL = saved.at(Slot::kKvDown).narrow(1, 0, mla_.kv_lora_rank);
  Tensor rstd = saved.at(Slot::kKvDownRstd);
  Tensor normed_TL = workspace({tokens, mla_.kv_lora_rank}, x_TH);
  ops::rms_norm_apply(latent_TL, kv_norm_.weight, rstd, normed_TL);
  Tensor dnormed_TL = workspace({tokens, mla_.kv_lora_rank}, x_TH);
  ops::linear_dgrad(flat(dkv), kv_up_.weight, dnormed_TL);
  Tensor dlatent = dkv_down.narrow(1, 0, mla_.kv_lora_rank);
  ops::rms_norm_backward(dnormed_TL, latent_TL, kv_norm_.weight, rstd, dlatent, ops::Write::kOverwrite,
                         kv_norm_.main_grad);
  saved.release(Slot::kKvDown);
  saved.release(Slot::kKvDownRstd);
  ops::linear_dgrad(dkv_down, kv_down_.weight, dx_TH);

  std::vector<Tensor> deferred = {dy_TH, context_TV, flat(dkv), normed_TL, dkv_down, x_TH};
  query_backward(flat(dq), x_TH, saved, dx_TH, deferred);
  saved.release(Slot::kContext);
  if (step.weight_grad == WeightGradTiming::kDeferred) {
    saved.deferred() = std::move(deferred);
  } else {
    add_weight_gradients(deferred);
  }
}

void MlaAttention::weight_grad(Saved& saved) {
  add_weight_gradients(saved.deferred());
  saved.deferred().clear();
}

void MlaAttention::add_weight_gradients(const std::vector<Tensor>& deferred) {
  // Pairs (output gradient, input) in the order in which backward pushed them.
  Parameter* const parameters[] = {&output_, &kv_up_, &kv_down_, &query_, query_down_ ? &query_down_->weight : nullptr};
  PRIMUS_CHECK(deferred.size() == (query_down_ ? 10U : 8U), "{} tensors were left for MLA's weight gradients",
               deferred.size());
  for (std::size_t i = 0; 2 * i < deferred.size(); ++i) {
    ops::linear_wgrad(deferred[2 * i], deferred[2 * i + 1], parameters[i]->main_grad);
  }
}

}  // namespace primus::nn
