// Norms, dropout and MLPs of a pass, in bytes: nn/norm.cpp, nn/residual_dropout.cpp and nn/mlp.cpp.
#include "model/pass_context.hpp"

namespace primus::model {
namespace {

/// Sizes of an MLP's two products.
struct MlpSizes {
  std::int64_t tokens, hidden, pre, inner;
};

MlpSizes sizes_of(const PassContext& pass, const SavedTensor& pre_activation) {
  const std::int64_t width = pre_activation.shape.at(1);
  return {pre_activation.shape.at(0), pass.spec.hidden_size, width, width / (pass.spec.num_mlp_matrices() - 1)};
}

}  // namespace

std::vector<PassTensor> PassNorm::values(const PassContext& pass, DType x) const {
  if (pass.policy.parameters == x) return {};
  std::vector<PassTensor> converted = {pass.ledger.tensor(width, x)};
  if (bias == Part::kPresent) converted.push_back(pass.ledger.tensor(width, x));
  return converted;
}

void PassNorm::apply(const PassContext& pass, const PassTensor& x, std::int64_t rows, DType y) const {
  PassTensor wide;
  if (x.dtype() != y) wide = pass.ledger.tensor(rows * width, x.dtype());
  const std::vector<PassTensor> converted = values(pass, x.dtype());
}

void PassNorm::forward(const PassContext& pass, const PassTensor& x, std::int64_t rows, DType y, int statistics_slot,
                       PassSaved& saved) const {
  if (saved.is_missing(statistics_slot)) saved.allocate(statistics_slot);
  apply(pass, x, rows, y);
}

void PassNorm::backward(const PassContext& pass, const PassTensor& dy, DType x, std::int64_t rows) const {
  PassTensor widened;
  if (dy.dtype() != x) widened = pass.ledger.tensor(rows * width, x);
  const std::vector<PassTensor> converted = values(pass, x);
  pass.ledger.scratch(pass.scratch.norm_backward(rows, width, num_sums, pass.policy.statistics));
}

void dropout_into_sum(const PassContext& pass, const PassTensor& x_TH, DType y) {
  if (pass.spec.dropout.hidden == 0.0) pass.ledger.combine_into(x_TH.num_elements(), y, x_TH.dtype());
}

PassTensor reordered(const PassContext& pass, const PassTensor& pre, std::int64_t width, std::int64_t block) {
  // One pair of blocks lies in both orders at once.
  if (block == 0 || width == 2 * block) return pre;
  return pass.ledger.like(pre);
}

void PassMlp::pre_activation(const PassContext& pass, PassSaved& saved) const {
  saved.allocate(slot);
  const MlpSizes sizes = sizes_of(pass, saved.declared(slot));
  pass.product_forward(sizes.tokens, sizes.hidden, sizes.pre);
}

void PassMlp::forward(const PassContext& pass, PassSaved& saved) const {
  pre_activation(pass, saved);
  const MlpSizes sizes = sizes_of(pass, saved.declared(slot));
  const PassTensor activation_TF = pass.ledger.tensor(sizes.tokens * sizes.inner, pass.activations());
  reordered(pass, saved.at(slot), sizes.pre, interleave);
  pass.product_forward(sizes.tokens, sizes.inner, sizes.hidden);
}

std::vector<PassTensor> PassMlp::input_gradient(const PassContext& pass, PassSaved& saved) const {
  const MlpSizes sizes = sizes_of(pass, saved.declared(slot));
  PassTensor pre = reordered(pass, saved.at(slot), sizes.pre, interleave);
  saved.release(slot);
  const PassTensor dactivation_TF = pass.ledger.tensor(sizes.tokens * sizes.inner, pass.activations());
  const PassTensor activation_TF = pass.ledger.like(dactivation_TF);
  pre = reordered(pass, pre, sizes.pre, interleave);
  pass.product_backward(sizes.tokens, sizes.inner, sizes.hidden);
  pass.product_backward(sizes.tokens, sizes.hidden, sizes.pre);
  return {activation_TF, pre};
}

namespace {

class DenseMlpPass final : public PassSublayer {
 public:
  void forward(const PassContext& pass, const PassTensor&, PassSaved& saved, PassMode) const override {
    mlp_.forward(pass, saved);
  }
  void restore(const PassContext& pass, const PassTensor&, PassSaved& saved) const override {
    if (saved.is_missing(mlp_.slot)) mlp_.pre_activation(pass, saved);
  }
  void backward(const PassContext& pass, const PassTensor&, const PassTensor&, PassSaved& saved) const override {
    mlp_.input_gradient(pass, saved);
  }

 private:
  PassMlp mlp_{.slot = MlpSlot::kPreActivation};
};

}  // namespace

std::unique_ptr<PassSublayer> dense_mlp_pass() {
  return std::make_unique<DenseMlpPass>();
}

}  // namespace primus::model
