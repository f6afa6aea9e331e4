#include "nn/mla_attention.hpp"

#include "nn/rope_tables.hpp"
#include "nn/weight_gradients.hpp"
#include "ops/gemm/gemm.hpp"
#include "ops/output_gate/output_gate.hpp"
#include "ops/rope/rope.hpp"

// Legend: T tokens, H hidden, A heads, Q query/key size (N + P), V value size, L kv rank, P rotary size, D = N + V.
namespace primus::nn {
namespace {

using Slot = model::MlaSlot;

std::string weight_name(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.self_attention.{}.weight", layer, part);
}

}  // namespace

MlaAttention::MlaAttention(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : mla_(std::get<model::MlaSpec>(spec.attention)),
      rotation_(spec.is_rotated(layer) ? Rotation::kByPosition : Rotation::kNone),
      core_(spec, layer, mla_.query_dim(), parameters),
      query_(parameters.get(weight_name(layer, mla_.q_lora_rank ? "linear_q_up_proj" : "linear_q_proj"))),
      kv_down_(parameters.get(weight_name(layer, "linear_kv_down_proj"))),
      kv_up_(parameters.get(weight_name(layer, "linear_kv_up_proj"))),
      keys_(mla_.indexer ? Keys::kPicked : Keys::kAll) {
  const auto latent_norm = [&](const char* part) -> std::optional<Norm> {
    if (mla_.latent_norms == model::Part::kAbsent) return std::nullopt;
    return Norm(spec, fmt::format("decoder.layers.{}.self_attention.{}", layer, part), parameters);
  };
  kv_norm_ = latent_norm("kv_layernorm");
  if (mla_.output_gate == model::Part::kPresent) gate_ = &parameters.get(weight_name(layer, "linear_gate_proj"));
  if (mla_.q_lora_rank) {
    query_down_.emplace(
        QueryDown{parameters.get(weight_name(layer, "linear_q_down_proj")), latent_norm("q_layernorm")});
  }
  if (spec.picks_keys(layer)) indexer_.emplace(spec, layer, parameters);
}

void MlaAttention::begin_step() {
  core_.begin_step();
  if (indexer_) indexer_->begin_step();
}

std::optional<double> MlaAttention::indexer_loss() const {
  return indexer_ && indexer_->is_taught() ? std::optional(indexer_->loss()) : std::nullopt;
}

RopeTables MlaAttention::tables(const StepContext& step) const {
  return rotation_ == Rotation::kByPosition ? step.rope : without_rotation(step.rope);
}

void MlaAttention::project_down(const Tensor& x_TH, Saved& saved) {
  if (query_down_) ops::linear_forward(x_TH, query_down_->weight.weight, saved.allocate(Slot::kQueryDown));
  ops::linear_forward(x_TH, kv_down_.weight, saved.allocate(Slot::kKvDown));
  if (gate_ == nullptr) return;
  Tensor gate_TV = flat(saved.allocate(Slot::kGate));
  ops::linear_forward(x_TH, gate_->weight, gate_TV);
}

Tensor MlaAttention::gated_context(Saved& saved) const {
  const Tensor& context = saved.at(Slot::kContext);
  if (gate_ == nullptr) return flat(context);
  Tensor gated = at::empty_like(context);
  ops::output_gate_forward(context, saved.at(Slot::kGate), gated);
  return flat(gated);
}

Tensor MlaAttention::gate_backward(Saved& saved, Tensor& dcontext_TV) const {
  if (gate_ == nullptr) return {};
  const Tensor& gate = saved.at(Slot::kGate);
  Tensor dgate = at::empty_like(gate);
  Tensor dcontext = dcontext_TV.view(gate.sizes());
  ops::output_gate_backward(dcontext, saved.at(Slot::kContext), gate, dcontext, dgate);
  saved.release(Slot::kGate);
  return flat(dgate);
}

Tensor MlaAttention::normalised(const Tensor& x_TL, const std::optional<Norm>& norm, int rstd_slot,
                                Saved& saved) const {
  if (!norm) return x_TL;
  Tensor normed_TL = workspace({x_TL.size(0), x_TL.size(1)}, x_TL);
  norm->forward(x_TL, rstd_slot, saved, normed_TL);
  return normed_TL;
}

Tensor MlaAttention::query_input(const Tensor& x_TH, Saved& saved) const {
  if (!query_down_) return x_TH;
  return normalised(saved.at(Slot::kQueryDown), query_down_->norm, Slot::kQueryDownRstd, saved);
}

void MlaAttention::project_up(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  const std::int64_t tokens = x_TH.size(0);
  Tensor& query = saved.allocate(Slot::kQuery);
  Tensor query_TQ = flat(query);
  ops::linear_forward(query_input(x_TH, saved), query_.weight, query_TQ);
  const Tensor& kv_down = saved.at(Slot::kKvDown);
  const Tensor normed_TL = normalised(kv_down.narrow(1, 0, mla_.kv_lora_rank), kv_norm_, Slot::kKvDownRstd, saved);
  Tensor kv_TAD = workspace({tokens, mla_.num_heads, mla_.qk_head_dim + mla_.v_head_dim}, x_TH);
  Tensor kv_flat = flat(kv_TAD);
  ops::linear_forward(normed_TL, kv_up_.weight, kv_flat);
  const RopeTables rope = tables(step);
  ops::mla_assemble_forward(kv_TAD, kv_down.narrow(1, mla_.kv_lora_rank, mla_.qk_pos_emb_head_dim), rope.cos_SP,
                            rope.sin_SP, ops::RopeLayout::kInterleaved, query, saved.allocate(Slot::kKey),
                            saved.allocate(Slot::kValue));
}

AttentionInput MlaAttention::core_input(Saved& saved, const StepContext& step) const {
  return {by_sequence(saved.at(Slot::kQuery), step.batch), by_sequence(saved.at(Slot::kKey), step.batch),
          by_sequence(saved.at(Slot::kValue), step.batch),
          keys_ == Keys::kPicked ? saved.at(Slot::kSelected) : Tensor()};
}

void MlaAttention::select(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  const Tensor latent_TL = query_input(x_TH, saved);
  const AttentionInput in{by_sequence(saved.at(Slot::kQuery), step.batch), {}, {}};
  indexer_->select({x_TH, latent_TL, tables(step)}, step, core_.options(in, step), saved.allocate(Slot::kSelected));
}

void MlaAttention::attend(Saved& saved, const StepContext& step) {
  Tensor context = by_sequence(saved.allocate(Slot::kContext), step.batch);
  core_.forward(core_input(saved, step), step, context, saved.allocate(Slot::kLogSumExp));
}

void MlaAttention::forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  project_down(x_TH, saved);
  project_up(x_TH, saved, step);
  if (saved.is_missing(Slot::kSelected)) select(x_TH, saved, step);
  attend(saved, step);
  core_.project(gated_context(saved), residual_TH);
}

void MlaAttention::restore(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  if (saved.is_missing(Slot::kKvDown)) project_down(x_TH, saved);
  if (saved.is_missing(Slot::kQuery)) project_up(x_TH, saved, step);
  if (saved.is_missing(Slot::kContext)) attend(saved, step);
}

void MlaAttention::attention_core_backward(const Tensor& dcontext_TV, Saved& saved, const StepContext& step, Tensor& dq,
                                           Tensor& dk, Tensor& dv) {
  const Tensor& context = saved.at(Slot::kContext);
  AttentionInput gradient{by_sequence(dq, step.batch), by_sequence(dk, step.batch), by_sequence(dv, step.batch)};
  core_.backward(by_sequence(dcontext_TV.view(context.sizes()), step.batch), core_input(saved, step),
                 by_sequence(context, step.batch), saved.at(Slot::kLogSumExp), step, gradient);
  for (const int slot : {Slot::kQuery, Slot::kKey, Slot::kValue, Slot::kLogSumExp}) saved.release(slot);
}

void MlaAttention::query_backward(const Tensor& dq_TQ, const Tensor& x_TH, Saved& saved, Tensor& dx_TH,
                                  std::vector<Tensor>& deferred) {
  if (!query_down_) {
    ops::linear_dgrad(dq_TQ, query_.weight, dx_TH, ops::Write::kAccumulate);
    deferred.insert(deferred.end(), {dq_TQ, x_TH});
    return;
  }
  const Tensor down = saved.at(Slot::kQueryDown);
  saved.release(Slot::kQueryDown);
  Tensor normed = down;
  Tensor ddown = workspace({down.size(0), down.size(1)}, down);
  ops::linear_dgrad(dq_TQ, query_.weight, ddown);
  if (std::optional<Norm>& norm = query_down_->norm) {
    normed = workspace({down.size(0), down.size(1)}, down);
    const Tensor& rstd = saved.at(Slot::kQueryDownRstd);
    norm->apply(down, rstd, normed);
    const Tensor dnormed = ddown;
    ddown = workspace({down.size(0), down.size(1)}, down);
    norm->backward(dnormed, down, rstd, ddown, ops::Write::kOverwrite);
    saved.release(Slot::kQueryDownRstd);
  }
  ops::linear_dgrad(ddown, query_down_->weight.weight, dx_TH, ops::Write::kAccumulate);
  deferred.insert(deferred.end(), {dq_TQ, normed, ddown, x_TH});
}

Tensor MlaAttention::latent_backward(const Tensor& dkv_TD, Saved& saved, Tensor& dlatent_TL) {
  const Tensor latent_TL = saved.at(Slot::kKvDown).narrow(1, 0, mla_.kv_lora_rank);
  saved.release(Slot::kKvDown);
  if (!kv_norm_) {
    ops::linear_dgrad(dkv_TD, kv_up_.weight, dlatent_TL);
    return latent_TL;
  }
  const Tensor& rstd = saved.at(Slot::kKvDownRstd);
  Tensor normed_TL = workspace({latent_TL.size(0), mla_.kv_lora_rank}, latent_TL);
  kv_norm_->apply(latent_TL, rstd, normed_TL);
  Tensor dnormed_TL = workspace({latent_TL.size(0), mla_.kv_lora_rank}, latent_TL);
  ops::linear_dgrad(dkv_TD, kv_up_.weight, dnormed_TL);
  kv_norm_->backward(dnormed_TL, latent_TL, rstd, dlatent_TL, ops::Write::kOverwrite);
  saved.release(Slot::kKvDownRstd);
  return normed_TL;
}

void MlaAttention::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                            Tensor& dx_TH) {
  const std::int64_t tokens = x_TH.size(0);
  const Tensor projected_TV = gated_context(saved);
  Tensor dcontext_TV = workspace({tokens, mla_.num_heads * mla_.v_head_dim}, x_TH);
  core_.project_backward(dy_TH, dcontext_TV);
  const Tensor dgate_TV = gate_backward(saved, dcontext_TV);
  std::vector<Tensor> taught;
  if (indexer_ && indexer_->is_taught()) {
    const AttentionInput in = core_input(saved, step);
    indexer_->teach({x_TH, query_input(x_TH, saved), tables(step)}, step, in, core_.options(in, step), taught);
  }

  Tensor dq = workspace({tokens, mla_.num_heads, mla_.query_dim()}, x_TH);
  Tensor dk = workspace({tokens, mla_.num_heads, mla_.query_dim()}, x_TH);
  Tensor dv = workspace({tokens, mla_.num_heads, mla_.v_head_dim}, x_TH);
  attention_core_backward(dcontext_TV, saved, step, dq, dk, dv);
  dcontext_TV.reset();

  Tensor dkv = workspace({tokens, mla_.num_heads, mla_.qk_head_dim + mla_.v_head_dim}, x_TH);
  Tensor dkv_down = workspace({tokens, mla_.kv_lora_rank + mla_.qk_pos_emb_head_dim}, x_TH);
  Tensor dk_pe = dkv_down.narrow(1, mla_.kv_lora_rank, mla_.qk_pos_emb_head_dim);
  const RopeTables rope = tables(step);
  ops::mla_assemble_backward(dk, dv, rope.cos_SP, rope.sin_SP, ops::RopeLayout::kInterleaved, dq, dkv, dk_pe);
  dk.reset();
  dv.reset();

  Tensor dlatent = dkv_down.narrow(1, 0, mla_.kv_lora_rank);
  const Tensor latent_TL = latent_backward(flat(dkv), saved, dlatent);
  ops::linear_dgrad(dkv_down, kv_down_.weight, dx_TH);

  std::vector<Tensor> deferred = {dy_TH, projected_TV, flat(dkv), latent_TL, dkv_down, x_TH};
  query_backward(flat(dq), x_TH, saved, dx_TH, deferred);
  if (gate_ != nullptr) {
    ops::linear_dgrad(dgate_TV, gate_->weight, dx_TH, ops::Write::kAccumulate);
    deferred.insert(deferred.end(), {dgate_TV, x_TH});
  }
  deferred.insert(deferred.end(), taught.begin(), taught.end());
  saved.release(Slot::kContext);
  saved.release(Slot::kSelected);
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

void MlaAttention::clip_logits(const model::QkClip& clip, const RowScaler& scale) {
  const std::vector<double> factors = core_.shrinkage(clip, 1);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const double factor = factors[i];
    if (factor == 1.0) continue;
    const auto head = static_cast<std::int64_t>(i);
    const std::int64_t first = head * mla_.query_dim();
    scale(query_, first, mla_.qk_head_dim, std::pow(factor, clip.alpha));
    // All heads share the keys' rotated part, so the queries' takes the whole of it.
    scale(query_, first + mla_.qk_head_dim, mla_.qk_pos_emb_head_dim, factor);
    scale(kv_up_, head * (mla_.qk_head_dim + mla_.v_head_dim), mla_.qk_head_dim, std::pow(factor, 1.0 - clip.alpha));
  }
}

void MlaAttention::add_weight_gradients(std::span<const Tensor> deferred) {
  if (indexer_ && indexer_->is_taught()) {
    indexer_->add_weight_gradients(deferred.last(KeyIndexer::kNumDeferred));
    deferred = deferred.first(deferred.size() - KeyIndexer::kNumDeferred);
  }
  // Pairs (output gradient, input) in the order in which backward pushed them.
  std::vector<Parameter*> parameters = {&core_.projection(), &kv_up_, &kv_down_, &query_};
  if (query_down_) parameters.push_back(&query_down_->weight);
  if (gate_ != nullptr) parameters.push_back(gate_);
  PRIMUS_CHECK(deferred.size() == 2 * parameters.size(), "{} tensors were left for MLA's weight gradients",
               deferred.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    add_linear_gradient(deferred[2 * i], deferred[2 * i + 1], *parameters[i]);
  }
}

}  // namespace primus::nn
