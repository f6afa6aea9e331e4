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

/// This rank's part of a layer with a delta rule.
struct DeltaShape {
  std::int64_t tokens, projected_width, heads, head_width;
  DeltaShape(const PassSaved& saved, int projected, int context)
      : tokens(saved.declared(projected).shape.at(0)),
        projected_width(saved.declared(projected).shape.at(1)),
        heads(saved.declared(context).shape.at(1)),
        head_width(saved.declared(context).shape.at(2)) {}
  std::int64_t context_width() const { return heads * head_width; }
  std::int64_t key_heads(const GatedDeltaSpec& sizes) const {
    return heads * sizes.num_key_heads / sizes.num_value_heads;
  }
  /// Queries, keys and values, as the convolution mixes them.
  std::int64_t mixed_width(const GatedDeltaSpec& sizes) const {
    return 2 * key_heads(sizes) * sizes.key_head_dim + context_width();
  }
};

/// nn/delta_core.cpp: the rule, and what it reads beside the projection.
class PassDelta {
 public:
  /// `decay_width`: decays of a head's state.
  PassDelta(const PassContext& pass, const GatedDeltaSpec& sizes, const DeltaShape& shape, std::int64_t decay_width,
            std::int64_t chunk_size)
      : pass_(pass),
        num_decays_(shape.heads * decay_width),
        tokens_(shape.tokens),
        sizes_{.batch = pass.batch.num_sequences,
               .sequence = pass.batch.seq_length / pass.sharding.context,
               .key_heads = shape.key_heads(sizes),
               .value_heads = shape.heads,
               .key_size = sizes.key_head_dim,
               .value_size = shape.head_width,
               .decay_width = decay_width,
               .chunk_size = chunk_size} {
    const std::int64_t numbers = tokens_ * shape.heads;
    mixed_TC_ = pass.ledger.tensor(tokens_ * shape.mixed_width(sizes), pass.activations());
    log_decay_ = pass.ledger.tensor(tokens_ * num_decays_, pass.policy.statistics);
    PassTensor widened;
    if (pass.activations() != pass.policy.statistics) widened = pass.ledger.tensor(numbers, pass.policy.statistics);
    beta_TA_ = pass.ledger.tensor(numbers, pass.policy.statistics);
  }

  void forward() const { pass_.ledger.scratch(pass_.scratch.delta_rule_forward(sizes_, pass_.policy.statistics)); }

  /// What it holds until its caller is done with the rule's inputs.
  std::vector<PassTensor> backward() const {
    std::vector<PassTensor> gradients = {pass_.ledger.like(mixed_TC_), pass_.ledger.like(log_decay_),
                                         pass_.ledger.like(beta_TA_)};
    pass_.ledger.scratch(pass_.scratch.delta_rule_backward(sizes_, pass_.policy.statistics));
    return gradients;
  }
  void input_backward() const {
    pass_.ledger.scratch(pass_.scratch.decay_gate_backward(tokens_, num_decays_, pass_.policy.statistics));
  }

 private:
  const PassContext& pass_;
  std::int64_t num_decays_, tokens_;
  DeltaSizes sizes_;
  PassTensor mixed_TC_, log_decay_, beta_TA_;
};

class GatedDeltaPass final : public PassSublayer {
 public:
  explicit GatedDeltaPass(const ModelSpec& spec) : delta_(spec.gated_delta) {}

  void forward(const PassContext& pass, const PassTensor&, PassSaved& saved, PassMode) const override {
    project(pass, saved);
    attend(pass, saved);
    const PassTensor gated = pass.ledger.like(saved.at(Slot::kContext));
    const DeltaShape sizes = shape(saved);
    pass.product_forward(sizes.tokens, sizes.context_width(), pass.spec.hidden_size);
  }

  void restore(const PassContext& pass, const PassTensor&, PassSaved& saved) const override {
    if (saved.is_missing(Slot::kProjected)) project(pass, saved);
    if (saved.is_missing(Slot::kContext)) attend(pass, saved);
  }

  void backward(const PassContext& pass, const PassTensor&, const PassTensor&, PassSaved& saved) const override {
    const DeltaShape sizes = shape(saved);
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

  static constexpr std::int64_t kChunk = DeltaSizes{}.chunk_size;
  static DeltaShape shape(const PassSaved& saved) { return {saved, Slot::kProjected, Slot::kContext}; }

  static void project(const PassContext& pass, PassSaved& saved) {
    saved.allocate(Slot::kProjected);
    const DeltaShape sizes = shape(saved);
    pass.product_forward(sizes.tokens, pass.spec.hidden_size, sizes.projected_width);
  }

  void attend(const PassContext& pass, PassSaved& saved) const {
    const PassDelta rule(pass, delta_, shape(saved), 1, kChunk);
    saved.allocate(Slot::kContext);
    rule.forward();
  }

  void rule_backward(const PassContext& pass, const DeltaShape& sizes) const {
    const PassDelta rule(pass, delta_, sizes, 1, kChunk);
    const std::vector<PassTensor> gradients = rule.backward();
    rule.input_backward();
  }

  const GatedDeltaSpec& delta_;
};

class KimiDeltaPass final : public PassSublayer {
 public:
  explicit KimiDeltaPass(const ModelSpec& spec) : delta_(spec.kimi_delta) {}

  void forward(const PassContext& pass, const PassTensor&, PassSaved& saved, PassMode) const override {
    project(pass, saved);
    attend(pass, saved);
    const DeltaShape sizes = shape(saved);
    const PassTensor gate = low_rank_gate(pass, sizes);
    const PassTensor gated = pass.ledger.like(saved.at(Slot::kContext));
    pass.product_forward(sizes.tokens, sizes.context_width(), pass.spec.hidden_size);
  }

  void restore(const PassContext& pass, const PassTensor&, PassSaved& saved) const override {
    if (saved.is_missing(Slot::kProjected)) project(pass, saved);
    if (saved.is_missing(Slot::kContext)) attend(pass, saved);
  }

  void backward(const PassContext& pass, const PassTensor&, const PassTensor&, PassSaved& saved) const override {
    const DeltaShape sizes = shape(saved);
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
    backward_products(pass, sizes, low_rank_width(saved));
  }

 private:
  using Slot = KimiDeltaSlot;

  static DeltaShape shape(const PassSaved& saved) { return {saved, Slot::kProjected, Slot::kContext}; }
  static std::int64_t low_rank_width(const PassSaved& saved) { return saved.declared(Slot::kLowRank).shape.at(1); }
  std::int64_t decay_width(const DeltaShape& sizes) const { return sizes.heads * delta_.heads.key_head_dim; }
  PassDelta rule(const PassContext& pass, const DeltaShape& sizes) const {
    return {pass, delta_.heads, sizes, delta_.heads.key_head_dim, delta_.chunk_size};
  }

  static void project(const PassContext& pass, PassSaved& saved) {
    saved.allocate(Slot::kProjected);
    saved.allocate(Slot::kLowRank);
    const DeltaShape sizes = shape(saved);
    pass.product_forward(sizes.tokens, pass.spec.hidden_size, sizes.projected_width);
    pass.product_forward(sizes.tokens, pass.spec.hidden_size, low_rank_width(saved));
  }

  PassTensor low_rank_gate(const PassContext& pass, const DeltaShape& sizes) const {
    if (!delta_.has_low_rank_gate()) return {};
    PassTensor gate = pass.ledger.tensor(sizes.tokens * sizes.context_width(), pass.activations());
    pass.product_forward(sizes.tokens, delta_.rank(), sizes.context_width());
    return gate;
  }

  /// What decays are made of.
  PassTensor decays(const PassContext& pass, const DeltaShape& sizes) const {
    PassTensor decay = pass.ledger.tensor(sizes.tokens * decay_width(sizes), pass.activations());
    pass.product_forward(sizes.tokens, delta_.rank(), decay_width(sizes));
    return decay;
  }

  void attend(const PassContext& pass, PassSaved& saved) const {
    const DeltaShape sizes = shape(saved);
    PassTensor decay = decays(pass, sizes);
    const PassDelta rule = this->rule(pass, sizes);
    decay.reset();
    saved.allocate(Slot::kContext);
    rule.forward();
  }

  PassTensor rule_backward(const PassContext& pass, const DeltaShape& sizes) const {
    const PassTensor decay = decays(pass, sizes);
    const PassDelta rule = this->rule(pass, sizes);
    const std::vector<PassTensor> gradients = rule.backward();
    PassTensor ddecay = pass.ledger.like(decay);
    rule.input_backward();
    return ddecay;
  }

  void backward_products(const PassContext& pass, const DeltaShape& sizes, std::int64_t low_rank_width) const {
    const std::int64_t hidden = pass.spec.hidden_size;
    pass.product_backward(sizes.tokens, sizes.context_width(), hidden);
    pass.product_backward(sizes.tokens, hidden, sizes.projected_width);
    pass.product_backward(sizes.tokens, hidden, low_rank_width);
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
    case MixerKind::kCompressed:
      return compressed_pass(spec, layer);
    case MixerKind::kUnknown:
      break;
  }
  PRIMUS_CHECK(false, "what the mixer of layer {} holds within a pass is not described", layer);
}

}  // namespace primus::model
