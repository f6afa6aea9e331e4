#pragma once
// The `pre_tokenizer` of a tokenizer.json: how text is cut into the pieces that the model sees one by one.
#include <functional>
#include <memory>
#include <vector>

#include "data/tokenizers/json_part.hpp"
#include "data/tokenizers/piece.hpp"

namespace primus::data {

/// One step. Safe to use from several threads.
class PreTokenizer {
 public:
  using Visit = std::function<void(const Piece&)>;

  PreTokenizer() = default;
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;
  virtual ~PreTokenizer() = default;

  /// Calls `visit` for each part that is not empty, in order.
  virtual void split(const Piece& piece, TextWorkspace& workspace, const Visit& visit) const = 0;
};

/// What the model's characters are once all steps are done.
enum class Alphabet {
  kCharacters,  // the text's own
  kBytes,       // its bytes, each shown as a printable character
};

struct PreTokenizerSteps {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  Alphabet alphabet = Alphabet::kCharacters;
};

/// The steps that a file describes, none for a null. Throws ConfigError naming what is not understood.
PreTokenizerSteps make_pre_tokenizer(const JsonPart& part);

}  // namespace primus::data
