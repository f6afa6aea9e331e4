#pragma once
// The `post_processor` of a tokenizer.json: tokens around every text.
#include <cstdint>
#include <vector>

#include "data/tokenizers/json_part.hpp"

namespace primus::data {

/// Ids before and behind the ids of a text.
struct TokensAround {
  std::vector<std::int64_t> before;
  std::vector<std::int64_t> behind;
};

/// What a file describes; nothing for a null. Throws ConfigError naming what is not understood.
TokensAround read_post_processor(const JsonPart& part);

}  // namespace primus::data
