#pragma once
// Tokenizers of sentencepiece, from their .model.
#include <memory>
#include <string>

#include "data/tokenizer.hpp"

namespace primus::data {

/// The ids of sentencepiece's own library.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  /// `name`: its `tokenizer_type`. Throws ConfigError if the file is no model.
  SentencePieceTokenizer(const std::string& path, std::string name);
  ~SentencePieceTokenizer() override;

  std::string_view name() const override { return name_; }
  std::int64_t vocab_size() const override;
  std::int64_t eod() const override { return eod_; }
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override;
  void encode_with_offsets(std::string_view text, std::vector<std::int64_t>& ids,
                           std::vector<TextRange>& offsets) const override;
  std::string decode(std::span<const std::int64_t> ids) const override;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
  std::string name_;
  std::int64_t eod_ = kNoEod;
};

}  // namespace primus::data
