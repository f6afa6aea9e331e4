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

PassStreams::PassStreams(const PassContext& pass, Kind kind, std::int64_t rows)
    : pass_(pass),
      cuts_{.streams = pass.spec.num_streams(),
            .logits = kind == Kind::kHead ? pass.spec.num_streams() : pass.spec.hyper->num_logits(),
            .steps = HyperCuts::sinkhorn_steps(pass.spec.hyper->sinkhorn_iterations)},
      rows_(rows) {}

std::vector<PassTensor> PassStreams::values() const {
  const DType sums = pass_.policy.statistics;
  if (pass_.policy.parameters == sums) return {};
  return {pass_.ledger.tensor(cuts_.logits * pass_.spec.residual_width(), sums),
          pass_.ledger.tensor(cuts_.logits, sums), pass_.ledger.tensor(cuts_.writes() ? 3 : 1, sums)};
}

PassTensor PassStreams::read(int input_slot, int mix_slot, PassSaved& saved) const {
  if (saved.is_missing(mix_slot)) {
    const std::vector<PassTensor> converted = values();
    saved.allocate(mix_slot);
  }
  PassTensor z_TH = pass_.ledger.tensor(rows_ * pass_.spec.hidden_size, saved.at(input_slot).dtype());
  const std::vector<PassTensor> converted = values();
  HyperCuts reading = cuts_;
  reading.logits = cuts_.streams;
  pass_.ledger.scratch(pass_.scratch.hyper_forward(rows_, reading, pass_.policy.statistics));
  return z_TH;
}

void PassStreams::write() const {
  const std::vector<PassTensor> converted = values();
  pass_.ledger.scratch(pass_.scratch.hyper_forward(rows_, cuts_, pass_.policy.statistics));
}

PassTensor PassStreams::write_backward() const {
  PassTensor dweight = pass_.ledger.tensor(rows_ * cuts_.logits, pass_.policy.statistics);
  const std::vector<PassTensor> converted = values();
  pass_.ledger.scratch(pass_.scratch.hyper_backward(rows_, pass_.spec.hidden_size, cuts_, pass_.policy.statistics));
  return dweight;
}

void PassStreams::read_backward(PassTensor) const {
  const std::vector<PassTensor> converted = values();
  pass_.ledger.scratch(pass_.scratch.hyper_backward(rows_, pass_.spec.hidden_size, cuts_, pass_.policy.statistics));
}

PassTensor sum_of_streams(const PassContext& pass, PassTensor dx_TC) {
  if (pass.spec.num_streams() == 1) return dx_TC;
  return pass.ledger.tensor(dx_TC.num_elements() / pass.spec.num_streams(), dx_TC.dtype());
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
