// Mixers other than attention, of a pass, in bytes: nn/short_convolution.cpp, nn/gated_delta_net.cpp and
// nn/kimi_delta_attention.cpp.
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

class KimiDeltaPass final : public PassSublayer {
 public:
  explicit KimiDeltaPass(const ModelSpec& spec) : delta_(spec.kimi_delta) {}

  void forward(const PassContext& pass, const PassTensor&, PassSaved& saved, PassMode) const override {
    project(pass, saved);
    attend(pass, saved);
    const Sizes sizes(saved);
    const PassTensor gate = low_rank_gate(pass, sizes);
    const PassTensor gated = pass.ledger.like(saved.at(Slot::kContext));
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
    const PassTensor low = saved.at(Slot::kLowRank);
    PassTensor gate = low_rank_gate(pass, sizes);
    const PassTensor gated = pass.ledger.like(context);
    PassTensor dcontext = pass.ledger.like(context);
    const PassTensor dprojected = pass.ledger.like(projected);
    const PassTensor dlow = pass.ledger.like(low);
    PassTensor dgate;
    if (delta_.has_low_rank_gate()) dgate = pass.ledger.like(context);
    pass.ledger.scratch(
        pass.scratch.gated_norm_backward(sizes.tokens * sizes.heads, sizes.head_width, pass.policy.statistics));
    gate.reset();
    const PassTensor ddecay = rule_backward(pass, sizes);
    saved.release_all();
    dcontext.reset();
    backward_products(pass, sizes);
  }

 private:
  using Slot = KimiDeltaSlot;

  /// This rank's.
  struct Sizes {
    std::int64_t tokens, projected_width, low_rank_width, heads, head_width;
    explicit Sizes(const PassSaved& saved)
        : tokens(saved.declared(Slot::kProjected).shape.at(0)),
          projected_width(saved.declared(Slot::kProjected).shape.at(1)),
          low_rank_width(saved.declared(Slot::kLowRank).shape.at(1)),
          heads(saved.declared(Slot::kContext).shape.at(1)),
          head_width(saved.declared(Slot::kContext).shape.at(2)) {}
    std::int64_t context_width() const { return heads * head_width; }
  };

  std::int64_t key_heads(const Sizes& sizes) const {
    return sizes.heads * delta_.heads.num_key_heads / delta_.heads.num_value_heads;
  }
  std::int64_t decay_width(const Sizes& sizes) const { return sizes.heads * delta_.heads.key_head_dim; }

  DeltaSizes rule_sizes(const PassContext& pass, const Sizes& sizes) const {
    return {.batch = pass.batch.num_sequences,
            .sequence = pass.batch.seq_length / pass.sharding.context,
            .key_heads = key_heads(sizes),
            .value_heads = sizes.heads,
            .key_size = delta_.heads.key_head_dim,
            .value_size = sizes.head_width,
            .decay_width = delta_.heads.key_head_dim,
            .chunk_size = delta_.chunk_size};
  }

  static void project(const PassContext& pass, PassSaved& saved) {
    saved.allocate(Slot::kProjected);
    saved.allocate(Slot::kLowRank);
    const Sizes sizes(saved);
    pass.product_forward(sizes.tokens, pass.spec.hidden_size, sizes.projected_width);
    pass.product_forward(sizes.tokens, pass.spec.hidden_size, sizes.low_rank_width);
  }

  PassTensor low_rank_gate(const PassContext& pass, const Sizes& sizes) const {
    if (!delta_.has_low_rank_gate()) return {};
    PassTensor gate = pass.ledger.tensor(sizes.tokens * sizes.context_width(), pass.activations());
    pass.product_forward(sizes.tokens, delta_.rank(), sizes.context_width());
    return gate;
  }

  /// What decays are made of.
  PassTensor decays(const PassContext& pass, const Sizes& sizes) const {
    PassTensor decay = pass.ledger.tensor(sizes.tokens * decay_width(sizes), pass.activations());
    pass.product_forward(sizes.tokens, delta_.rank(), decay_width(sizes));
    return decay;
  }

  /// What the delta rule reads, beside the projection.
  struct Rule {
    PassTensor mixed_TC, log_decay_TAK, beta_TA;
  };

  Rule rule(const PassContext& pass, const Sizes& sizes) const {
    const std::int64_t numbers = sizes.tokens * sizes.heads;
    const std::int64_t mixed_width = 2 * key_heads(sizes) * delta_.heads.key_head_dim + sizes.context_width();
    Rule rule;
    rule.mixed_TC = pass.ledger.tensor(sizes.tokens * mixed_width, pass.activations());
    rule.log_decay_TAK = pass.ledger.tensor(sizes.tokens * decay_width(sizes), pass.policy.statistics);
    PassTensor widened;
    if (pass.activations() != pass.policy.statistics) widened = pass.ledger.tensor(numbers, pass.policy.statistics);
    rule.beta_TA = pass.ledger.tensor(numbers, pass.policy.statistics);
    return rule;
  }

  void attend(const PassContext& pass, PassSaved& saved) const {
    const Sizes sizes(saved);
    PassTensor decay = decays(pass, sizes);
    const Rule in = rule(pass, sizes);
    decay.reset();
    saved.allocate(Slot::kContext);
    pass.ledger.scratch(pass.scratch.delta_rule_forward(rule_sizes(pass, sizes), pass.policy.statistics));
  }

  PassTensor rule_backward(const PassContext& pass, const Sizes& sizes) const {
    const PassTensor decay = decays(pass, sizes);
    const Rule in = rule(pass, sizes);
    const PassTensor dmixed_TC = pass.ledger.like(in.mixed_TC);
    const PassTensor dlog_decay_TAK = pass.ledger.like(in.log_decay_TAK);
    const PassTensor dbeta_TA = pass.ledger.like(in.beta_TA);
    pass.ledger.scratch(pass.scratch.delta_rule_backward(rule_sizes(pass, sizes), pass.policy.statistics));
    PassTensor ddecay = pass.ledger.like(decay);
    pass.ledger.scratch(pass.scratch.decay_gate_backward(sizes.tokens, decay_width(sizes), pass.policy.statistics));
    return ddecay;
  }

  void backward_products(const PassContext& pass, const Sizes& sizes) const {
    const std::int64_t hidden = pass.spec.hidden_size;
    pass.product_backward(sizes.tokens, sizes.context_width(), hidden);
    pass.product_backward(sizes.tokens, hidden, sizes.projected_width);
    pass.product_backward(sizes.tokens, hidden, sizes.low_rank_width);
    pass.product_backward(sizes.tokens, delta_.rank(), decay_width(sizes));
    if (delta_.has_low_rank_gate()) pass.product_backward(sizes.tokens, delta_.rank(), sizes.context_width());
  }

  const KimiDeltaSpec& delta_;
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
    case MixerKind::kKimiDelta:
      return std::make_unique<KimiDeltaPass>(spec);
    case MixerKind::kUnknown:
      break;
  }
  PRIMUS_CHECK(false, "what the mixer of layer {} holds within a pass is not described", layer);
}

}  // namespace primus::model
