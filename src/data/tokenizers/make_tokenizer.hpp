#pragma once
// Any tokenizer, from the keys that name it.
#include <memory>

#include "data/tokenizer.hpp"

namespace primus::data {

/// The tokenizer of a `tokenizer_type` and its files. Throws ConfigError naming the key or the part of a file that is
/// wrong or not understood.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options);

}  // namespace primus::data
