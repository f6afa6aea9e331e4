#include "data/tokenizer.hpp"

#include <array>
#include <charconv>

#include "base/error.hpp"
#include "base/text.hpp"

namespace primus::data {
namespace {

constexpr std::array<std::string_view, 2> kTypes = {"ByteTokenizer", "NullTokenizer"};

}  // namespace

void ByteTokenizer::encode(std::string_view text, std::vector<std::int64_t>& ids) const {
  ids.reserve(ids.size() + text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
}

void ByteTokenizer::encode_with_offsets(std::string_view text, std::vector<std::int64_t>& ids,
                                        std::vector<TextRange>& offsets) const {
  encode(text, ids);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(text.size()); ++i) offsets.push_back({i, i + 1});
}

std::string ByteTokenizer::decode(std::span<const std::int64_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const std::int64_t id : ids) {
    if (id < 0 || id > eod()) throw UserError(fmt::format("ByteTokenizer: id {} is not in 0..{}", id, eod()));
    if (id != eod()) text += static_cast<char>(static_cast<unsigned char>(id));
  }
  return text;
}

NullTokenizer::NullTokenizer(std::int64_t vocab_size) : vocab_size_(vocab_size) {
  if (vocab_size < 2) {
    throw UserError(
        fmt::format("NullTokenizer: needs a vocab_size of at least 2 (one id, one end of document), found {}",
                    vocab_size),
        ExitCode::kWrongInput);
  }
}

void NullTokenizer::encode(std::string_view text, std::vector<std::int64_t>& ids) const {
  std::vector<TextRange> offsets;
  encode_with_offsets(text, ids, offsets);
}

void NullTokenizer::encode_with_offsets(std::string_view text, std::vector<std::int64_t>& ids,
                                        std::vector<TextRange>& offsets) const {
  constexpr std::string_view kSpace = " \t\r\n";
  for (std::size_t begin = text.find_first_not_of(kSpace); begin != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    std::int64_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc{} || stop != word.data() + word.size() || id < 0 || id >= vocab_size_) {
      throw UserError(fmt::format("NullTokenizer: '{}' is not an id in 0..{}", word, vocab_size_ - 1));
    }
    ids.push_back(id);
    offsets.push_back({static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)});
    begin = text.find_first_not_of(kSpace, end);
  }
}

std::string NullTokenizer::decode(std::span<const std::int64_t> ids) const {
  std::string text;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocab_size_) {
      throw UserError(fmt::format("NullTokenizer: id {} is not in 0..{}", id, vocab_size_ - 1));
    }
    if (id == eod()) continue;
    if (!text.empty()) text += ' ';
    text += std::to_string(id);
  }
  return text;
}

std::unique_ptr<Tokenizer> make_plain_tokenizer(const TokenizerOptions& options) {
  if (options.type == "ByteTokenizer") return std::make_unique<ByteTokenizer>();
  if (options.type == "NullTokenizer") return std::make_unique<NullTokenizer>(options.vocab_size);
  Problem problem;
  problem.key = "tokenizer_type";
  problem.message = "there is no such tokenizer";
  problem.expected = "ByteTokenizer or NullTokenizer";
  problem.found = options.type;
  if (const auto near = nearest_name(options.type, kTypes)) problem.nearest = fmt::format("did you mean '{}'?", *near);
  throw ConfigError({problem});
}

}  // namespace primus::data
