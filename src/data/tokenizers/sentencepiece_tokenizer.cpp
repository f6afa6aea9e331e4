#include "data/tokenizers/sentencepiece_tokenizer.hpp"

#include <sentencepiece_processor.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "config/sentencepiece_facts.hpp"

namespace primus::data {

struct SentencePieceTokenizer::Library {
  sentencepiece::SentencePieceProcessor processor;
};

namespace {

void check(const sentencepiece::util::Status& status, const std::string& what) {
  if (!status.ok()) throw UserError(fmt::format("{}: {}", what, status.ToString()));
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(const std::string& path, std::string name)
    : library_(std::make_unique<Library>()), name_(std::move(name)) {
  const std::string content = read_file(path);
  const config::SentencePieceFacts facts = config::read_sentencepiece_facts(content, path);
  const auto status = library_->processor.LoadFromSerializedProto(content);
  if (!status.ok()) {
    throw ConfigError({{.file = path, .message = fmt::format("sentencepiece refuses it: {}", status.ToString())}});
  }
  PRIMUS_CHECK(facts.num_pieces == library_->processor.GetPieceSize(), "{} pieces in {}", facts.num_pieces, path);
  eod_ = facts.eos.value_or(kNoEod);
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

std::int64_t SentencePieceTokenizer::vocab_size() const {
  return library_->processor.GetPieceSize();
}

void SentencePieceTokenizer::encode(std::string_view text, std::vector<std::int64_t>& ids) const {
  std::vector<int> pieces;
  check(library_->processor.Encode(text, &pieces), name_);
  ids.insert(ids.end(), pieces.begin(), pieces.end());
}

void SentencePieceTokenizer::encode_with_offsets(std::string_view text, std::vector<std::int64_t>& ids,
                                                 std::vector<TextRange>& offsets) const {
  const auto encoded = library_->processor.EncodeAsImmutableProto(text);
  for (const auto& piece : encoded.pieces()) {
    ids.push_back(piece.id());
    offsets.push_back({piece.begin(), piece.end()});
  }
}

std::string SentencePieceTokenizer::decode(std::span<const std::int64_t> ids) const {
  std::vector<int> pieces;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      throw UserError(fmt::format("{}: id {} is not in 0..{}", name_, id, vocab_size() - 1));
    }
    if (id != eod_) pieces.push_back(static_cast<int>(id));
  }
  std::string text;
  check(library_->processor.Decode(pieces, &text), name_);
  return text;
}

}  // namespace primus::data
