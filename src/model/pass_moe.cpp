// Routed and shared experts of a pass, in bytes: nn/moe.cpp and nn/latent_projection.cpp.
// Legend: T tokens, H hidden, E experts, K top_k, R rows sorted by expert, F ffn width, L latent width.
#include "model/pass_context.hpp"

namespace primus::model {
namespace {

using Slot = MoeSlot;

class MoePass final : public PassSublayer {
 public:
  MoePass(const ModelSpec& spec, int layer)
      : moe_(*spec.moe),
        router_(spec.router(layer)),
        shared_{.slot = Slot::kSharedPreActivation, .interleave = spec.moe->shared_glu_interleave} {}

  void forward(const PassContext& pass, const PassTensor& x_TH, PassSaved& saved, PassMode mode) const override {
    route(pass, x_TH, saved, mode);
    if (moe_.latent) {
      latent_forward(pass, x_TH, saved);
      normed_latent(pass, saved);
      pass.product_forward(tokens_of(pass, x_TH), moe_.latent->size, pass.spec.hidden_size);
    } else {
      experts_forward(pass, saved);
    }
    if (!has_shared()) return;
    if (moe_.shared_gate == Part::kPresent) shared_gate(pass, x_TH, saved);
    shared_.forward(pass, saved);
  }

  void restore(const PassContext& pass, const PassTensor& x_TH, PassSaved& saved) const override {
    if (saved.is_missing(Slot::kIndex)) route(pass, x_TH, saved, PassMode::kRecompute);
    if (saved.is_missing(Slot::kPreActivation)) {
      if (moe_.latent) {
        latent_forward(pass, x_TH, saved);
      } else {
        expert_pre_activation(pass, saved);
      }
    }
    if (!has_shared()) return;
    if (saved.is_missing(shared_.slot)) shared_.pre_activation(pass, saved);
    if (saved.is_missing(Slot::kSharedGate)) shared_gate(pass, x_TH, saved);
  }

  void backward(const PassContext& pass, const PassTensor& dy_TH, const PassTensor& x_TH,
                PassSaved& saved) const override {
    Left left;
    const PassTensor dprob_TK = routed_backward(pass, dy_TH, x_TH, saved, left);
    const std::vector<PassTensor> of_router = router_backward(pass, x_TH, saved);
    std::vector<PassTensor> of_shared;
    if (has_shared()) of_shared = shared_backward(pass, x_TH, saved);
    const std::int64_t num_rows = rows_of(saved);
    if (pass.sharding.exchanges_rows()) left.push_back(saved.at(Slot::kReceived));
    saved.release_all();
    PassTensor x_RH;
    if (!pass.sharding.exchanges_rows()) x_RH = expert_input(pass, num_rows);
    router_weight_gradients(pass);
  }

 private:
  using Left = std::vector<PassTensor>;  // for the weight gradients

  bool has_shared() const { return moe_.shared_ffn_hidden_size > 0; }
  bool scales_input() const { return moe_.probabilities_on == MoeSpec::ProbabilitiesOn::kInput; }
  std::int64_t width(const PassContext& pass) const { return moe_.latent ? moe_.latent->size : pass.spec.hidden_size; }
  static std::int64_t tokens_of(const PassContext& pass, const PassTensor& x_TH) {
    return x_TH.num_elements() / pass.spec.hidden_size;
  }
  static PassTensor rows(const PassContext& pass, std::int64_t num_elements) {
    return pass.ledger.tensor(num_elements, pass.activations(), PassMemory::kRows);
  }
  static std::int64_t rows_of(const PassSaved& saved) { return saved.declared(Slot::kPreActivation).shape.at(0); }
  std::int64_t inner_of(const PassContext& pass, const PassSaved& saved) const {
    return saved.declared(Slot::kPreActivation).shape.at(1) / (pass.spec.num_mlp_matrices() - 1);
  }
  void grouped_forward(const PassContext& pass, std::int64_t rows, std::int64_t inputs, std::int64_t outputs) const {
    pass.ledger.scratch(
        pass.scratch.grouped_forward({rows, inputs, outputs}, {pass.activations(), pass.activations()}));
  }
  void grouped_backward(const PassContext& pass, std::int64_t rows, std::int64_t inputs, std::int64_t outputs) const {
    pass.ledger.scratch(
        pass.scratch.grouped_backward({rows, inputs, outputs}, {pass.activations(), pass.activations()}));
  }

  void route(const PassContext& pass, const PassTensor& x_TH, PassSaved& saved, PassMode mode) const {
    router_forward(pass, router_, x_TH, saved, mode);
    for (const int slot : {Slot::kOffsets, Slot::kRowOf, Slot::kSlotOf}) saved.allocate(slot);
  }

  PassTensor row_probabilities(const PassContext& pass, const PassSaved& saved) const {
    const PassTensor prob_TK = pass.ledger.converted(saved.at(Slot::kProb), pass.policy.statistics);
    return pass.ledger.tensor(saved.declared(Slot::kSlotOf).num_elements(), pass.policy.statistics);
  }

  PassTensor expert_input(const PassContext& pass, std::int64_t num_rows) const {
    const std::int64_t elements = num_rows * width(pass);
    PassTensor x_RH = rows(pass, elements);
    if (scales_input()) pass.ledger.combine_into(elements, pass.activations(), pass.policy.statistics);
    return x_RH;
  }

  /// What goes to other ranks' experts, or comes back from them; nothing where all are here.
  PassTensor exchanged(const PassContext& pass, const PassSaved& saved) const {
    if (!pass.sharding.exchanges_rows()) return {};
    return rows(pass, saved.declared(Slot::kSlotOf).num_elements() * width(pass));
  }

  void expert_pre_activation(const PassContext& pass, PassSaved& saved) const {
    saved.allocate(Slot::kPreActivation);
    PassTensor scale_R;
    if (scales_input()) scale_R = row_probabilities(pass, saved);
    if (pass.sharding.exchanges_rows()) {
      exchanged(pass, saved);
      // Rows of other ranks stay until backward: to fetch them again would be a second exchange.
      if (saved.is_missing(Slot::kReceived)) saved.allocate(Slot::kReceived);
    } else {
      expert_input(pass, rows_of(saved));
    }
    grouped_forward(pass, rows_of(saved), width(pass), saved.declared(Slot::kPreActivation).shape.at(1));
  }

  void experts_forward(const PassContext& pass, PassSaved& saved) const {
    expert_pre_activation(pass, saved);
    PassTensor prob_R;
    if (!scales_input()) prob_R = row_probabilities(pass, saved);
    const std::int64_t num_rows = rows_of(saved);
    const std::int64_t inner = inner_of(pass, saved);
    const PassTensor activation_RF = pass.ledger.tensor(num_rows * inner, pass.activations());
    reordered(pass, saved.at(Slot::kPreActivation), saved.declared(Slot::kPreActivation).shape.at(1),
              moe_.glu_interleave);
    const PassTensor y_RH = rows(pass, num_rows * width(pass));
    grouped_forward(pass, num_rows, inner, width(pass));
    exchanged(pass, saved);
  }

  void latent_forward(const PassContext& pass, const PassTensor& x_TH, PassSaved& saved) const {
    saved.allocate(Slot::kLatentInput);
    pass.product_forward(tokens_of(pass, x_TH), pass.spec.hidden_size, moe_.latent->size);
    saved.allocate(Slot::kLatentOutput);
    experts_forward(pass, saved);
  }

  PassTensor normed_latent(const PassContext& pass, PassSaved& saved) const {
    const PassTensor& output_TL = saved.at(Slot::kLatentOutput);
    if (moe_.latent->norm == Part::kAbsent) return output_TL;
    PassTensor normed_TL = pass.ledger.like(output_TL);
    PassNorm(pass.spec, moe_.latent->size)
        .forward(pass, output_TL, saved.declared(Slot::kLatentOutput).shape.at(0), normed_TL.dtype(), Slot::kLatentRstd,
                 saved);
    return normed_TL;
  }

  PassTensor latent_leave_backward(const PassContext& pass, const PassTensor& dy_TH, PassSaved& saved,
                                   Left& left) const {
    const PassTensor normed_TL = normed_latent(pass, saved);
    const PassTensor dnormed_TL = pass.ledger.like(normed_TL);
    pass.product_backward(tokens_of(pass, dy_TH), moe_.latent->size, pass.spec.hidden_size);
    left.insert(left.end(), {dy_TH, normed_TL});
    if (moe_.latent->norm == Part::kAbsent) return dnormed_TL;
    PassTensor doutput_TL = pass.ledger.like(normed_TL);
    PassNorm(pass.spec, moe_.latent->size)
        .backward(pass, dnormed_TL, pass.activations(), saved.declared(Slot::kLatentOutput).shape.at(0));
    return doutput_TL;
  }

  static void shared_gate(const PassContext& pass, const PassTensor& x_TH, PassSaved& saved) {
    const PassTensor& gate_T = saved.allocate(Slot::kSharedGate);
    pass.ledger.scratch(pass.scratch.product_forward({tokens_of(pass, x_TH), pass.spec.hidden_size, 1},
                                                     {pass.activations(), gate_T.dtype()}));
  }

  PassTensor routed_backward(const PassContext& pass, const PassTensor& dy_TH, const PassTensor& x_TH, PassSaved& saved,
                             Left& left) const {
    if (!moe_.latent) return experts_backward(pass, x_TH, saved, left);
    const PassTensor doutput_TL = latent_leave_backward(pass, dy_TH, saved, left);
    const PassTensor dinput_TL = pass.ledger.tensor(tokens_of(pass, x_TH) * moe_.latent->size, pass.activations());
    PassTensor dprob_TK = experts_backward(pass, saved.at(Slot::kLatentInput), saved, left);
    pass.product_backward(tokens_of(pass, x_TH), pass.spec.hidden_size, moe_.latent->size);
    left.push_back(dinput_TL);
    return dprob_TK;
  }

  PassTensor experts_backward(const PassContext& pass, const PassTensor& x_TH, PassSaved& saved, Left& left) const {
    PassLedger& ledger = pass.ledger;
    const PassTensor offsets = saved.at(Slot::kOffsets);
    const PassTensor row_of = saved.at(Slot::kRowOf);
    const PassTensor prob_R = row_probabilities(pass, saved);
    const std::int64_t pre_width = saved.declared(Slot::kPreActivation).shape.at(1);
    PassTensor pre = reordered(pass, saved.at(Slot::kPreActivation), pre_width, moe_.glu_interleave);
    saved.release(Slot::kPreActivation);
    const std::int64_t num_rows = rows_of(saved);
    const std::int64_t inner = inner_of(pass, saved);
    PassTensor sent = exchanged(pass, saved);
    const PassTensor dy_RH = rows(pass, num_rows * width(pass));
    sent.reset();
    PassTensor dactivation_RF = ledger.tensor(num_rows * inner, pass.activations());
    const PassTensor activation_RF = ledger.like(dactivation_RF);
    PassTensor dprob_R = ledger.like(prob_R);
    pre = reordered(pass, pre, pre_width, moe_.glu_interleave);
    dactivation_RF.reset();
    {
      const PassTensor dx_RH = rows(pass, num_rows * width(pass));
      if (scales_input()) dprob_R = input_scale_gradient(pass, prob_R, dx_RH);
      exchanged(pass, saved);
    }
    grouped_backward(pass, num_rows, inner, width(pass));
    grouped_backward(pass, num_rows, width(pass), pre_width);
    const PassTensor dprob_TK = ledger.tensor(row_of.num_elements(), dprob_R.dtype());
    left.insert(left.end(), {offsets, row_of, dy_RH, activation_RF, pre, x_TH, prob_R});
    return ledger.converted(dprob_TK, saved.at(Slot::kProb).dtype());
  }

  PassTensor input_scale_gradient(const PassContext& pass, const PassTensor& prob_R, const PassTensor& dx_RH) const {
    PassLedger& ledger = pass.ledger;
    const std::int64_t elements = prob_R.num_elements() * width(pass);
    PassTensor x_RH = rows(pass, elements);
    x_RH = ledger.converted(x_RH, prob_R.dtype());
    PassTensor dprob_R;
    {
      const PassTensor wide = ledger.converted(dx_RH, prob_R.dtype());
      const PassTensor product = ledger.tensor(elements, prob_R.dtype());
      dprob_R = ledger.like(prob_R);
    }
    ledger.combine_into(elements, dx_RH.dtype(), prob_R.dtype());
    return dprob_R;
  }

  std::vector<PassTensor> shared_backward(const PassContext& pass, const PassTensor& x_TH, PassSaved& saved) const {
    PassTensor gate_T;
    PassTensor dgate_T;
    if (moe_.shared_gate == Part::kPresent) {
      gate_T = saved.at(Slot::kSharedGate);
      dgate_T = pass.ledger.like(gate_T);
    }
    std::vector<PassTensor> left = shared_.input_gradient(pass, saved);
    if (!gate_T.is_defined()) return left;
    {
      const PassTensor rest_T = pass.ledger.like(gate_T);
      pass.ledger.number(gate_T.dtype());
    }
    pass.ledger.scratch(pass.scratch.product_backward({tokens_of(pass, x_TH), pass.spec.hidden_size, 1},
                                                      {pass.activations(), gate_T.dtype()}));
    left.insert(left.end(), {gate_T, dgate_T});
    return left;
  }

  const MoeSpec& moe_;
  RouterSpec router_;
  PassMlp shared_;
};

}  // namespace

std::unique_ptr<PassSublayer> moe_pass(const ModelSpec& spec, int layer) {
  return std::make_unique<MoePass>(spec, layer);
}

}  // namespace primus::model
