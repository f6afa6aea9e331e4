#pragma once
// `data train-tokenizer`: a byte-level vocabulary of one's own, from one's own text.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/document_reader.hpp"

namespace primus::data {

struct TrainTokenizerOptions {
  std::vector<std::string> inputs;  // as of `data prepare`
  DocumentKind documents = DocumentKind::kByEnding;
  std::string json_key = "text";
  std::string output;               // folder of tokenizer.json and tokenizer_config.json
  std::int64_t vocab_size = 0;      // bytes, merges and special tokens together
  std::string pattern = "llama3";   // of the split before: a name of split_patterns(), or an expression
  std::string normalizer = "none";  // none, NFC or NFKC
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // the first ends a document; they get the last ids
  std::int64_t least_count = 2;                                 // of a pair that becomes a token
  int num_threads = 0;                                          // 0: one a core
};

struct TrainTokenizerSummary {
  std::int64_t vocab_size = 0;  // smaller than asked for where the text gives no more
  std::int64_t num_merges = 0;
  std::int64_t num_text_bytes = 0;
  std::int64_t num_words = 0;      // different ones
  std::int64_t num_forgotten = 0;  // words left out when memory was full
  double seconds = 0.0;
  std::vector<std::string> outputs;
};

/// Names of well-known splits.
std::vector<std::string_view> split_patterns();

/// Called with what is done and all of it: bytes while reading, then merges.
struct TrainTokenizerProgress {
  std::function<void(std::int64_t num_bytes_done, std::int64_t num_bytes)> reading;
  std::function<void(std::int64_t num_merges_done, std::int64_t num_merges)> learning;
};

/// Learn and write. The result depends on the text alone, not on the number of threads, as long as no word is
/// forgotten. Throws ConfigError for the options, UserError for the files.
TrainTokenizerSummary train_tokenizer(const TrainTokenizerOptions& options, const TrainTokenizerProgress& progress);

}  // namespace primus::data
