// Mixers other than attention, of a pass, in bytes: nn/short_convolution.cpp and nn/gated_delta_net.cpp.
// Legend: T tokens, H hidden, A value heads, C channels that a delta net's convolution mixes.
#include "base/error.hpp"
#include "model/pass_context.hpp"

namespace primus::model {
namespace {

class ShortConvolutionPass final : public PassSublayer {
 public:
  void forward(const PassContext& pass, const PassTensor& x_TH, PassSaved& saved, PassMode) const override {
    project(pass, saved);
    const PassTensor mixed_TH = pass.ledger.like(x_TH);
    pass.product_forward(tokens(saved), pass.spec.hidden_size, pass.spec.hidden_size);
  }

  void restore(const PassContext& pass, const PassTensor&, PassSaved& saved) const override {
    if (saved.is_missing(Slot::kProjected)) project(pass, saved);
  }

  void backward(const PassContext& pass, const PassTensor&, const PassTensor& x_TH, PassSaved& saved) const override {
    const std::int64_t hidden = pass.spec.hidden_size;
    const PassTensor mixed_TH = pass.ledger.like(x_TH);
    const PassTensor dmixed_TH = pass.ledger.like(x_TH);
    const PassTensor dprojected_T3H = pass.ledger.like(saved.at(Slot::kProjected));
    saved.release_all();
    pass.product_backward(tokens(saved), hidden, hidden);
    pass.product_backward(tokens(saved), hidden, width(saved));
  }

 private:
  using Slot = ShortConvolutionSlot;
  static std::int64_t tokens(const PassSaved& saved) { return saved.declared(Slot::kProjected).shape.at(0); }
  static std::int64_t width(const PassSaved& saved) { return saved.declared(Slot::kProjected).shape.at(1); }

  static void project(const PassContext& pass, PassSaved& saved) {
    saved.allocate(Slot::kProjected);
    pass.product_forward(tokens(saved), pass.spec.hidden_size, width(saved));
  }
};

class GatedDeltaPass final : public PassSublayer {
 public:
  explicit GatedDeltaPass(const ModelSpec& spec) : delta_(spec.gated_delta) {}

  void forward(const PassContext& pass, const PassTensor&, PassSaved& saved, PassMode) const override {
    project(pass, saved);
    attend(pass, saved);
    const PassTensor gated = pass.ledger.like(saved.at(Slot::kContext));
    const Sizes sizes(saved);
    pass.product_forward(sizes.tokens, sizes.context_width(), pass.spec.hidden_size);
  }

  void restore(const PassContext& pass, const PassTensor&, PassSaved& saved) const override {
    if (saved.is_missing(Slot::kProjected)) project(pass, saved);
    if (saved.is_missing(Slot::kContext)) attend(pass, saved);
  }

  void backward(const PassContext& pass, const PassTensor&, const PassTensor&, PassSaved& saved) const override {
    const Sizes sizes(saved);
    const PassTensor context = saved.at(Slot::kContext);
    const PassTensor projected = saved.at(Slot::kProjected);
    const PassTensor gated = pass.ledger.like(context);
    const PassTensor dcontext = pass.ledger.like(context);
    const PassTensor dprojected = pass.ledger.like(projected);
    pass.ledger.scratch(
        pass.scratch.gated_norm_backward(sizes.tokens * sizes.heads, sizes.head_width, pass.policy.statistics));
    rule_backward(pass, sizes);
    saved.release_all();
    pass.product_backward(sizes.tokens, sizes.context_width(), pass.spec.hidden_size);
    pass.product_backward(sizes.tokens, pass.spec.hidden_size, sizes.projected_width);
  }

 private:
  using Slot = GatedDeltaSlot;

  /// This rank's.
  struct Sizes {
    std::int64_t tokens, projected_width, heads, head_width;
    explicit Sizes(const PassSaved& saved)
        : tokens(saved.declared(Slot::kProjected).shape.at(0)),
          projected_width(saved.declared(Slot::kProjected).shape.at(1)),
          heads(saved.declared(Slot::kContext).shape.at(1)),
          head_width(saved.declared(Slot::kContext).shape.at(2)) {}
    std::int64_t context_width() const { return heads * head_width; }
    std::int64_t mixed_width() const { return projected_width - context_width() - 2 * heads; }
  };

  /// What the delta rule reads, beside the projection.
  struct Rule {
    PassTensor mixed_TC, log_decay_TA, beta_TA;
  };

  DeltaSizes rule_sizes(const PassContext& pass, const Sizes& sizes) const {
    return {.batch = pass.batch.num_sequences,
            .sequence = pass.batch.seq_length / pass.sharding.context,
            .key_heads = sizes.heads * delta_.num_key_heads / delta_.num_value_heads,
            .value_heads = sizes.heads,
            .key_size = delta_.key_head_dim,
            .value_size = sizes.head_width};
  }

  static void project(const PassContext& pass, PassSaved& saved) {
    saved.allocate(Slot::kProjected);
    const Sizes sizes(saved);
    pass.product_forward(sizes.tokens, pass.spec.hidden_size, sizes.projected_width);
  }

  static Rule rule(const PassContext& pass, const Sizes& sizes) {
    const std::int64_t numbers = sizes.tokens * sizes.heads;
    Rule rule;
    rule.mixed_TC = pass.ledger.tensor(sizes.tokens * sizes.mixed_width(), pass.activations());
    rule.log_decay_TA = pass.ledger.tensor(numbers, pass.policy.statistics);
    PassTensor widened;
    if (pass.activations() != pass.policy.statistics) widened = pass.ledger.tensor(numbers, pass.policy.statistics);
    rule.beta_TA = pass.ledger.tensor(numbers, pass.policy.statistics);
    return rule;
  }

  void attend(const PassContext& pass, PassSaved& saved) const {
    const Sizes sizes(saved);
    const Rule in = rule(pass, sizes);
    saved.allocate(Slot::kContext);
    pass.ledger.scratch(pass.scratch.delta_rule_forward(rule_sizes(pass, sizes), pass.policy.statistics));
  }

  void rule_backward(const PassContext& pass, const Sizes& sizes) const {
    const Rule in = rule(pass, sizes);
    const PassTensor dmixed_TC = pass.ledger.like(in.mixed_TC);
    const PassTensor dlog_decay_TA = pass.ledger.like(in.log_decay_TA);
    const PassTensor dbeta_TA = pass.ledger.like(in.beta_TA);
    pass.ledger.scratch(pass.scratch.delta_rule_backward(rule_sizes(pass, sizes), pass.policy.statistics));
    pass.ledger.scratch(pass.scratch.decay_gate_backward(sizes.tokens, sizes.heads, pass.policy.statistics));
  }

  const GatedDeltaSpec& delta_;
};

}  // namespace

std::unique_ptr<PassSublayer> mixer_pass(const ModelSpec& spec, int layer) {
  switch (spec.mixer(layer)) {
    case MixerKind::kAttention:
      return std::holds_alternative<MlaSpec>(spec.attention) ? mla_pass(spec, layer) : gqa_pass(spec);
    case MixerKind::kShortConvolution:
      return std::make_unique<ShortConvolutionPass>();
    case MixerKind::kGatedDelta:
      return std::make_unique<GatedDeltaPass>(spec);
    case MixerKind::kCompressed:
      return compressed_pass(spec, layer);
    case MixerKind::kUnknown:
      break;
  }
  PRIMUS_CHECK(false, "what the mixer of layer {} holds within a pass is not described", layer);
}

}  // namespace primus::model
