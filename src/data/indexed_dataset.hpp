#pragma once
// Megatron's .idx/.bin pair: token sequences back to back, and a table of where each begins.
#include <cstdint>
#include <string>
#include <string_view>

#include "data/mapped_file.hpp"
#include "data/token_store.hpp"

namespace primus::data {

/// Element types of a .bin file, with the codes that the .idx file gives them.
enum class TokenType : std::uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat64 = 6,
  kFloat32 = 7,
  kUint16 = 8,
};

/// Bytes of one element.
std::int64_t size_bytes(TokenType type);
std::string_view to_text(TokenType type);

/// What Megatron's writer takes: two bytes where they hold the vocabulary, else four.
TokenType token_type_for(std::int64_t vocab_size);

/// Layout of an .idx file; everything after the header follows without padding.
namespace idx_format {
inline constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t kVersion = 1;
inline constexpr std::size_t kVersionOffset = 9;
inline constexpr std::size_t kTypeOffset = 17;
inline constexpr std::size_t kNumSequencesOffset = 18;
inline constexpr std::size_t kNumDocumentsOffset = 26;
inline constexpr std::size_t kHeaderBytes = 34;
}  // namespace idx_format

/// Reader of PREFIX.idx and PREFIX.bin, mapped into memory. The constructor checks every table against both files'
/// sizes and throws UserError naming the file and the fault.
class IndexedDataset final : public TokenStore {
 public:
  explicit IndexedDataset(const std::string& prefix);

  const std::string& name() const override { return prefix_; }
  std::int64_t num_sequences() const override { return num_sequences_; }
  std::int64_t length(std::int64_t sequence) const override;
  void read(std::int64_t sequence, std::int64_t offset, std::span<std::int64_t> out) const override;

  TokenType token_type() const { return type_; }
  std::int64_t num_documents() const { return num_documents_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  /// First sequence of document `document`; the entry after the last document is num_sequences().
  std::int64_t document_begin(std::int64_t document) const;
  /// Multimodal files carry one more byte a sequence.
  enum class Modes { kAbsent, kPresent };
  Modes modes() const { return modes_; }
  std::int8_t mode(std::int64_t sequence) const;

 private:
  void check_header();
  void check_tables();
  std::int64_t pointer(std::int64_t sequence) const;

  std::string prefix_;
  MappedFile idx_;
  MappedFile bin_;
  TokenType type_ = TokenType::kInt32;
  std::int64_t num_sequences_ = 0;
  std::int64_t num_documents_ = 0;
  std::int64_t num_tokens_ = 0;
  Modes modes_ = Modes::kAbsent;
  const std::byte* lengths_ = nullptr;
  const std::byte* pointers_ = nullptr;
  const std::byte* documents_ = nullptr;
};

}  // namespace primus::data
