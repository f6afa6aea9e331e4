#pragma once
// Megatron's TikTokenizer: a JSON list of byte sequences by rank, of which any two neighbours whose join is in the list
// are joined, the lowest rank first.
#include <nlohmann/json_fwd.hpp>

#include "config/tokenizer_facts.hpp"

namespace primus::data {

/// The same as a tokenizer.json, whose merges count by the id of their result. Special tokens are the first ids; no
/// text becomes them. Throws ConfigError for a file that is no such list.
nlohmann::json tiktoken_json(const config::TokenizerFiles& files);

}  // namespace primus::data
