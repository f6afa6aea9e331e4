#pragma once
// The `normalizer` of a tokenizer.json: what text becomes before it is split.
#include <memory>

#include "data/tokenizers/json_part.hpp"
#include "data/tokenizers/piece.hpp"

namespace primus::data {

/// One step of normalisation. Safe to use from several threads.
class Normalizer {
 public:
  Normalizer() = default;
  Normalizer(const Normalizer&) = delete;
  Normalizer& operator=(const Normalizer&) = delete;
  virtual ~Normalizer() = default;

  /// The piece itself, or one whose text lies in the workspace.
  virtual Piece apply(const Piece& piece, TextWorkspace& workspace) const = 0;
};

/// The normalizer that a file describes; none for a null. Throws ConfigError naming what is not understood.
std::unique_ptr<Normalizer> make_normalizer(const JsonPart& part);

}  // namespace primus::data
