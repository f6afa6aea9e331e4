#include "config/sentencepiece_facts.hpp"

#include "base/error.hpp"

namespace primus::config {
namespace {

// Field numbers of sentencepiece_model.proto.
constexpr std::uint32_t kPieces = 1;
constexpr std::uint32_t kPieceText = 1;
constexpr std::uint32_t kTrainerSpec = 2;
constexpr std::uint32_t kEosId = 42;
constexpr std::uint32_t kEosPiece = 47;

/// The fields of one message, one after the other.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    std::uint32_t number = 0;
    std::uint64_t value = 0;        // of a number
    std::string_view content = {};  // of a text or a message
  };

  enum class State { kField, kEnd, kDamaged };

  State next(Field& field) {
    if (bytes_.empty()) return State::kEnd;
    std::uint64_t tag = 0;
    if (!read_varint(tag) || tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF) return State::kDamaged;
    field = {.number = static_cast<std::uint32_t>(tag >> 3)};
    switch (tag & 7) {
      case 0:
        return read_varint(field.value) ? State::kField : State::kDamaged;
      case 1:
        return skip(8);
      case 5:
        return skip(4);
      case 2: {
        std::uint64_t size = 0;
        if (!read_varint(size) || size > bytes_.size()) return State::kDamaged;
        field.content = bytes_.substr(0, static_cast<std::size_t>(size));
        return skip(static_cast<std::size_t>(size));
      }
      default:
        return State::kDamaged;
    }
  }

 private:
  State skip(std::size_t num_bytes) {
    if (num_bytes > bytes_.size()) return State::kDamaged;
    bytes_.remove_prefix(num_bytes);
    return State::kField;
  }

  bool read_varint(std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  std::string_view bytes_;
};

[[noreturn]] void fail(const std::string& path) {
  throw ConfigError({{.file = path, .message = "is no model of sentencepiece, or a damaged one"}});
}

/// The text of a piece.
std::string_view piece_text(std::string_view message, const std::string& path) {
  Fields fields(message);
  Fields::Field field;
  std::string_view text;
  Fields::State state = Fields::State::kEnd;
  while ((state = fields.next(field)) == Fields::State::kField) {
    if (field.number == kPieceText) text = field.content;
  }
  if (state == Fields::State::kDamaged) fail(path);
  return text;
}

}  // namespace

SentencePieceFacts read_sentencepiece_facts(std::string_view content, const std::string& path) {
  SentencePieceFacts facts;
  std::int64_t eos_id = 2;  // the format's defaults
  std::string eos_piece = "</s>";
  Fields fields(content);
  Fields::Field field;
  Fields::State state = Fields::State::kEnd;
  while ((state = fields.next(field)) == Fields::State::kField) {
    if (field.number == kPieces) ++facts.num_pieces;
    if (field.number != kTrainerSpec) continue;
    Fields spec(field.content);
    Fields::Field entry;
    while ((state = spec.next(entry)) == Fields::State::kField) {
      if (entry.number == kEosId) eos_id = static_cast<std::int64_t>(entry.value);
      if (entry.number == kEosPiece) eos_piece = entry.content;
    }
    if (state == Fields::State::kDamaged) fail(path);
  }
  if (state == Fields::State::kDamaged || facts.num_pieces == 0) fail(path);
  // The library goes by the piece's text; its id counts only as "there is none".
  if (eos_id < 0) return facts;
  Fields again(content);
  std::int64_t id = 0;
  while (again.next(field) == Fields::State::kField) {
    if (field.number != kPieces) continue;
    if (piece_text(field.content, path) == eos_piece) {
      facts.eos = id;
      break;
    }
    ++id;
  }
  return facts;
}

}  // namespace primus::config
