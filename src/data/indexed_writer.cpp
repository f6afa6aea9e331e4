#include "data/indexed_writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <concepts>
#include <cstring>
#include <limits>

#include "base/error.hpp"

namespace primus::data {
namespace {

constexpr std::int64_t kBlockEntries = 8192;
constexpr auto kHeaderSize = static_cast<std::int64_t>(idx_format::kHeaderBytes);

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <typename T>
bool can_hold(std::int64_t id) {
  if constexpr (std::floating_point<T>) {
    return static_cast<std::int64_t>(static_cast<T>(id)) == id;
  } else {
    return std::in_range<T>(id);
  }
}

/// The offending id, if there is one; else the ids stand packed in `out`.
template <typename T>
const std::int64_t* pack(std::span<const std::int64_t> tokens, std::vector<std::byte>& out) {
  out.resize(tokens.size() * sizeof(T));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!can_hold<T>(tokens[i])) return &tokens[i];
    const T value = static_cast<T>(tokens[i]);
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
  }
  return nullptr;
}

const std::int64_t* pack(TokenType type, std::span<const std::int64_t> tokens, std::vector<std::byte>& out) {
  switch (type) {
    case TokenType::kUint8:
      return pack<std::uint8_t>(tokens, out);
    case TokenType::kInt8:
      return pack<std::int8_t>(tokens, out);
    case TokenType::kInt16:
      return pack<std::int16_t>(tokens, out);
    case TokenType::kInt32:
      return pack<std::int32_t>(tokens, out);
    case TokenType::kInt64:
      return pack<std::int64_t>(tokens, out);
    case TokenType::kFloat64:
      return pack<double>(tokens, out);
    case TokenType::kFloat32:
      return pack<float>(tokens, out);
    case TokenType::kUint16:
      return pack<std::uint16_t>(tokens, out);
  }
  return nullptr;
}

}  // namespace

IndexedWriter::IndexedWriter(const std::string& prefix, TokenType type)
    : prefix_(prefix), type_(type), bin_(prefix + ".bin"), idx_(prefix + ".idx"), documents_(prefix + ".documents") {
  const std::byte header[idx_format::kHeaderBytes] = {};  // the counts are known at the end
  idx_.append(header);
  documents_.append(bytes_of(std::int64_t{0}));
}

IndexedWriter::IndexedWriter(const std::string& prefix, TokenType type, const WriterProgress& from)
    : prefix_(prefix),
      type_(type),
      bin_(prefix + ".bin", from.num_tokens * size_bytes(type)),
      idx_(prefix + ".idx", from.num_sequences == 0 ? 0 : kHeaderSize + from.num_sequences * 4),
      documents_(prefix + ".documents", from.num_documents == 0 ? 0 : (from.num_documents + 1) * 8),
      num_sequences_(from.num_sequences),
      num_documents_(from.num_documents),
      num_tokens_(from.num_tokens) {
  const std::byte header[idx_format::kHeaderBytes] = {};
  if (from.num_sequences == 0) idx_.append(header);
  if (from.num_documents == 0) documents_.append(bytes_of(std::int64_t{0}));
  if (from.num_documents == 0) return;
  // Somebody may go on from there once more, should this writer be given up.
  for (TemporaryFile* file : {&bin_, &idx_, &documents_}) file->keep();
}

WriterProgress IndexedWriter::save_progress() {
  for (TemporaryFile* file : {&bin_, &idx_, &documents_}) {
    file->sync();
    file->keep();
  }
  return {num_sequences_, num_documents_, num_tokens_};
}

void IndexedWriter::add_sequence(std::span<const std::int64_t> tokens) {
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw UserError(
        fmt::format("{}.idx: a sequence of {} tokens is longer than the format can say", prefix_, tokens.size()));
  }
  if (const std::int64_t* bad = pack(type_, tokens, packed_)) {
    throw UserError(fmt::format("{}.bin: token {} does not fit into {}", prefix_, *bad, to_text(type_)));
  }
  bin_.append(packed_);
  idx_.append(bytes_of(static_cast<std::int32_t>(tokens.size())));
  ++num_sequences_;
  num_tokens_ += static_cast<std::int64_t>(tokens.size());
}

void IndexedWriter::end_document() {
  documents_.append(bytes_of(num_sequences_));
  ++num_documents_;
}

void IndexedWriter::complete() {
  std::int64_t pointer = 0;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> entries;
  for (std::int64_t begin = 0; begin < num_sequences_; begin += kBlockEntries) {
    lengths.resize(static_cast<std::size_t>(std::min(kBlockEntries, num_sequences_ - begin)));
    idx_.read(static_cast<std::int64_t>(idx_format::kHeaderBytes) + begin * 4,
              std::as_writable_bytes(std::span(lengths)));
    entries.clear();
    for (const std::int32_t length : lengths) {
      entries.push_back(pointer);
      pointer += length * size_bytes(type_);
    }
    idx_.append(std::as_bytes(std::span(entries)));
  }
  for (std::int64_t begin = 0; begin <= num_documents_; begin += kBlockEntries) {
    entries.resize(static_cast<std::size_t>(std::min(kBlockEntries, num_documents_ + 1 - begin)));
    documents_.read(begin * 8, std::as_writable_bytes(std::span(entries)));
    idx_.append(std::as_bytes(std::span(entries)));
  }
  documents_.discard();

  using namespace idx_format;
  idx_.overwrite(0, std::as_bytes(std::span(kMagic)));
  idx_.overwrite(kVersionOffset, bytes_of(kVersion));
  idx_.overwrite(kTypeOffset, bytes_of(type_));
  idx_.overwrite(kNumSequencesOffset, bytes_of(num_sequences_));
  idx_.overwrite(kNumDocumentsOffset, bytes_of(num_documents_ + 1));
  bin_.sync();
  idx_.sync();
}

void IndexedWriter::publish() {
  // A stale index must never stand beside new tokens, not even after a crash between the two renames.
  ::unlink(idx_.final_path().c_str());
  bin_.commit();
  try {
    idx_.commit();
  } catch (...) {
    ::unlink(bin_.final_path().c_str());
    throw;
  }
  sync_folder_of(prefix_);
}

void IndexedWriter::finish() {
  complete();
  publish();
}

}  // namespace primus::data
