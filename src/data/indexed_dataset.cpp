#include "data/indexed_dataset.hpp"

#include <bit>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.hpp"

namespace primus::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the .idx/.bin format is little-endian");

/// The tables lie at odd offsets, so that a plain load would be misaligned.
template <typename T>
T load(const std::byte* address) {
  T value;
  std::memcpy(&value, address, sizeof(T));
  return value;
}

template <typename T>
void widen(const std::byte* source, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int64_t>(load<T>(source + i * sizeof(T)));
}

[[noreturn]] void fail_file(const std::string& path, const std::string& fault) {
  throw UserError(fmt::format("{}: {}", path, fault), ExitCode::kWrongInput);
}

/// The path, once it is known to exist; a missing one often lacks the suffix that preparing adds, or has one too many.
std::string existing(const std::string& prefix, const char* extension) {
  namespace fs = std::filesystem;
  const std::string path = prefix + extension;
  std::error_code ignored;
  if (fs::exists(path, ignored)) return path;
  std::string hint;
  const fs::path given(prefix);
  if (fs::exists(prefix + "_text_document" + extension, ignored)) {
    hint = fmt::format("; did you mean '{}_text_document'?", prefix);
  } else if (given.extension() == ".bin" || given.extension() == ".idx") {
    hint = fmt::format("; a data path is given without its extension: '{}'",
                       (given.parent_path() / given.stem()).string());
  }
  throw UserError(fmt::format("{}: does not exist{}", path, hint), ExitCode::kWrongInput);
}

}  // namespace

std::int64_t size_bytes(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
    case TokenType::kFloat32:
      return 4;
    case TokenType::kInt64:
    case TokenType::kFloat64:
      return 8;
  }
  return 0;
}

std::string_view to_text(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return "uint8";
    case TokenType::kInt8:
      return "int8";
    case TokenType::kInt16:
      return "int16";
    case TokenType::kInt32:
      return "int32";
    case TokenType::kInt64:
      return "int64";
    case TokenType::kFloat64:
      return "float64";
    case TokenType::kFloat32:
      return "float32";
    case TokenType::kUint16:
      return "uint16";
  }
  return "unknown";
}

TokenType token_type_for(std::int64_t vocab_size) {
  constexpr std::int64_t kTwoByteLimit = 65500;
  return vocab_size < kTwoByteLimit ? TokenType::kUint16 : TokenType::kInt32;
}

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(prefix), idx_(existing(prefix, ".idx")), bin_(existing(prefix, ".bin")) {
  check_header();
  check_tables();
}

void IndexedDataset::check_header() {
  using namespace idx_format;
  const std::span<const std::byte> bytes = idx_.bytes();
  const auto fail = [this](const std::string& fault) { fail_file(prefix_ + ".idx", fault); };
  if (bytes.size() < kHeaderBytes) {
    fail(fmt::format("has {} bytes, fewer than the {} of an index header", bytes.size(), kHeaderBytes));
  }
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    fail("does not begin with MMIDIDX, so it is not an index of a .bin file");
  }
  const auto version = load<std::uint64_t>(bytes.data() + kVersionOffset);
  if (version != kVersion) fail(fmt::format("has version {} (expected {})", version, kVersion));
  type_ = TokenType{load<std::uint8_t>(bytes.data() + kTypeOffset)};
  if (size_bytes(type_) == 0) {
    fail(fmt::format("has type code {} (expected 1 to 8)", static_cast<int>(type_)));
  }

  const auto num_sequences = load<std::uint64_t>(bytes.data() + kNumSequencesOffset);
  const auto num_boundaries = load<std::uint64_t>(bytes.data() + kNumDocumentsOffset);
  constexpr std::uint64_t kSequenceBytes = sizeof(std::int32_t) + sizeof(std::int64_t);
  const std::uint64_t room = bytes.size() - kHeaderBytes;
  // Compared by division, because a damaged count would overflow the product.
  if (num_sequences > room / kSequenceBytes || num_boundaries > room / sizeof(std::int64_t)) {
    fail(fmt::format("has {} bytes, too few for {} sequences and {} document boundaries", bytes.size(), num_sequences,
                     num_boundaries));
  }
  if (num_boundaries == 0) fail("has no document boundaries (expected at least 1)");
  const std::uint64_t expected = num_sequences * kSequenceBytes + num_boundaries * sizeof(std::int64_t);
  if (room != expected && room != expected + num_sequences) {
    fail(fmt::format("has {} bytes (expected {} for {} sequences and {} document boundaries)", bytes.size(),
                     kHeaderBytes + expected, num_sequences, num_boundaries));
  }
  num_sequences_ = static_cast<std::int64_t>(num_sequences);
  num_documents_ = static_cast<std::int64_t>(num_boundaries) - 1;
  modes_ = room != expected ? Modes::kPresent : Modes::kAbsent;
  lengths_ = bytes.data() + kHeaderBytes;
  pointers_ = lengths_ + num_sequences * sizeof(std::int32_t);
  documents_ = pointers_ + num_sequences * sizeof(std::int64_t);
}

void IndexedDataset::check_tables() {
  const auto fail = [this](const std::string& fault) { fail_file(prefix_ + ".idx", fault); };
  const std::int64_t item_bytes = size_bytes(type_);
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < num_sequences_; ++i) {
    const auto tokens = load<std::int32_t>(lengths_ + i * 4);
    if (tokens < 0) fail(fmt::format("length of sequence {} is {}", i, tokens));
    if (pointer(i) != end) fail(fmt::format("sequence {} begins at byte {} (expected {})", i, pointer(i), end));
    end += tokens * item_bytes;
  }
  num_tokens_ = end / item_bytes;
  const auto bin_bytes = static_cast<std::int64_t>(bin_.bytes().size());
  if (bin_bytes != end) {
    fail_file(prefix_ + ".bin", fmt::format("has {} bytes, but its index tells of {} ({} tokens of {})", bin_bytes, end,
                                            num_tokens_, to_text(type_)));
  }
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i <= num_documents_; ++i) {
    const std::int64_t begin = document_begin(i);
    if (i == 0 && begin != 0) fail(fmt::format("the first document begins at sequence {} (expected 0)", begin));
    if (begin < previous || begin > num_sequences_) {
      fail(fmt::format("document boundary {} is sequence {} (expected {} to {})", i, begin, previous, num_sequences_));
    }
    previous = begin;
  }
  if (previous != num_sequences_) {
    fail(fmt::format("the last document ends at sequence {} (expected {})", previous, num_sequences_));
  }
}

std::int64_t IndexedDataset::pointer(std::int64_t sequence) const {
  return load<std::int64_t>(pointers_ + sequence * 8);
}

std::int64_t IndexedDataset::length(std::int64_t sequence) const {
  PRIMUS_DCHECK(sequence >= 0 && sequence < num_sequences_, "{}", sequence);
  return load<std::int32_t>(lengths_ + sequence * 4);
}

std::int64_t IndexedDataset::document_begin(std::int64_t document) const {
  return load<std::int64_t>(documents_ + document * 8);
}

std::int8_t IndexedDataset::mode(std::int64_t sequence) const {
  PRIMUS_CHECK(modes_ == Modes::kPresent && sequence >= 0 && sequence < num_sequences_, "{}", sequence);
  return load<std::int8_t>(documents_ + (num_documents_ + 1) * 8 + sequence);
}

void IndexedDataset::read(std::int64_t sequence, std::int64_t offset, std::span<std::int64_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  PRIMUS_CHECK(sequence >= 0 && sequence < num_sequences_ && offset >= 0 && count <= length(sequence) - offset,
               "tokens {}+{} of sequence {} in {}", offset, count, sequence, prefix_);
  if (count == 0) return;
  const std::byte* source = bin_.bytes().data() + pointer(sequence) + offset * size_bytes(type_);
  switch (type_) {
    case TokenType::kUint8:
      return widen<std::uint8_t>(source, out);
    case TokenType::kInt8:
      return widen<std::int8_t>(source, out);
    case TokenType::kInt16:
      return widen<std::int16_t>(source, out);
    case TokenType::kInt32:
      return widen<std::int32_t>(source, out);
    case TokenType::kInt64:
      return widen<std::int64_t>(source, out);
    case TokenType::kFloat64:
      return widen<double>(source, out);
    case TokenType::kFloat32:
      return widen<float>(source, out);
    case TokenType::kUint16:
      return widen<std::uint16_t>(source, out);
  }
}

}  // namespace primus::data
