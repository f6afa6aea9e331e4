#pragma once
// What counting alone reaches: the yardstick for a small model's loss.
#include <cstdint>
#include <string>

namespace primus::data {

/// Cross-entropies of count models on held-out tokens.
struct NgramBaseline {
  double unigram_nats = 0.0;
  double bigram_nats = 0.0;
  std::int64_t num_train_tokens = 0;
  std::int64_t num_scored_tokens = 0;  // all held-out tokens but the first, which has no predecessor
};

/// Counts over PREFIX.bin of the training data, every count raised by one (Laplace) over `vocab_size` ids, scored in
/// nats a token on the held-out data. Documents are read as one stream, as the trainer reads them. Throws UserError.
NgramBaseline ngram_baseline(const std::string& train_prefix, const std::string& held_out_prefix,
                             std::int64_t vocab_size);

}  // namespace primus::data
