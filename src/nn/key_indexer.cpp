#include "nn/key_indexer.hpp"

#include <ATen/ops/zeros.h>

#include <cmath>

#include "nn/weight_gradients.hpp"
#include "ops/gemm/gemm.hpp"
#include "ops/hadamard/hadamard.hpp"

namespace primus::nn {
namespace {

std::string part_name(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.self_attention.core_attention.indexer.{}", layer, part);
}

}  // namespace

KeyIndexer::KeyIndexer(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : spec_(*spec.indexer()),
      options_{.top_k = spec_.top_k,
               .scale = 1.0 / std::sqrt(static_cast<double>(spec_.query_width())),
               .scoring = spec_.rectified == model::Part::kPresent ? ops::IndexerOptions::Scoring::kRelu
                                                                   : ops::IndexerOptions::Scoring::kLinear},
      norm_{.kind = ops::NormKind::kLayer,
            .weight =
                spec.norm_around_one == model::Part::kPresent ? ops::NormWeight::kAroundOne : ops::NormWeight::kPlain,
            .epsilon = spec_.norm_epsilon},
      loss_coefficient_(spec_.loss_coefficient),
      query_(parameters.get(part_name(layer, "linear_wq_b.weight"))),
      key_(parameters.get(part_name(layer, "linear_wk.weight"))),
      norm_weight_(parameters.get(part_name(layer, "k_norm.weight"))),
      norm_bias_(parameters.get(part_name(layer, "k_norm.bias"))),
      weights_(parameters.get(part_name(layer, "linear_weights_proj.weight"))) {
  if (is_taught()) loss_1_ = at::zeros({1}, query_.weight.options().dtype(at::kDouble));
}

ops::NormParameters KeyIndexer::norm_values() const {
  return {norm_weight_.weight, norm_bias_.weight};
}

void KeyIndexer::turn(const RopeTables& rope, ops::RopeDirection direction, Tensor& x_TID) const {
  const auto rotate = [&] {
    if (spec_.hadamard == model::Part::kAbsent) return;
    Tensor rows = x_TID.view({-1, spec_.head_dim});
    ops::hadamard_rotate(rows);
  };
  const auto layout =
      spec_.pairs == model::RopePairs::kHalves ? ops::RopeLayout::kHalves : ops::RopeLayout::kInterleaved;
  if (direction == ops::RopeDirection::kBackward) rotate();
  ops::rope_apply(rope.cos_SP, rope.sin_SP, layout, direction, x_TID);
  if (direction == ops::RopeDirection::kForward) rotate();
}

KeyIndexer::Heads KeyIndexer::heads(const IndexerSource& source, model::BatchShape batch) const {
  const Tensor& x_TH = source.x_TH;
  const std::int64_t tokens = x_TH.size(0);
  Tensor query_TID = workspace({tokens, spec_.num_heads, spec_.head_dim}, x_TH);
  Tensor query_flat = flat(query_TID);
  ops::linear_forward(source.latent_TL, query_.weight, query_flat);
  turn(source.rope, ops::RopeDirection::kForward, query_TID);
  Heads made;
  made.key_TD = workspace({tokens, spec_.head_dim}, x_TH);
  ops::linear_forward(x_TH, key_.weight, made.key_TD);
  made.statistics =
      at::empty({norm_.num_statistics() * tokens}, x_TH.options().dtype(ops::accumulator_type(x_TH.scalar_type())));
  Tensor normed_TD = workspace({tokens, spec_.head_dim}, x_TH);
  ops::norm_forward(made.key_TD, norm_values(), norm_, normed_TD, made.statistics);
  Tensor key_T1D = normed_TD.unsqueeze(1);
  turn(source.rope, ops::RopeDirection::kForward, key_T1D);
  Tensor weight_TI = workspace({tokens, spec_.num_heads}, x_TH);
  ops::linear_forward(x_TH, weights_.weight, weight_TI);
  made.input = {by_sequence(query_TID, batch), by_sequence(normed_TD, batch), by_sequence(weight_TI, batch)};
  return made;
}

void KeyIndexer::select(const IndexerSource& source, const StepContext& step, const ops::AttentionOptions& attention,
                        Tensor& selected_BSW) const {
  ops::indexer_select(heads(source, step.batch).input, options_, attention, selected_BSW);
}

void KeyIndexer::teach(const IndexerSource& source, const StepContext& step, const AttentionInput& in,
                       ops::AttentionOptions attention, std::vector<Tensor>& left) {
  const Heads made = heads(source, step.batch);
  const Tensor& x_TH = source.x_TH;
  const std::int64_t tokens = x_TH.size(0);
  if (spec_.sparse_loss == model::Part::kAbsent) attention.selected_BSW.reset();
  Tensor dquery_TID = workspace({tokens, spec_.num_heads, spec_.head_dim}, x_TH);
  Tensor dnormed_TD = workspace({tokens, spec_.head_dim}, x_TH);
  Tensor dweight_TI = workspace({tokens, spec_.num_heads}, x_TH);
  ops::IndexerInput gradient{by_sequence(dquery_TID, step.batch), by_sequence(dnormed_TD, step.batch),
                             by_sequence(dweight_TI, step.batch)};
  Tensor loss_BS = at::empty({step.batch.num_sequences, step.batch.seq_length}, made.statistics.options());
  const double factor = loss_coefficient_ * step.aux_scale / static_cast<double>(tokens);
  ops::indexer_loss(made.input, options_, in.query, in.key, attention, factor, loss_BS, gradient);
  loss_1_.add_(loss_BS.sum(at::kDouble), 1.0 / static_cast<double>(tokens));

  turn(source.rope, ops::RopeDirection::kBackward, dquery_TID);
  Tensor dkey_T1D = dnormed_TD.unsqueeze(1);
  turn(source.rope, ops::RopeDirection::kBackward, dkey_T1D);
  Tensor dkey_TD = workspace({tokens, spec_.head_dim}, x_TH);
  ops::NormParameters main_grad{norm_weight_.sum_target(), norm_bias_.sum_target()};
  ops::norm_backward(dnormed_TD, made.key_TD, norm_values(), norm_, made.statistics, dkey_TD, ops::Write::kOverwrite,
                     main_grad);
  left.insert(left.end(), {flat(dquery_TID), source.latent_TL, dkey_TD, x_TH, dweight_TI, x_TH});
}

void KeyIndexer::add_weight_gradients(std::span<const Tensor> left) {
  PRIMUS_CHECK(left.size() == kNumDeferred, "{} tensors were left for the indexer", left.size());
  add_linear_gradient(left[0], left[1], query_);
  add_linear_gradient(left[2], left[3], key_);
  add_linear_gradient(left[4], left[5], weights_);
}

void KeyIndexer::begin_step() {
  if (loss_1_.defined()) loss_1_.zero_();
}

}  // namespace primus::nn
