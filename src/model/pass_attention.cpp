// Attention of a pass, in bytes: nn/gqa_attention.cpp, nn/mla_attention.cpp and nn/attention_core.cpp.
// Legend: T tokens, H hidden, A heads, D head size.
#include <utility>

#include "model/pass_context.hpp"

namespace primus::model {
namespace {

/// What the softmax takes besides: the sinks in the statistics' type.
PassTensor sinks(const PassContext& pass, std::int64_t heads) {
  if (pass.spec.zero_sink == Part::kPresent) return pass.ledger.tensor(heads, pass.policy.statistics);
  const bool is_converted = pass.spec.sinks == Part::kPresent && pass.policy.parameters != pass.policy.statistics;
  return is_converted ? pass.ledger.tensor(heads, pass.policy.statistics) : PassTensor();
}

void core_forward(const PassContext& pass, const AttentionSizes& sizes) {
  const PassTensor converted = sinks(pass, sizes.heads);
  pass.ledger.scratch(pass.scratch.attention_forward(sizes, pass.policy.statistics));
}

void core_backward(const PassContext& pass, const AttentionSizes& sizes) {
  const PassTensor converted = sinks(pass, sizes.heads);
  pass.ledger.scratch(pass.scratch.attention_backward(sizes, pass.policy.statistics));
}

/// [rows, heads, width] of a declared tensor.
struct Heads {
  std::int64_t rows, heads, width;
  explicit Heads(const SavedTensor& x) : rows(x.shape.at(0)), heads(x.shape.at(1)), width(x.shape.at(2)) {}
};

class GqaPass final : public PassSublayer {
 public:
  explicit GqaPass(const ModelSpec& spec)
      : gqa_(std::get<GqaSpec>(spec.attention)),
        norm_(gqa_.qk_norms == Part::kPresent ? PassNorm(spec, gqa_.head_dim) : PassNorm(gqa_.head_dim)) {}

  void forward(const PassContext& pass, const PassTensor&, PassSaved& saved, PassMode) const override {
    project(pass, saved);
    attend(pass, saved);
    PassTensor gated;
    if (gqa_.output_gate == Part::kPresent) gated = pass.ledger.like(saved.at(Slot::kContext));
    const Heads context(saved.declared(Slot::kContext));
    pass.product_forward(context.rows, context.heads * context.width, pass.spec.hidden_size);
  }

  void restore(const PassContext& pass, const PassTensor&, PassSaved& saved) const override {
    if (saved.is_missing(Slot::kQkv)) project(pass, saved);
    if (saved.is_missing(Slot::kContext)) attend(pass, saved);
  }

  void backward(const PassContext& pass, const PassTensor&, const PassTensor&, PassSaved& saved) const override {
    const PassTensor context = saved.at(Slot::kContext);
    PassTensor dcontext = pass.ledger.tensor(context.num_elements(), pass.activations());
    const PassTensor dfused = pass.ledger.like(saved.at(Slot::kQkv));
    PassTensor projected = context;
    if (gqa_.output_gate == Part::kPresent) projected = pass.ledger.like(context);
    {
      const std::pair in = ready(pass, saved);
      std::pair<PassTensor, PassTensor> dready;
      if (gqa_.has_norms()) dready = queries_and_keys(pass, saved);
      core_backward(pass, sizes(pass, saved));
      if (gqa_.has_norms()) norms_backward(pass, saved);
    }
    const Heads fused(saved.declared(Slot::kQkv));
    saved.release_all();
    dcontext.reset();
    const Heads heads(saved.declared(Slot::kContext));
    pass.product_backward(heads.rows, heads.heads * heads.width, pass.spec.hidden_size);
    pass.product_backward(fused.rows, pass.spec.hidden_size, fused.heads * fused.width);
  }

 private:
  using Slot = GqaSlot;

  /// Key heads on this rank.
  std::int64_t groups(const PassSaved& saved) const {
    return Heads(saved.declared(Slot::kQkv)).heads * gqa_.num_query_groups / gqa_.num_fused_heads();
  }

  AttentionSizes sizes(const PassContext& pass, const PassSaved& saved) const {
    return {.batch = pass.batch.num_sequences,
            .sequence = pass.batch.seq_length / pass.sharding.context,
            .heads = Heads(saved.declared(Slot::kContext)).heads,
            .groups = groups(saved),
            .query_size = gqa_.head_dim,
            .value_size = gqa_.head_dim};
  }

  void project(const PassContext& pass, PassSaved& saved) const {
    saved.allocate(Slot::kQkv);
    const Heads fused(saved.declared(Slot::kQkv));
    pass.product_forward(fused.rows, pass.spec.hidden_size, fused.heads * fused.width);
  }

  std::pair<PassTensor, PassTensor> queries_and_keys(const PassContext& pass, const PassSaved& saved) const {
    const Heads context(saved.declared(Slot::kContext));
    return {pass.ledger.tensor(context.rows * context.heads * context.width, pass.activations()),
            pass.ledger.tensor(context.rows * groups(saved) * context.width, pass.activations())};
  }

  std::pair<PassTensor, PassTensor> ready(const PassContext& pass, PassSaved& saved) const {
    if (!gqa_.has_norms()) return {};
    std::pair<PassTensor, PassTensor> result = queries_and_keys(pass, saved);
    norm_.forward(pass, result.first, result.first.num_elements() / norm_.width, pass.activations(), Slot::kQueryRstd,
                  saved);
    norm_.forward(pass, result.second, result.second.num_elements() / norm_.width, pass.activations(), Slot::kKeyRstd,
                  saved);
    return result;
  }

  void norms_backward(const PassContext& pass, const PassSaved& saved) const {
    const Heads context(saved.declared(Slot::kContext));
    for (const std::int64_t heads : {context.heads, groups(saved)}) {
      norm_.backward(pass, saved.at(Slot::kQkv), pass.activations(), context.rows * heads);
    }
  }

  void attend(const PassContext& pass, PassSaved& saved) const {
    const std::pair in = ready(pass, saved);
    saved.allocate(Slot::kContext);
    saved.allocate(Slot::kLogSumExp);
    core_forward(pass, sizes(pass, saved));
  }

  const GqaSpec& gqa_;
  PassNorm norm_;
};

class MlaPass final : public PassSublayer {
 public:
  MlaPass(const ModelSpec& spec, int layer)
      : mla_(std::get<MlaSpec>(spec.attention)),
        query_norm_(spec, mla_.q_lora_rank.value_or(0)),
        kv_norm_(spec, mla_.kv_lora_rank),
        is_rotated_(spec.is_rotated(layer) ? Part::kPresent : Part::kAbsent) {
    if (spec.picks_keys(layer)) indexer_.emplace(spec);
  }

  void forward(const PassContext& pass, const PassTensor&, PassSaved& saved, PassMode) const override {
    project_down(pass, saved);
    project_up(pass, saved);
    if (saved.is_missing(Slot::kSelected)) select(pass, saved);
    attend(pass, saved);
    const PassTensor gated = gated_context(pass, saved);
    const Heads context(saved.declared(Slot::kContext));
    pass.product_forward(context.rows, context.heads * context.width, pass.spec.hidden_size);
  }

  void restore(const PassContext& pass, const PassTensor&, PassSaved& saved) const override {
    if (saved.is_missing(Slot::kKvDown)) project_down(pass, saved);
    if (saved.is_missing(Slot::kQuery)) project_up(pass, saved);
    if (saved.is_missing(Slot::kContext)) attend(pass, saved);
  }

  void backward(const PassContext& pass, const PassTensor&, const PassTensor&, PassSaved& saved) const override {
    PassLedger& ledger = pass.ledger;
    const Heads heads(saved.declared(Slot::kContext));
    const PassTensor context_TV = gated_context(pass, saved);
    PassTensor dcontext_TV = ledger.tensor(context_TV.num_elements(), pass.activations());
    PassTensor dgate_TV;
    if (has_gate()) {
      dgate_TV = ledger.like(saved.at(Slot::kGate));
      saved.release(Slot::kGate);
    }
    const std::vector<PassTensor> taught = teach(pass, saved);
    const PassTensor dq = ledger.like(saved.at(Slot::kQuery));
    PassTensor dk = ledger.like(saved.at(Slot::kKey));
    PassTensor dv = ledger.like(saved.at(Slot::kValue));
    core_backward(pass, sizes(pass, saved));
    for (const int slot : {Slot::kQuery, Slot::kKey, Slot::kValue, Slot::kLogSumExp}) saved.release(slot);
    dcontext_TV.reset();
    const PassTensor dkv = ledger.tensor(heads.rows * heads.heads * up_width(), pass.activations());
    const PassTensor dkv_down = ledger.like(saved.at(Slot::kKvDown));
    const std::pair rope = tables(pass);
    dk.reset();
    dv.reset();
    const PassTensor latent_TL = latent_backward(pass, saved);
    std::vector<PassTensor> left;
    query_backward(pass, saved, left);
    saved.release(Slot::kContext);
    saved.release(Slot::kSelected);
    backward_products(pass, saved);
  }

 private:
  using Slot = MlaSlot;

  bool has_norms() const { return mla_.latent_norms == Part::kPresent; }
  bool has_gate() const { return mla_.output_gate == Part::kPresent; }
  std::int64_t up_width() const { return mla_.qk_head_dim + mla_.v_head_dim; }
  static std::int64_t rows(const PassSaved& saved, int slot) { return saved.declared(slot).shape.at(0); }

  AttentionSizes sizes(const PassContext& pass, const PassSaved& saved) const {
    const std::int64_t heads = Heads(saved.declared(Slot::kContext)).heads;
    return {.batch = pass.batch.num_sequences,
            .sequence = pass.batch.seq_length / pass.sharding.context,
            .heads = heads,
            .groups = heads,
            .query_size = mla_.query_dim(),
            .value_size = mla_.v_head_dim};
  }

  /// Where a layer's positions turn nothing, it has tables that say so.
  std::pair<PassTensor, PassTensor> tables(const PassContext& pass) const {
    if (is_rotated_ == Part::kPresent) return {};
    const std::int64_t elements = pass.batch.seq_length * (pass.spec.rope.rotary_dim / 2);
    return {pass.ledger.tensor(elements, pass.policy.statistics), pass.ledger.tensor(elements, pass.policy.statistics)};
  }

  void project_down(const PassContext& pass, PassSaved& saved) const {
    if (mla_.q_lora_rank) {
      saved.allocate(Slot::kQueryDown);
      pass.product_forward(rows(saved, Slot::kQueryDown), pass.spec.hidden_size, *mla_.q_lora_rank);
    }
    saved.allocate(Slot::kKvDown);
    pass.product_forward(rows(saved, Slot::kKvDown), pass.spec.hidden_size, saved.declared(Slot::kKvDown).shape.at(1));
    if (!has_gate()) return;
    saved.allocate(Slot::kGate);
    const Heads gate(saved.declared(Slot::kGate));
    pass.product_forward(gate.rows, pass.spec.hidden_size, gate.heads * gate.width);
  }

  /// What the output projection reads.
  PassTensor gated_context(const PassContext& pass, const PassSaved& saved) const {
    return has_gate() ? pass.ledger.like(saved.at(Slot::kContext)) : saved.at(Slot::kContext);
  }

  PassTensor normalised(const PassContext& pass, const PassNorm& norm, int slot, int rstd_slot,
                        PassSaved& saved) const {
    if (!has_norms()) return {};
    PassTensor normed_TL = pass.ledger.tensor(rows(saved, slot) * norm.width, pass.activations());
    norm.forward(pass, normed_TL, rows(saved, slot), pass.activations(), rstd_slot, saved);
    return normed_TL;
  }

  /// What the queries' up projection reads, where it is made.
  PassTensor query_input(const PassContext& pass, PassSaved& saved) const {
    if (!mla_.q_lora_rank) return {};
    return normalised(pass, query_norm_, Slot::kQueryDown, Slot::kQueryDownRstd, saved);
  }

  void select(const PassContext& pass, PassSaved& saved) const {
    const PassTensor latent_TL = query_input(pass, saved);
    const std::pair rope = tables(pass);
    const PassTensor of_softmax = sinks(pass, Heads(saved.declared(Slot::kQuery)).heads);
    saved.allocate(Slot::kSelected);
    indexer_->select(pass, rows(saved, Slot::kQuery));
  }

  std::vector<PassTensor> teach(const PassContext& pass, PassSaved& saved) const {
    if (!indexer_ || !indexer_->is_taught()) return {};
    const PassTensor latent_TL = query_input(pass, saved);
    const std::pair rope = tables(pass);
    const PassTensor of_softmax = sinks(pass, Heads(saved.declared(Slot::kQuery)).heads);
    std::vector<PassTensor> left = indexer_->teach(pass, rows(saved, Slot::kQuery));
    left.push_back(latent_TL);
    return left;
  }

  void project_up(const PassContext& pass, PassSaved& saved) const {
    saved.allocate(Slot::kQuery);
    const Heads query(saved.declared(Slot::kQuery));
    query_input(pass, saved);
    pass.product_forward(query.rows, mla_.q_lora_rank.value_or(pass.spec.hidden_size), query.heads * query.width);
    const PassTensor normed_TL = normalised(pass, kv_norm_, Slot::kKvDown, Slot::kKvDownRstd, saved);
    const PassTensor kv_TAD = pass.ledger.tensor(query.rows * query.heads * up_width(), pass.activations());
    pass.product_forward(query.rows, mla_.kv_lora_rank, query.heads * up_width());
    const std::pair rope = tables(pass);
    saved.allocate(Slot::kKey);
    saved.allocate(Slot::kValue);
  }

  void attend(const PassContext& pass, PassSaved& saved) const {
    saved.allocate(Slot::kContext);
    saved.allocate(Slot::kLogSumExp);
    core_forward(pass, sizes(pass, saved));
  }

  PassTensor latent_backward(const PassContext& pass, PassSaved& saved) const {
    PassTensor latent_TL = saved.at(Slot::kKvDown);
    saved.release(Slot::kKvDown);
    if (!has_norms()) return latent_TL;
    const std::int64_t tokens = rows(saved, Slot::kKvDown);
    PassTensor normed_TL = pass.ledger.tensor(tokens * mla_.kv_lora_rank, pass.activations());
    kv_norm_.apply(pass, normed_TL, tokens, pass.activations());
    const PassTensor dnormed_TL = pass.ledger.like(normed_TL);
    kv_norm_.backward(pass, dnormed_TL, pass.activations(), tokens);
    saved.release(Slot::kKvDownRstd);
    return normed_TL;
  }

  void query_backward(const PassContext& pass, PassSaved& saved, std::vector<PassTensor>& left) const {
    if (!mla_.q_lora_rank) return;
    const PassTensor down = saved.at(Slot::kQueryDown);
    saved.release(Slot::kQueryDown);
    PassTensor normed = down;
    PassTensor ddown = pass.ledger.like(down);
    if (has_norms()) {
      const std::int64_t tokens = rows(saved, Slot::kQueryDown);
      normed = pass.ledger.like(down);
      query_norm_.apply(pass, down, tokens, pass.activations());
      const PassTensor dnormed = ddown;
      ddown = pass.ledger.like(down);
      query_norm_.backward(pass, dnormed, pass.activations(), tokens);
      saved.release(Slot::kQueryDownRstd);
    }
    left = {normed, ddown};
  }

  void backward_products(const PassContext& pass, const PassSaved& saved) const {
    const std::int64_t hidden = pass.spec.hidden_size;
    const Heads query(saved.declared(Slot::kQuery));
    const Heads context(saved.declared(Slot::kContext));
    pass.product_backward(context.rows, context.heads * context.width, hidden);
    pass.product_backward(query.rows, mla_.kv_lora_rank, query.heads * up_width());
    pass.product_backward(rows(saved, Slot::kKvDown), hidden, saved.declared(Slot::kKvDown).shape.at(1));
    pass.product_backward(query.rows, mla_.q_lora_rank.value_or(hidden), query.heads * query.width);
    if (mla_.q_lora_rank) pass.product_backward(rows(saved, Slot::kQueryDown), hidden, *mla_.q_lora_rank);
    if (has_gate()) pass.product_backward(context.rows, hidden, context.heads * context.width);
    if (indexer_ && indexer_->is_taught()) indexer_->weight_gradients(pass, rows(saved, Slot::kQuery));
  }

  const MlaSpec& mla_;
  PassNorm query_norm_;
  PassNorm kv_norm_;
  Part is_rotated_;
  std::optional<PassIndexer> indexer_;
};

}  // namespace

std::unique_ptr<PassSublayer> gqa_pass(const ModelSpec& spec) {
  return std::make_unique<GqaPass>(spec);
}

std::unique_ptr<PassSublayer> mla_pass(const ModelSpec& spec, int layer) {
  return std::make_unique<MlaPass>(spec, layer);
}

}  // namespace primus::model
