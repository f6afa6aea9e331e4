#include "data/ngram.hpp"

#include <cmath>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/error.hpp"
#include "data/indexed_dataset.hpp"

namespace primus::data {
namespace {

/// Calls `visit(previous, token)` for every token of the set but the first.
template <typename Visit>
void for_each_pair(const IndexedDataset& dataset, std::int64_t vocab_size, Visit visit) {
  std::optional<std::int64_t> previous;
  std::vector<std::int64_t> tokens;
  for (std::int64_t sequence = 0; sequence < dataset.num_sequences(); ++sequence) {
    tokens.resize(static_cast<std::size_t>(dataset.length(sequence)));
    dataset.read(sequence, 0, tokens);
    for (const std::int64_t token : tokens) {
      if (token < 0 || token >= vocab_size) {
        throw UserError(
            fmt::format("{}: holds token {}, outside the vocabulary of {} ids", dataset.name(), token, vocab_size));
      }
      if (previous) visit(*previous, token);
      previous = token;
    }
  }
}

}  // namespace

NgramBaseline ngram_baseline(const std::string& train_prefix, const std::string& held_out_prefix,
                             std::int64_t vocab_size) {
  const IndexedDataset train(train_prefix);
  const IndexedDataset held_out(held_out_prefix);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(vocab_size), 0);
  std::vector<std::int64_t> contexts(static_cast<std::size_t>(vocab_size), 0);
  std::unordered_map<std::int64_t, std::int64_t> pairs;
  std::int64_t num_counted = 0;
  for_each_pair(train, vocab_size, [&](std::int64_t previous, std::int64_t token) {
    ++tokens[static_cast<std::size_t>(token)];
    ++contexts[static_cast<std::size_t>(previous)];
    ++pairs[previous * vocab_size + token];
    ++num_counted;
  });

  NgramBaseline baseline;
  baseline.num_train_tokens = train.num_tokens();
  for_each_pair(held_out, vocab_size, [&](std::int64_t previous, std::int64_t token) {
    const auto smoothed = [vocab_size](std::int64_t count, std::int64_t total) {
      return std::log(static_cast<double>(total + vocab_size)) - std::log(static_cast<double>(count + 1));
    };
    const auto pair = pairs.find(previous * vocab_size + token);
    baseline.unigram_nats += smoothed(tokens[static_cast<std::size_t>(token)], num_counted);
    baseline.bigram_nats +=
        smoothed(pair == pairs.end() ? 0 : pair->second, contexts[static_cast<std::size_t>(previous)]);
    ++baseline.num_scored_tokens;
  });
  if (baseline.num_scored_tokens == 0) {
    throw UserError(fmt::format("{}: has fewer than two tokens, nothing to score", held_out_prefix));
  }
  baseline.unigram_nats /= static_cast<double>(baseline.num_scored_tokens);
  baseline.bigram_nats /= static_cast<double>(baseline.num_scored_tokens);
  return baseline;
}

}  // namespace primus::data
