// The indexer of sparse attention in a pass, in bytes: nn/key_indexer.cpp.
#include "model/pass_context.hpp"

namespace primus::model {

PassIndexer::PassIndexer(const ModelSpec& spec)
    : spec_(*spec.indexer()),
      input_width_(std::get<MlaSpec>(spec.attention).indexer_input(spec.hidden_size)),
      query_dim_(std::get<MlaSpec>(spec.attention).query_dim()),
      norm_(indexer_norm(spec), spec_.head_dim) {}

AttentionSizes indexer_sizes(const IndexerSpec& indexer, const PassContext& pass, std::int64_t rows) {
  return {.batch = pass.batch.num_sequences,
          .sequence = rows / pass.batch.num_sequences,
          .heads = indexer.num_heads,
          .groups = 1,
          .query_size = indexer.head_dim,
          .value_size = indexer.head_dim};
}

PassIndexer::Made PassIndexer::heads(const PassContext& pass, std::int64_t rows) const {
  const std::int64_t hidden = pass.spec.hidden_size;
  const auto activation = [&](std::int64_t width) { return pass.ledger.tensor(rows * width, pass.activations()); };
  pass.product_forward(rows, input_width_, spec_.query_width());
  pass.product_forward(rows, hidden, spec_.head_dim);
  pass.product_forward(rows, hidden, spec_.num_heads);
  Made made{.query = activation(spec_.query_width()),
            .key = activation(spec_.head_dim),
            .statistics = pass.ledger.tensor(2 * rows, pass.policy.statistics),
            .normed = activation(spec_.head_dim),
            .weight = activation(spec_.num_heads)};
  norm_.apply(pass, made.key, rows, pass.activations());
  return made;
}

void PassIndexer::select(const PassContext& pass, std::int64_t rows) const {
  const Made made = heads(pass, rows);
  pass.ledger.scratch(pass.scratch.indexer_choice(indexer_sizes(spec_, pass, rows), rows / pass.batch.num_sequences,
                                                  pass.policy.statistics));
}

std::vector<PassTensor> PassIndexer::teach(const PassContext& pass, std::int64_t rows) const {
  PassLedger& ledger = pass.ledger;
  const Made made = heads(pass, rows);
  const PassTensor dquery = ledger.like(made.query);
  const PassTensor dnormed = ledger.like(made.normed);
  const PassTensor dweight = ledger.like(made.weight);
  const PassTensor loss_T = ledger.tensor(rows, pass.policy.statistics);
  pass.ledger.scratch(pass.scratch.indexer_loss(indexer_sizes(spec_, pass, rows), rows / pass.batch.num_sequences,
                                                query_dim_, pass.policy.statistics));
  {
    const PassTensor sum = ledger.tensor(1, DType::kFloat64);
    ledger.convert_briefly(rows, pass.policy.statistics, DType::kFloat64);
  }
  const PassTensor dkey = ledger.like(made.key);
  norm_.backward(pass, dnormed, pass.activations(), rows);
  return {dquery, dkey, dweight};
}

void PassIndexer::weight_gradients(const PassContext& pass, std::int64_t rows) const {
  const auto add = [&](std::int64_t inputs, std::int64_t outputs) {
    pass.ledger.scratch(
        pass.scratch.weight_gradient({rows, inputs, outputs}, {pass.activations(), pass.activations()}));
  };
  add(input_width_, spec_.query_width());
  add(pass.spec.hidden_size, spec_.head_dim);
  add(pass.spec.hidden_size, spec_.num_heads);
}

}  // namespace primus::model
