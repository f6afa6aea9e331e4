#include "nn/token_embedding.hpp"

#include "ops/embedding/embedding.hpp"

namespace primus::nn {

TokenEmbedding::TokenEmbedding(const model::ModelSpec& spec, const std::string& user, ParameterStore& parameters)
    : weight_(parameters.get("embedding.word_embeddings.weight")),
      factor_(spec.width_scaling ? spec.width_scaling->embedding : 1.0),
      dropout_(spec.dropout.hidden, user + ".embedding_dropout") {}

void TokenEmbedding::forward(const Tensor& ids_T, const StepContext& step, Tensor& x_TH, const Tensor& added_TH) const {
  const bool is_wide = x_TH.scalar_type() != weight_.weight.scalar_type();
  Tensor rows_TH = is_wide ? at::empty(x_TH.sizes(), weight_.weight.options()) : x_TH;
  ops::embedding_forward(ids_T, weight_.weight, rows_TH);
  if (added_TH.defined()) rows_TH.add_(added_TH);
  if (factor_ != 1.0) rows_TH.mul_(factor_);
  if (is_wide || dropout_.is_on(step)) dropout_.apply(rows_TH, step, x_TH, ops::Write::kOverwrite);
}

Tensor TokenEmbedding::backward(const Tensor& ids_T, Tensor dx_TH, const StepContext& step) {
  if (dropout_.is_on(step)) dropout_.apply(dx_TH, step, dx_TH, ops::Write::kOverwrite);
  if (factor_ != 1.0) dx_TH.mul_(factor_);
  ops::embedding_backward(ids_T, dx_TH, weight_.sum_target());
  return dx_TH;
}

}  // namespace primus::nn
