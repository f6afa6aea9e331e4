#pragma once
// Looking at .bin/.idx pairs, and making new ones of them: `data info`, `verify`, `merge`, `shuffle`.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/indexed_dataset.hpp"

namespace primus::data {

/// Sequences with `from` up to `to` tokens.
struct LengthBin {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t num_sequences = 0;
  std::int64_t num_tokens = 0;
};

/// How long the sequences of a data set are.
struct LengthSummary {
  std::int64_t shortest = 0;
  std::int64_t median = 0;
  std::int64_t longest = 0;
  double mean = 0.0;
  std::int64_t num_empty = 0;
  std::vector<LengthBin> bins;  // by powers of two, from the first to the last that is not empty
};

LengthSummary summarize_lengths(const IndexedDataset& dataset);

/// What every token of a data set was found to be.
struct TokenSummary {
  std::int64_t smallest = 0;  // of no tokens: 0
  std::int64_t largest = -1;
  std::int64_t num_eod = 0;             // tokens that are `eod`
  std::int64_t num_documents_open = 0;  // documents that do not end with it
};

/// Called with what is done and all of it, in tokens.
using TokenProgress = std::function<void(std::int64_t num_done, std::int64_t num_all)>;

/// Reads every token. With `vocab_size` above 0 a token outside of it is an error that names its place. Throws
/// UserError.
TokenSummary verify_tokens(const IndexedDataset& dataset, std::int64_t vocab_size, std::int64_t eod,
                           const TokenProgress& progress);

/// Writes the data sets one behind the other, in the widest of their types; documents stay as they are. Gives the
/// paths. Throws UserError, also for sets with modes.
std::vector<std::string> merge_datasets(const std::vector<std::string>& prefixes, const std::string& output_prefix,
                                        const TokenProgress& progress);

/// Writes the documents in an order that depends on seed and number of documents alone.
std::vector<std::string> shuffle_documents(const std::string& prefix, const std::string& output_prefix,
                                           std::uint64_t seed, const TokenProgress& progress);

}  // namespace primus::data
