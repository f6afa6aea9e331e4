#pragma once
// What a run must know of its tokenizer: the size of the vocabulary and the end of a document. Read from the
// tokenizer's files without the libraries that turn text into tokens, for the rules and for the worker.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace primus::config {

class Experiment;

/// What stands beside the files.
struct TokenizerExtras {
  std::vector<std::string> special_tokens = {};  // `special_tokens`, or `tiktoken_special_tokens`
  std::int64_t num_special_tokens = 1000;        // `tiktoken_num_special_tokens`
  std::string pattern = {};                      // `tiktoken_pattern`; "": v2
  std::int64_t vocab_size = 0;                   // `vocab_size` of a TikTokenizer; 0: 2^17, as in Megatron
};

/// The keys that name a tokenizer.
struct TokenizerNames {
  std::string type;             // `tokenizer_type`
  std::string model;            // `tokenizer_model`: a file, a folder, or a name of a hub
  std::string vocab_file = {};  // `vocab_file` and `merge_file`: GPT-2's two files
  std::string merge_file = {};
  TokenizerExtras extras = {};
};

/// Those of an experiment.
TokenizerNames tokenizer_names(const Experiment& experiment);

/// The kinds of files that a tokenizer is made from.
enum class TokenizerKind {
  kNone,           // by its type alone, or by a name whose files are not here
  kHuggingFace,    // tokenizer.json
  kSentencePiece,  // a .model of sentencepiece
  kGpt2,           // vocab.json and merges.txt
  kTikToken,       // a list of tokens by rank, as Megatron's TikTokenizer has it
};

/// Files of a tokenizer on this machine.
struct TokenizerFiles {
  TokenizerKind kind = TokenizerKind::kNone;
  std::string model;   // the tokenizer.json, the .model or the vocab.json
  std::string merges;  // kGpt2: the merges.txt
  std::string folder;  // where tokenizer_config.json and config.json would be; "": nowhere
  TokenizerExtras extras = {};
};

/// Does this type take its tokens from files?
bool has_tokenizer_files(std::string_view type);

/// The files that the keys lead to; kNone where there are none here. Throws ConfigError for a file that is named with
/// its ending and does not exist.
TokenizerFiles find_tokenizer_files(const TokenizerNames& names);

struct TokenizerFacts {
  std::int64_t vocab_size = 0;      // ids are below it; a folder's config.json may ask for more than there are tokens
  std::optional<std::int64_t> eod;  // absent: the files do not say
  std::vector<std::pair<std::string, std::int64_t>> added = {};  // special tokens that the files do not have
};

/// The names of a TikTokenizer's special tokens, which are its first ids. Throws ConfigError where they do not fit.
std::vector<std::string> tiktoken_special_tokens(const TokenizerExtras& extras);

/// Ids of a TikTokenizer, special ones and those that its file is too short for included.
std::int64_t tiktoken_vocab_size(const TokenizerExtras& extras);

/// Throws ConfigError naming the file and what is wrong with it.
TokenizerFacts read_tokenizer_facts(const TokenizerFiles& files);

}  // namespace primus::config
