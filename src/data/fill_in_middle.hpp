#pragma once
// Documents with a hole, whose text comes last, so that a model learns to fill holes (arXiv 2207.14255).
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.hpp"

namespace primus::data {

struct HoleOptions {
  double rate = 0.0;            // part of the documents that get one
  double end_first_rate = 0.5;  // part of those that give what follows the hole first
  /// Before what comes before the hole, before its text, and before what comes after it.
  std::vector<std::string> tokens = {"<fim_prefix>", "<fim_middle>", "<fim_suffix>"};
  std::uint64_t seed = 1234;
};

/// Turns documents into tokens, some with a hole. Which ones and where follows from the text and the seed alone.
class HoleCutter {
 public:
  /// Throws ConfigError unless each of the three texts is one token of the tokenizer.
  HoleCutter(HoleOptions options, const Tokenizer& tokenizer);

  void encode(std::string_view text, std::vector<std::int64_t>& ids) const;

 private:
  HoleOptions options_;
  const Tokenizer& tokenizer_;
  std::int64_t before_ = 0;
  std::int64_t hole_ = 0;
  std::int64_t after_ = 0;
};

}  // namespace primus::data
