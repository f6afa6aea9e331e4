#pragma once
// Writing a changed text together with where its bytes come from.
#include "data/tokenizers/piece.hpp"

namespace primus::data {

/// Builds the successor of a piece from kept and from new parts, in order.
class TextEdit {
 public:
  TextEdit(const Piece& source, TextWorkspace& workspace) : source_(source), text_(workspace.texts.emplace_back()) {
    if (source.origins != nullptr) origins_ = &workspace.origins.emplace_back();
  }

  /// Bytes [begin, end) of the source.
  void keep(std::size_t begin, std::size_t end) {
    text_.append(source_.text, begin, end - begin);
    if (origins_ != nullptr) origins_->insert(origins_->end(), source_.origins + begin, source_.origins + end);
  }

  /// `text` in the place of bytes [begin, end) of the source; with begin == end, before the byte at `begin`.
  void put(std::string_view text, std::size_t begin, std::size_t end) {
    text_.append(text);
    if (origins_ != nullptr) origins_->insert(origins_->end(), text.size(), origin_of(begin, end));
  }

  Piece result() const { return {text_, origins_ == nullptr ? nullptr : origins_->data(), source_.place}; }

 private:
  TextRange origin_of(std::size_t begin, std::size_t end) const {
    if (source_.text.empty()) return {};
    if (begin == end) {
      // What is put in has no text of its own: it goes with the character behind it, or before it at the end.
      const std::size_t at = begin < source_.text.size() ? begin : source_.text.size() - 1;
      return source_.origins[at];
    }
    return {source_.origins[begin].begin, source_.origins[end - 1].end};
  }

  const Piece& source_;
  std::string& text_;
  std::vector<TextRange>* origins_ = nullptr;
};

}  // namespace primus::data
