#include "nn/entry_indexer.hpp"

#include <ATen/ops/zeros.h>

#include <cmath>

#include "nn/weight_gradients.hpp"
#include "ops/gemm/gemm.hpp"

namespace primus::nn {
namespace {

std::string part_name(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.self_attention.core_attention.indexer.{}", layer, part);
}

}  // namespace

EntryIndexer::EntryIndexer(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : spec_(spec.compressed.indexer),
      pairs_(spec.rope.pairs),
      loss_coefficient_(spec_.loss_coefficient),
      query_(parameters.get(part_name(layer, "linear_wq_b.weight"))),
      weights_(parameters.get(part_name(layer, "linear_weights_proj.weight"))),
      compressor_(spec, layer, part_name(layer, "compressor"), spec_.head_dim, parameters),
      key_gate_width_(2 * spec.compressed.key_width(layer, spec_.head_dim)) {
  if (is_taught()) loss_1_ = at::zeros({1}, query_.weight.options().dtype(at::kDouble));
}

ops::IndexerOptions EntryIndexer::options(const StepContext& step) const {
  return {.top_k = spec_.top_k,
          .scale = 1.0 / std::sqrt(static_cast<double>(spec_.query_width())),
          .entries = compressor_.windowing(step)};
}

EntryIndexer::Heads EntryIndexer::heads(const Tensor& x_TH, const Tensor& latent_TL, const StepContext& step) const {
  const std::int64_t tokens = x_TH.size(0);
  Tensor query_TID = workspace({tokens, spec_.num_heads, spec_.head_dim}, x_TH);
  Tensor query_flat = flat(query_TID);
  ops::linear_forward(latent_TL, query_.weight, query_flat);
  turn_tail(step.entry_rope, pairs_, ops::RopeDirection::kForward, query_TID);
  Heads made;
  made.key_gate_TE = workspace({tokens, key_gate_width_}, x_TH);
  ops::linear_forward(x_TH, compressor_.projection().weight, made.key_gate_TE);
  made.entries = compressor_.entries(made.key_gate_TE, step);
  Tensor weight_TI = workspace({tokens, spec_.num_heads}, x_TH);
  ops::linear_forward(x_TH, weights_.weight, weight_TI);
  made.input = {by_sequence(query_TID, step.batch), made.entries.entry_BCD, by_sequence(weight_TI, step.batch)};
  return made;
}

void EntryIndexer::select(const Tensor& x_TH, const Tensor& latent_TL, const StepContext& step,
                          Tensor& selected_BSW) const {
  ops::indexer_select(heads(x_TH, latent_TL, step).input, options(step), {}, selected_BSW);
}

void EntryIndexer::teach(const Tensor& x_TH, const Tensor& latent_TL, const StepContext& step,
                         const EntryAttention& attention, std::vector<Tensor>& left) {
  const Heads made = heads(x_TH, latent_TL, step);
  const std::int64_t tokens = x_TH.size(0);
  Tensor dquery_TID = workspace({tokens, spec_.num_heads, spec_.head_dim}, x_TH);
  Tensor dentry_BCD = at::empty_like(made.entries.entry_BCD);
  Tensor dweight_TI = workspace({tokens, spec_.num_heads}, x_TH);
  ops::IndexerInput gradient{by_sequence(dquery_TID, step.batch), dentry_BCD, by_sequence(dweight_TI, step.batch)};
  Tensor loss_BS = at::empty({step.batch.num_sequences, step.batch.seq_length}, attention.lse_BAS.options());
  const double factor = loss_coefficient_ * step.aux_scale / static_cast<double>(tokens);
  ops::indexer_loss(made.input, options(step), attention.query_BSAD, attention.entry_BCD.unsqueeze(2),
                    {.scale = attention.scale, .selected_BSW = attention.selected_BSW}, factor, loss_BS, gradient,
                    attention.lse_BAS);
  loss_1_.add_(loss_BS.sum(at::kDouble), 1.0 / static_cast<double>(tokens));
  turn_tail(step.entry_rope, pairs_, ops::RopeDirection::kBackward, dquery_TID);
  Tensor dkey_gate_TE = workspace({tokens, key_gate_width_}, x_TH);
  compressor_.backward(made.entries, dentry_BCD, made.key_gate_TE, step, dkey_gate_TE);
  left.insert(left.end(), {flat(dquery_TID), latent_TL, dkey_gate_TE, x_TH, dweight_TI, x_TH});
}

void EntryIndexer::add_weight_gradients(std::span<const Tensor> left) {
  PRIMUS_CHECK(left.size() == kNumDeferred, "{} tensors were left for the indexer", left.size());
  add_linear_gradient(left[0], left[1], query_);
  add_linear_gradient(left[2], left[3], compressor_.projection());
  add_linear_gradient(left[4], left[5], weights_);
}

void EntryIndexer::begin_step() {
  if (loss_1_.defined()) loss_1_.zero_();
}

}  // namespace primus::nn
