#include "data/tokenizers/hugging_face_tokenizer.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "data/tokenizers/utf8.hpp"

namespace primus::data {
namespace {

// Places in a piece are 32 bits wide in the model and in ICU.
constexpr std::size_t kLongestText = std::size_t{1} << 30;

/// Ids may have gaps, but one far beyond the others would make a table of nothing.
std::int64_t most_ids(std::size_t num_tokens) {
  constexpr std::int64_t kGap = 1 << 16;
  return kGap + 4 * static_cast<std::int64_t>(num_tokens);
}

std::pair<std::string, std::string> merge_of(const JsonPart& part) {
  if (part.value().is_array()) {
    const std::vector<JsonPart> two = part.items();
    if (two.size() != 2) part.fail("is no pair of tokens", "two tokens");
    return {two[0].text(), two[1].text()};
  }
  const std::string& text = part.text();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    part.fail("is no pair of tokens", "two tokens with a space between");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

}  // namespace

struct HuggingFaceTokenizer::Workspace {
  TextWorkspace text;
  BpeModel::Workspace model;
  std::string well_formed;
  std::vector<TextRange> origins;
  std::vector<std::int64_t> lengths;
};

/// One call's way through the steps.
struct HuggingFaceTokenizer::Encoding {
  Workspace& workspace;
  std::vector<std::int64_t>& ids;
  std::vector<TextRange>* offsets;  // nullptr: not asked for
};

HuggingFaceTokenizer::HuggingFaceTokenizer(const nlohmann::json& json, const std::string& file, Setting setting)
    : setting_(std::move(setting)) {
  const JsonPart root(json, file, "");
  // Truncation and padding shape batches for inference: what prepares training data leaves them out, and so do we.
  root.has_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                 "decoder", "model"});
  normalizer_ = make_normalizer(root.maybe("normalizer"));
  pre_tokenizer_ = make_pre_tokenizer(root.maybe("pre_tokenizer"));
  model_ = read_model(root.at("model"), pre_tokenizer_.alphabet);
  read_added(root.maybe("added_tokens"));
  if (setting_.around_text == TokenizerOptions::AroundText::kIncluded) {
    around_ = read_post_processor(root.maybe("post_processor"));
  }
  decoder_ = make_decoder(root.maybe("decoder"));
  setting_.vocab_size = std::max(setting_.vocab_size, static_cast<std::int64_t>(tokens_.size()));
}

HuggingFaceTokenizer::~HuggingFaceTokenizer() = default;

std::unique_ptr<BpeModel> HuggingFaceTokenizer::read_model(const JsonPart& part, Alphabet alphabet) {
  const JsonPart vocabulary = part.at("vocab");
  const std::string type = part.text_or("type", "BPE");
  if (type != "BPE") {
    part.at("type").fail("is a model that is not understood", "BPE (for Unigram give the sentencepiece .model)");
  }
  part.has_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                 "byte_fallback", "ignore_merges", "vocab", "merges"});
  const JsonPart dropout = part.maybe("dropout");
  if (!dropout.is_null() && (!dropout.value().is_number() || dropout.value().get<double>() != 0.0)) {
    dropout.fail("makes ids random", "0 or null");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!part.text_or(key, "").empty()) part.at(key).fail("is not understood", "null");
  }
  BpeDescription description;
  description.alphabet = alphabet;
  description.rank = setting_.rank;
  description.unknown_token = part.text_or("unk_token", "");
  if (part.boolean_or("fuse_unk", false)) description.fuse_unknown = BpeDescription::Fuse::kYes;
  if (part.boolean_or("byte_fallback", false)) description.fallback = BpeDescription::Fallback::kBytes;
  if (part.boolean_or("ignore_merges", false)) description.whole = BpeDescription::Whole::kLookedUp;
  if (!vocabulary.value().is_object()) vocabulary.fail("is no object", "tokens and their ids");
  const std::int64_t id_limit = most_ids(vocabulary.value().size());
  for (const auto& [token, id] : vocabulary.value().items()) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= id_limit) {
      vocabulary.fail(fmt::format("gives '{}' no id", token), fmt::format("0 to {}", id_limit - 1));
    }
    const auto place = id.get<std::size_t>();
    if (place >= tokens_.size()) tokens_.resize(place + 1);
    tokens_[place] = token;
    description.vocabulary.emplace_back(token, id.get<std::int64_t>());
  }
  for (const JsonPart& merge : part.at("merges").items()) description.merges.push_back(merge_of(merge));
  try {
    return std::make_unique<BpeModel>(std::move(description));
  } catch (const BadVocabulary& error) {
    part.at("merges").fail(error.what());
  }
}

void HuggingFaceTokenizer::read_added(const JsonPart& part) {
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  std::vector<std::string> raw_texts;
  std::vector<std::string> normalized_texts;
  TextWorkspace workspace;
  std::vector<AddedToken> tokens = read_added_tokens(part);
  const std::int64_t id_limit = most_ids(tokens_.size() + tokens.size());
  for (AddedToken& token : tokens) {
    const auto place = static_cast<std::size_t>(token.id);
    if (token.id >= id_limit) part.fail(fmt::format("gives '{}' an id of {}", token.content, token.id));
    if (place >= tokens_.size()) tokens_.resize(place + 1);
    if (!tokens_[place].empty() && tokens_[place] != token.content) {
      part.fail(fmt::format("gives '{}' the id {}, which is that of '{}'", token.content, token.id, tokens_[place]));
    }
    tokens_[place] = token.content;
    if (token.is_normalized) {
      const Piece piece{token.content, nullptr, Piece::Place::kFirst};
      normalized_texts.emplace_back(normalizer_ ? normalizer_->apply(piece, workspace).text : piece.text);
      normalized.push_back(std::move(token));
    } else {
      raw_texts.push_back(token.content);
      raw.push_back(std::move(token));
    }
  }
  raw_tokens_ = std::make_unique<AddedTokenFinder>(std::move(raw), raw_texts);
  normalized_tokens_ = std::make_unique<AddedTokenFinder>(std::move(normalized), normalized_texts);
}

std::unique_ptr<HuggingFaceTokenizer::Workspace> HuggingFaceTokenizer::take_workspace() const {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto workspace = std::move(idle_.back());
      idle_.pop_back();
      return workspace;
    }
  }
  return std::make_unique<Workspace>();
}

void HuggingFaceTokenizer::give_back(std::unique_ptr<Workspace> workspace) const {
  workspace->text.clear();
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(workspace));
}

void HuggingFaceTokenizer::encode(std::string_view text, std::vector<std::int64_t>& ids) const {
  encode_text(text, ids, nullptr);
}

void HuggingFaceTokenizer::encode_with_offsets(std::string_view text, std::vector<std::int64_t>& ids,
                                               std::vector<TextRange>& offsets) const {
  encode_text(text, ids, &offsets);
}

void HuggingFaceTokenizer::encode_text(std::string_view text, std::vector<std::int64_t>& ids,
                                       std::vector<TextRange>* offsets) const {
  if (text.size() > kLongestText) {
    throw UserError(
        fmt::format("a text of {} bytes is too long for one document (at most {})", text.size(), kLongestText));
  }
  auto workspace = take_workspace();
  Encoding encoding{*workspace, ids, offsets};
  const auto add_around = [&](const std::vector<std::int64_t>& around, std::int64_t place) {
    ids.insert(ids.end(), around.begin(), around.end());
    if (offsets != nullptr) offsets->insert(offsets->end(), around.size(), {place, place});
  };
  add_around(around_.before, 0);
  std::vector<TextRange>* const origins = offsets == nullptr ? nullptr : &workspace->origins;
  const std::string_view clean = well_formed(text, workspace->well_formed, origins);
  const Piece whole{clean, origins == nullptr ? nullptr : origins->data(), Piece::Place::kFirst};
  if (raw_tokens_->is_empty()) {
    encode_segment(whole, encoding);
  } else {
    raw_tokens_->split(whole, [&](const Piece& piece, const AddedToken* token) {
      if (token == nullptr) return encode_segment(piece, encoding);
      ids.push_back(token->id);
      if (offsets != nullptr) offsets->push_back({piece.origins->begin, piece.origins[piece.text.size() - 1].end});
    });
  }
  add_around(around_.behind, static_cast<std::int64_t>(text.size()));
  give_back(std::move(workspace));
}

void HuggingFaceTokenizer::encode_segment(const Piece& piece, Encoding& encoding) const {
  if (piece.text.empty()) return;
  const Piece normal = normalizer_ ? normalizer_->apply(piece, encoding.workspace.text) : piece;
  if (normalized_tokens_->is_empty()) return encode_split(normal, 0, encoding);
  normalized_tokens_->split(normal, [&](const Piece& part, const AddedToken* token) {
    if (token == nullptr) return encode_split(part, 0, encoding);
    encoding.ids.push_back(token->id);
    if (encoding.offsets == nullptr) return;
    encoding.offsets->push_back({part.origins->begin, part.origins[part.text.size() - 1].end});
  });
}

void HuggingFaceTokenizer::encode_split(const Piece& piece, std::size_t step, Encoding& encoding) const {
  if (step == pre_tokenizer_.steps.size()) return encode_word(piece, encoding);
  pre_tokenizer_.steps[step]->split(piece, encoding.workspace.text, [this, step, &encoding](const Piece& part) {
    encode_split(part, step + 1, encoding);
  });
}

void HuggingFaceTokenizer::encode_word(const Piece& piece, Encoding& encoding) const {
  if (encoding.offsets == nullptr) {
    model_->encode(piece.text, encoding.workspace.model, encoding.ids, nullptr);
    return;
  }
  std::vector<std::int64_t>& lengths = encoding.workspace.lengths;
  lengths.clear();
  model_->encode(piece.text, encoding.workspace.model, encoding.ids, &lengths);
  std::size_t begin = 0;
  for (const std::int64_t length : lengths) {
    const std::size_t last = piece.text.size() - 1;
    const std::size_t end = begin + static_cast<std::size_t>(length);
    const TextRange& from = piece.origins[std::min(begin, last)];
    const TextRange& to = piece.origins[std::min(end == begin ? begin : end - 1, last)];
    encoding.offsets->push_back({from.begin, to.end});
    begin = end;
  }
}

std::string HuggingFaceTokenizer::decode(std::span<const std::int64_t> ids) const {
  std::vector<std::string> tokens;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      throw UserError(fmt::format("{}: id {} is not in 0..{}", name(), id, vocab_size() - 1));
    }
    if (id == eod()) continue;
    const auto place = static_cast<std::size_t>(id);
    // Ids without a token are passed over, as `tokenizers` does.
    if (place < tokens_.size() && !tokens_[place].empty()) tokens.push_back(tokens_[place]);
  }
  if (!decoder_) return fmt::format("{}", fmt::join(tokens, " "));
  std::string text;
  for (const std::string& part : decoder_->apply(std::move(tokens))) text += part;
  return text;
}

}  // namespace primus::data
