#pragma once
// Tokenizers of the `tokenizers` package, from their tokenizer.json: byte-pair models and all that stands around them.
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/tokenizer.hpp"
#include "data/tokenizers/added_tokens.hpp"
#include "data/tokenizers/bpe_model.hpp"
#include "data/tokenizers/json_part.hpp"
#include "data/tokenizers/normalizers.hpp"
#include "data/tokenizers/post_processor.hpp"
#include "data/tokenizers/pre_tokenizers.hpp"
#include "data/tokenizers/token_decoder.hpp"

namespace primus::data {

/// The same ids as the `tokenizers` package gives. Text that is no UTF-8 is read with U+FFFD in the place of what is
/// ill-formed.
class HuggingFaceTokenizer final : public Tokenizer {
 public:
  struct Setting {
    std::string name;             // `tokenizer_type`
    std::int64_t vocab_size = 0;  // at least the file's
    std::int64_t eod = kNoEod;
    TokenizerOptions::AroundText around_text = TokenizerOptions::AroundText::kIncluded;
    BpeDescription::Rank rank = BpeDescription::Rank::kByPlace;
  };

  /// `file` names the JSON in messages. Throws ConfigError naming every part that is not understood.
  HuggingFaceTokenizer(const nlohmann::json& json, const std::string& file, Setting setting);
  ~HuggingFaceTokenizer() override;

  std::string_view name() const override { return setting_.name; }
  std::int64_t vocab_size() const override { return setting_.vocab_size; }
  std::int64_t eod() const override { return setting_.eod; }
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override;
  void encode_with_offsets(std::string_view text, std::vector<std::int64_t>& ids,
                           std::vector<TextRange>& offsets) const override;
  std::string decode(std::span<const std::int64_t> ids) const override;

 private:
  struct Workspace;
  struct Encoding;

  std::unique_ptr<BpeModel> read_model(const JsonPart& part, Alphabet alphabet);
  void read_added(const JsonPart& part);
  void encode_text(std::string_view text, std::vector<std::int64_t>& ids, std::vector<TextRange>* offsets) const;
  void encode_segment(const Piece& piece, Encoding& encoding) const;
  void encode_split(const Piece& piece, std::size_t step, Encoding& encoding) const;
  void encode_word(const Piece& piece, Encoding& encoding) const;

  std::unique_ptr<Workspace> take_workspace() const;
  void give_back(std::unique_ptr<Workspace> workspace) const;

  Setting setting_;
  std::unique_ptr<Normalizer> normalizer_;
  PreTokenizerSteps pre_tokenizer_;
  std::unique_ptr<BpeModel> model_;
  std::unique_ptr<AddedTokenFinder> raw_tokens_;         // looked for in the text as it is
  std::unique_ptr<AddedTokenFinder> normalized_tokens_;  // and once it is normalised
  TokensAround around_;
  std::unique_ptr<TokenDecoder> decoder_;
  std::vector<std::string> tokens_;  // by id; "": none

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;  // one for each thread that has encoded at once with others
};

}  // namespace primus::data
