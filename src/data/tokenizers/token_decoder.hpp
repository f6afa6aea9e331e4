#pragma once
// The `decoder` of a tokenizer.json: text from tokens.
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizers/json_part.hpp"

namespace primus::data {

/// One step, on a list of texts. Safe to use from several threads.
class TokenDecoder {
 public:
  TokenDecoder() = default;
  TokenDecoder(const TokenDecoder&) = delete;
  TokenDecoder& operator=(const TokenDecoder&) = delete;
  virtual ~TokenDecoder() = default;

  virtual std::vector<std::string> apply(std::vector<std::string> tokens) const = 0;
};

/// The decoder that a file describes; none for a null. Throws ConfigError naming what is not understood.
std::unique_ptr<TokenDecoder> make_decoder(const JsonPart& part);

}  // namespace primus::data
