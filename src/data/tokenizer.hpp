#pragma once
// Text <-> token ids. Tokenizers that need files, and libraries to read them, are made by
// tokenizers/make_tokenizer.hpp.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace primus::data {

/// Bytes [begin, end) of the text that a tokenizer was given.
struct TextRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const TextRange&) const = default;
};

/// For a tokenizer without an end-of-document token; no vocabulary has it.
inline constexpr std::int64_t kNoEod = -2;

/// Turns text into token ids and back. Safe to use from several threads.
class Tokenizer {
 public:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual ~Tokenizer() = default;

  /// The `tokenizer_type` it was made from.
  virtual std::string_view name() const = 0;
  /// Number of ids, before any padding.
  virtual std::int64_t vocab_size() const = 0;
  /// Id of the end-of-document token; kNoEod if there is none.
  virtual std::int64_t eod() const = 0;
  /// Append the ids of `text` to `ids`; appending lets a caller encode a document piece by piece without copies.
  virtual void encode(std::string_view text, std::vector<std::int64_t>& ids) const = 0;
  /// The same, with the bytes of `text` that each id stands for. An id may stand for part of a character: it has the
  /// whole one.
  virtual void encode_with_offsets(std::string_view text, std::vector<std::int64_t>& ids,
                                   std::vector<TextRange>& offsets) const = 0;
  /// The text of `ids`; end-of-document tokens have none. Throws UserError on an id outside the vocabulary.
  virtual std::string decode(std::span<const std::int64_t> ids) const = 0;
};

/// What a tokenizer may be made from; each type reads the fields that it needs.
struct TokenizerOptions {
  std::string type = "ByteTokenizer";  // `tokenizer_type`
  std::string model;                   // `tokenizer_model`: a file or folder
  std::int64_t vocab_size = 0;         // `vocab_size`; 0: the tokenizer's own
  std::string vocab_file = {};         // `vocab_file` and `merge_file`: GPT-2's two files
  std::string merge_file = {};
  /// The tokens that a tokenizer.json puts around every text; `tokenizer_hf_no_include_special_tokens` leaves them out.
  enum class AroundText { kIncluded, kLeftOut } around_text = AroundText::kIncluded;
  std::vector<std::string> special_tokens = {};  // `special_tokens`: further ones, or all of a TikTokenizer
  std::int64_t num_special_tokens = 1000;        // `tiktoken_num_special_tokens`
  std::string pattern = {};                      // `tiktoken_pattern`
};

/// Every byte is a token; the id after the last byte ends a document.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr std::int64_t kNumBytes = 256;

  std::string_view name() const override { return "ByteTokenizer"; }
  std::int64_t vocab_size() const override { return kNumBytes + 1; }
  std::int64_t eod() const override { return kNumBytes; }
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override;
  void encode_with_offsets(std::string_view text, std::vector<std::int64_t>& ids,
                           std::vector<TextRange>& offsets) const override;
  std::string decode(std::span<const std::int64_t> ids) const override;
};

/// For data that holds ids already: text is a list of decimal ids, the last id of the vocabulary ends a document.
class NullTokenizer final : public Tokenizer {
 public:
  explicit NullTokenizer(std::int64_t vocab_size);

  std::string_view name() const override { return "NullTokenizer"; }
  std::int64_t vocab_size() const override { return vocab_size_; }
  std::int64_t eod() const override { return vocab_size_ - 1; }
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override;
  void encode_with_offsets(std::string_view text, std::vector<std::int64_t>& ids,
                           std::vector<TextRange>& offsets) const override;
  std::string decode(std::span<const std::int64_t> ids) const override;

 private:
  std::int64_t vocab_size_;
};

/// The tokenizer of a `tokenizer_type` that needs no files. Throws ConfigError naming those that exist.
std::unique_ptr<Tokenizer> make_plain_tokenizer(const TokenizerOptions& options);

}  // namespace primus::data
