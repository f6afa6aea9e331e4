// Compressed attention of a pass, in bytes: nn/compressed_attention.cpp, nn/key_compressor.cpp and
// nn/entry_indexer.cpp. Legend: T tokens, H hidden, A heads, D their size, C entries of all sequences, R tokens of one.
#include "model/pass_context.hpp"

namespace primus::model {
namespace {

/// What makes entries of one size.
class PassCompressor {
 public:
  PassCompressor(const ModelSpec& spec, int layer, std::int64_t of_size)
      : size(of_size),
        key_width(spec.compressed.key_width(layer, of_size)),
        ratio_(spec.compressed.ratio(layer)),
        rotary_dim_(spec.compressed.entry_rope.rotary_dim),
        norm_(spec, of_size) {}

  std::int64_t size, key_width;

  struct Entries {
    PassTensor pooled, entry, statistics;
  };

  /// Entries that a sequence has room for.
  std::int64_t capacity(const PassContext& pass) const { return pass.batch.seq_length / ratio_; }

  Entries entries(const PassContext& pass) const {
    const std::int64_t count = pass.batch.num_sequences * capacity(pass);
    const DType statistics = pass.policy.statistics;
    Entries made;
    made.pooled = pass.ledger.tensor(count * size, pass.activations());
    pass.read_parameter(ratio_ * key_width, statistics);
    made.entry = pass.ledger.like(made.pooled);
    const std::int64_t per_row = pass.spec.norm == NormKind::kLayer ? 2 : 1;
    made.statistics = pass.ledger.tensor(per_row * count, statistics);
    norm_.apply(pass, made.pooled, count, pass.activations());
    tables(pass, count);
    return made;
  }

  void backward(const PassContext& pass, const Entries& made) const {
    const std::int64_t count = pass.batch.num_sequences * capacity(pass);
    tables(pass, count);
    const PassTensor dpooled = pass.ledger.like(made.pooled);
    norm_.backward(pass, made.entry, pass.activations(), count);
    pass.read_parameter(ratio_ * key_width, pass.policy.statistics);
    pass.ledger.scratch(pass.scratch.compressor_backward(count, ratio_ * key_width, pass.policy.statistics));
  }

 private:
  void tables(const PassContext& pass, std::int64_t count) const {
    const PassTensor rows = pass.ledger.tensor(count, DType::kInt64);
    const PassTensor cosines = pass.ledger.tensor(count * (rotary_dim_ / 2), pass.policy.statistics);
    const PassTensor sines = pass.ledger.like(cosines);
  }

  std::int64_t ratio_, rotary_dim_;
  PassNorm norm_;
};

class PassEntryIndexer {
 public:
  PassEntryIndexer(const ModelSpec& spec, int layer)
      : spec_(spec.compressed.indexer),
        latent_width_(spec.compressed.q_lora_rank),
        query_size_(spec.compressed.head_dim),
        compressor_(spec, layer, spec_.head_dim) {}

  bool is_taught() const { return spec_.loss_coefficient > 0.0; }

  void select(const PassContext& pass, std::int64_t rows) const {
    const Made made = heads(pass, rows);
    pass.ledger.scratch(pass.scratch.indexer_choice(indexer_sizes(spec_, pass, rows), compressor_.capacity(pass),
                                                    pass.policy.statistics));
  }

  /// Returns what is left for the weight gradients beside the indexer's inputs.
  std::vector<PassTensor> teach(const PassContext& pass, std::int64_t rows) const {
    PassLedger& ledger = pass.ledger;
    const Made made = heads(pass, rows);
    const PassTensor dquery = ledger.like(made.query);
    const PassTensor dentry = ledger.like(made.entries.entry);
    const PassTensor dweight = ledger.like(made.weight);
    const PassTensor loss_T = ledger.tensor(rows, pass.policy.statistics);
    ledger.scratch(pass.scratch.indexer_loss(indexer_sizes(spec_, pass, rows), compressor_.capacity(pass), query_size_,
                                             pass.policy.statistics));
    {
      const PassTensor sum = ledger.tensor(1, DType::kFloat64);
      ledger.convert_briefly(rows, pass.policy.statistics, DType::kFloat64);
    }
    const PassTensor dkey_gate = ledger.like(made.key_gate);
    compressor_.backward(pass, made.entries);
    return {dquery, dkey_gate, dweight};
  }

  void weight_gradients(const PassContext& pass, std::int64_t rows) const {
    const auto add = [&](std::int64_t inputs, std::int64_t outputs) {
      pass.ledger.scratch(
          pass.scratch.weight_gradient({rows, inputs, outputs}, {pass.activations(), pass.activations()}));
    };
    add(latent_width_, spec_.query_width());
    add(pass.spec.hidden_size, 2 * compressor_.key_width);
    add(pass.spec.hidden_size, spec_.num_heads);
  }

 private:
  struct Made {
    PassTensor query, key_gate;
    PassCompressor::Entries entries;
    PassTensor weight;
  };

  Made heads(const PassContext& pass, std::int64_t rows) const {
    const std::int64_t hidden = pass.spec.hidden_size;
    const auto activation = [&](std::int64_t width) { return pass.ledger.tensor(rows * width, pass.activations()); };
    Made made;
    made.query = activation(spec_.query_width());
    pass.product_forward(rows, latent_width_, spec_.query_width());
    made.key_gate = activation(2 * compressor_.key_width);
    pass.product_forward(rows, hidden, 2 * compressor_.key_width);
    made.entries = compressor_.entries(pass);
    made.weight = activation(spec_.num_heads);
    pass.product_forward(rows, hidden, spec_.num_heads);
    return made;
  }

  const IndexerSpec& spec_;
  std::int64_t latent_width_, query_size_;
  PassCompressor compressor_;
};

class CompressedPass final : public PassSublayer {
 public:
  CompressedPass(const ModelSpec& spec, int layer)
      : spec_(spec.compressed),
        query_down_norm_(spec, spec_.q_lora_rank),
        query_norm_(spec_.head_dim),
        key_norm_(spec, spec_.head_dim) {
    if (spec_.ratio(layer) > 0) compressor_.emplace(spec, layer, spec_.head_dim);
    if (spec_.picks_entries(layer)) indexer_.emplace(spec, layer);
  }

  void forward(const PassContext& pass, const PassTensor&, PassSaved& saved, PassMode) const override {
    project(pass, saved);
    attend(pass, saved);
    output_down(pass, saved);
    pass.product_forward(tokens(saved), output_width(saved), pass.spec.hidden_size);
  }

  void restore(const PassContext& pass, const PassTensor&, PassSaved& saved) const override {
    project(pass, saved);
    if (saved.is_missing(Slot::kContext)) attend(pass, saved);
    if (saved.is_missing(Slot::kOutputDown)) output_down(pass, saved);
  }

  void backward(const PassContext& pass, const PassTensor&, const PassTensor&, PassSaved& saved) const override {
    PassLedger& ledger = pass.ledger;
    const PassTensor context = saved.at(Slot::kContext);
    const PassTensor down = saved.at(Slot::kOutputDown);
    const PassTensor ddown = ledger.like(down);
    PassTensor dcontext = ledger.like(context);
    std::vector<PassTensor> taught;
    const std::vector<PassTensor> gradients = core_backward(pass, saved, taught);
    dcontext.reset();
    const PassTensor latent_TL = latent(pass, saved);
    PassTensor dlatent = ledger.like(latent_TL);
    const PassTensor ddown_TQ = ledger.like(latent_TL);
    query_down_norm_.backward(pass, dlatent, pass.activations(), query_rows(saved));
    dlatent.reset();
    saved.release_all();
    backward_products(pass, saved);
  }

 private:
  using Slot = CompressedSlot;

  static std::int64_t tokens(const PassSaved& saved) { return saved.declared(Slot::kContext).shape.at(0); }
  static std::int64_t heads_of(const PassSaved& saved) { return saved.declared(Slot::kContext).shape.at(1); }
  static std::int64_t query_rows(const PassSaved& saved) { return saved.declared(Slot::kQueryDown).shape.at(0); }
  static std::int64_t output_width(const PassSaved& saved) { return saved.declared(Slot::kOutputDown).shape.at(1); }

  bool has_entries(const PassContext& pass) const { return compressor_ && compressor_->capacity(pass) > 0; }

  AttentionSizes sizes(const PassContext& pass, const PassSaved& saved) const {
    return {.batch = pass.batch.num_sequences,
            .sequence = pass.batch.seq_length / pass.sharding.context,
            .heads = heads_of(saved),
            .groups = 1,
            .query_size = spec_.head_dim,
            .value_size = spec_.head_dim};
  }

  PassTensor sinks(const PassContext& pass, const PassSaved& saved) const {
    const bool is_converted = spec_.sinks == Part::kPresent && pass.policy.parameters != pass.policy.statistics;
    return is_converted ? pass.ledger.tensor(heads_of(saved), pass.policy.statistics) : PassTensor();
  }

  PassTensor latent(const PassContext& pass, PassSaved& saved) const {
    PassTensor normed = pass.ledger.like(saved.at(Slot::kQueryDown));
    query_down_norm_.forward(pass, normed, query_rows(saved), pass.activations(), Slot::kQueryDownRstd, saved);
    return normed;
  }

  void project(const PassContext& pass, PassSaved& saved) const {
    const std::int64_t hidden = pass.spec.hidden_size;
    if (saved.is_missing(Slot::kQueryDown)) {
      saved.allocate(Slot::kQueryDown);
      pass.product_forward(query_rows(saved), hidden, spec_.q_lora_rank);
    }
    if (saved.is_missing(Slot::kKey)) {
      saved.allocate(Slot::kKey);
      pass.product_forward(tokens(saved), hidden, spec_.head_dim);
    }
    if (saved.is_missing(Slot::kKeyGate)) {
      saved.allocate(Slot::kKeyGate);
      pass.product_forward(tokens(saved), hidden, 2 * compressor_->key_width);
    }
    if (!saved.is_missing(Slot::kQueryUp)) return;
    saved.allocate(Slot::kQueryUp);
    latent(pass, saved);
    pass.product_forward(tokens(saved), spec_.q_lora_rank, heads_of(saved) * spec_.head_dim);
  }

  std::pair<PassTensor, PassTensor> heads(const PassContext& pass, PassSaved& saved) const {
    std::pair made{pass.ledger.like(saved.at(Slot::kQueryUp)), pass.ledger.like(saved.at(Slot::kKey))};
    query_norm_.forward(pass, made.first, tokens(saved) * heads_of(saved), pass.activations(), Slot::kQueryRstd, saved);
    key_norm_.forward(pass, made.second, tokens(saved), pass.activations(), Slot::kKeyRstd, saved);
    return made;
  }

  void attend(const PassContext& pass, PassSaved& saved) const {
    if (indexer_ && has_entries(pass) && saved.is_missing(Slot::kSelected)) {
      const PassTensor latent_TL = latent(pass, saved);
      saved.allocate(Slot::kSelected);
      indexer_->select(pass, tokens(saved));
    }
    const std::pair in = heads(pass, saved);
    saved.allocate(Slot::kContext);
    saved.allocate(Slot::kLogSumExp);
    sinks(pass, saved);
    pass.ledger.scratch(pass.scratch.attention_forward(sizes(pass, saved), pass.policy.statistics));
    if (!has_entries(pass)) return;
    const PassCompressor::Entries made = compressor_->entries(pass);
    pass.ledger.scratch(pass.scratch.compressed_attention_forward(sizes(pass, saved), compressor_->capacity(pass),
                                                                  pass.policy.statistics));
  }

  void output_down(const PassContext& pass, PassSaved& saved) const {
    saved.allocate(Slot::kOutputDown);
    pass.product_forward(tokens(saved), spec_.group_width(), spec_.output_rank);
  }

  /// Gradients of queries, keys, and what entries are made of.
  std::vector<PassTensor> core_backward(const PassContext& pass, PassSaved& saved,
                                        std::vector<PassTensor>& taught) const {
    PassLedger& ledger = pass.ledger;
    const std::pair in = heads(pass, saved);
    const PassTensor context = ledger.like(saved.at(Slot::kContext));
    const PassTensor dquery = ledger.like(in.first);
    const PassTensor dkey = ledger.like(in.second);
    const PassTensor of_softmax = sinks(pass, saved);
    {
      const PassTensor dvalue = ledger.like(in.second);
      ledger.scratch(pass.scratch.attention_backward(sizes(pass, saved), pass.policy.statistics));
    }
    std::vector<PassTensor> gradients;
    if (compressor_) gradients.push_back(ledger.like(saved.at(Slot::kKeyGate)));
    if (has_entries(pass)) {
      const PassCompressor::Entries made = compressor_->entries(pass);
      const PassTensor dentry = ledger.like(made.entry);
      ledger.scratch(pass.scratch.compressed_attention_backward(sizes(pass, saved), compressor_->capacity(pass),
                                                                pass.policy.statistics));
      compressor_->backward(pass, made);
      if (indexer_ && indexer_->is_taught()) {
        const PassTensor latent_TL = latent(pass, saved);
        taught = indexer_->teach(pass, tokens(saved));
        taught.push_back(latent_TL);
      }
    }
    gradients.push_back(ledger.like(dquery));
    gradients.push_back(ledger.like(dkey));
    query_norm_.backward(pass, dquery, pass.activations(), tokens(saved) * heads_of(saved));
    key_norm_.backward(pass, dkey, pass.activations(), tokens(saved));
    return gradients;
  }

  void backward_products(const PassContext& pass, const PassSaved& saved) const {
    const std::int64_t hidden = pass.spec.hidden_size;
    pass.product_backward(tokens(saved), output_width(saved), hidden);
    pass.product_backward(tokens(saved), spec_.group_width(), spec_.output_rank);
    pass.product_backward(tokens(saved), spec_.q_lora_rank, heads_of(saved) * spec_.head_dim);
    pass.product_backward(query_rows(saved), hidden, spec_.q_lora_rank);
    pass.product_backward(tokens(saved), hidden, spec_.head_dim);
    if (compressor_) pass.product_backward(tokens(saved), hidden, 2 * compressor_->key_width);
    if (indexer_ && indexer_->is_taught() && has_entries(pass)) indexer_->weight_gradients(pass, tokens(saved));
  }

  const CompressedAttentionSpec& spec_;
  PassNorm query_down_norm_, query_norm_, key_norm_;
  std::optional<PassCompressor> compressor_;
  std::optional<PassEntryIndexer> indexer_;
};

}  // namespace

std::unique_ptr<PassSublayer> compressed_pass(const ModelSpec& spec, int layer) {
  return std::make_unique<CompressedPass>(spec, layer);
}

}  // namespace primus::model
