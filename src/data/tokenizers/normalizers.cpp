#include "data/tokenizers/normalizers.hpp"

#include <unicode/bytestream.h>
#include <unicode/edits.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <optional>

#include "base/error.hpp"
#include "data/tokenizers/newer_characters.hpp"
#include "data/tokenizers/regex_syntax.hpp"
#include "data/tokenizers/text_edit.hpp"

namespace primus::data {
namespace {

/// Fails only when ICU's own data is missing.
void check_icu(UErrorCode status) {
  PRIMUS_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
}

/// NFC, NFD, NFKC and NFKD as `tokenizers` has them: its tables are Unicode 9's, so that later characters stay as they
/// are and nothing is moved or combined across them.
class UnicodeForm final : public Normalizer {
 public:
  UnicodeForm(const icu::Normalizer2& form, unsigned char first_lead)
      : filter_(unicode_9()), form_(form, filter_), first_lead_(first_lead) {}

  Piece apply(const Piece& piece, TextWorkspace& workspace) const override {
    if (!may_change(piece.text)) return piece;
    UErrorCode status = U_ZERO_ERROR;
    const icu::StringPiece source(piece.text.data(), static_cast<std::int32_t>(piece.text.size()));
    const bool is_normal = form_.isNormalizedUTF8(source, status) != 0;
    check_icu(status);
    if (is_normal) return piece;
    return piece.origins == nullptr ? rewritten(piece, source, workspace)
                                    : rewritten_with_origins(piece, source, workspace);
  }

 private:
  static icu::UnicodeSet unicode_9() {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet set(icu::UnicodeString("[:age=9.0:]"), status);
    check_icu(status);
    set.freeze();
    return set;
  }

  /// Text of smaller characters only is normal in this form.
  bool may_change(std::string_view text) const {
    PRIMUS_CHECK(text.size() < std::size_t{1} << 31, "a piece of {} bytes", text.size());
    for (std::size_t at = skip_ascii(text, 0); at < text.size(); at = skip_ascii(text, at)) {
      if (static_cast<unsigned char>(text[at]) >= first_lead_) return true;
      at += sequence_bytes(text[at]);
    }
    return false;
  }

  Piece rewritten(const Piece& piece, const icu::StringPiece& source, TextWorkspace& workspace) const {
    std::string& text = workspace.texts.emplace_back();
    text.reserve(piece.text.size());
    icu::StringByteSink<std::string> sink(&text);
    UErrorCode status = U_ZERO_ERROR;
    form_.normalizeUTF8(0, source, sink, nullptr, status);
    check_icu(status);
    return {text, nullptr, piece.place};
  }

  Piece rewritten_with_origins(const Piece& piece, const icu::StringPiece& source, TextWorkspace& workspace) const {
    std::string text;
    icu::StringByteSink<std::string> sink(&text);
    icu::Edits edits;
    UErrorCode status = U_ZERO_ERROR;
    form_.normalizeUTF8(0, source, sink, &edits, status);
    check_icu(status);
    TextEdit edit(piece, workspace);
    icu::Edits::Iterator it = edits.getFineIterator();
    while (it.next(status)) {
      const auto begin = static_cast<std::size_t>(it.sourceIndex());
      const auto end = begin + static_cast<std::size_t>(it.oldLength());
      if (it.hasChange()) {
        edit.put(std::string_view(text).substr(static_cast<std::size_t>(it.destinationIndex()),
                                               static_cast<std::size_t>(it.newLength())),
                 begin, end);
      } else {
        edit.keep(begin, end);
      }
    }
    check_icu(status);
    return edit.result();
  }

  icu::UnicodeSet filter_;
  icu::FilteredNormalizer2 form_;
  unsigned char first_lead_;  // lead byte of the first character that the form may change
};

/// Text in front of every piece that is not empty.
class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}

  Piece apply(const Piece& piece, TextWorkspace& workspace) const override {
    if (piece.text.empty()) return piece;
    TextEdit edit(piece, workspace);
    edit.put(text_, 0, 0);
    edit.keep(0, piece.text.size());
    return edit.result();
  }

 private:
  std::string text_;
};

/// One text in the place of another.
class ReplaceText final : public Normalizer {
 public:
  ReplaceText(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}

  Piece apply(const Piece& piece, TextWorkspace& workspace) const override {
    std::size_t found = from_.empty() ? std::string_view::npos : piece.text.find(from_);
    if (found == std::string_view::npos) return piece;
    TextEdit edit(piece, workspace);
    std::size_t at = 0;
    for (; found != std::string_view::npos; found = piece.text.find(from_, at)) {
      edit.keep(at, found);
      at = found + from_.size();
      edit.put(to_, found, at);
    }
    edit.keep(at, piece.text.size());
    return edit.result();
  }

 private:
  std::string from_;
  std::string to_;
};

/// A text in the place of every match.
class ReplaceMatches final : public Normalizer {
 public:
  ReplaceMatches(Regex regex, std::string to) : regex_(std::move(regex)), to_(std::move(to)) {}

  Piece apply(const Piece& piece, TextWorkspace& workspace) const override {
    TextEdit edit(piece, workspace);
    std::size_t at = 0;
    const std::string_view subject = with_older_characters(piece.text, workspace.older);
    for_each_match(regex_, subject, workspace.regex, [&](const Match& match) {
      edit.keep(at, match.begin);
      edit.put(to_, match.begin, match.end);
      at = match.end;
    });
    edit.keep(at, piece.text.size());
    return edit.result();
  }

 private:
  Regex regex_;
  std::string to_;
};

/// White space off the ends.
class Strip final : public Normalizer {
 public:
  enum class Side { kKept, kStripped };
  Strip(Side left, Side right) : left_(left), right_(right) {}

  Piece apply(const Piece& piece, TextWorkspace&) const override {
    std::size_t begin = 0;
    std::size_t end = piece.text.size();
    while (left_ == Side::kStripped && begin < end) {
      std::size_t next = begin;
      if (!is_white_space(next_character(piece.text, next))) break;
      begin = next;
    }
    while (right_ == Side::kStripped && begin < end) {
      const char32_t last = last_character(piece.text.substr(begin, end - begin));
      if (!is_white_space(last)) break;
      std::string bytes;
      append_character(last, bytes);
      end -= bytes.size();
    }
    return piece.part(begin, end);
  }

 private:
  Side left_;
  Side right_;
};

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}

  Piece apply(const Piece& piece, TextWorkspace& workspace) const override {
    Piece result = piece;
    for (const auto& step : steps_) result = step->apply(result, workspace);
    return result;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

std::unique_ptr<Normalizer> make_form(std::string_view name) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* form = nullptr;
  // Below U+0300 everything is NFC, below U+00C0 NFD, below U+00A0 (U+0080 and up have lead byte C2) NFKC and NFKD.
  unsigned char first_lead = 0xC2;
  if (name == "NFC") {
    form = icu::Normalizer2::getNFCInstance(status);
    first_lead = 0xCC;
  } else if (name == "NFD") {
    form = icu::Normalizer2::getNFDInstance(status);
    first_lead = 0xC3;
  } else if (name == "NFKC") {
    form = icu::Normalizer2::getNFKCInstance(status);
  } else {
    form = icu::Normalizer2::getNFKDInstance(status);
  }
  check_icu(status);
  return std::make_unique<UnicodeForm>(*form, first_lead);
}

std::unique_ptr<Normalizer> make_replace(const JsonPart& part) {
  part.has_only({"type", "pattern", "content"});
  const JsonPart pattern = part.at("pattern");
  pattern.has_only({"String", "Regex"});
  if (!pattern.maybe("String").is_null()) {
    return std::make_unique<ReplaceText>(pattern.at("String").text(), part.at("content").text());
  }
  const JsonPart regex = pattern.at("Regex");
  try {
    return std::make_unique<ReplaceMatches>(Regex(regex.text()), part.at("content").text());
  } catch (const UnknownSyntax& error) {
    regex.fail(fmt::format("is not understood: {}", error.what()));
  }
}

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const JsonPart& part) {
  if (part.is_null()) return nullptr;
  const JsonPart type = part.at("type");
  const std::string& name = type.text();
  if (name == "NFC" || name == "NFD" || name == "NFKC" || name == "NFKD") {
    part.has_only({"type"});
    return make_form(name);
  }
  if (name == "Sequence") {
    part.has_only({"type", "normalizers"});
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (const JsonPart& step : part.at("normalizers").items()) {
      if (step.is_null()) step.fail("is no normalizer");
      steps.push_back(make_normalizer(step));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  if (name == "Prepend") {
    part.has_only({"type", "prepend"});
    return std::make_unique<Prepend>(part.at("prepend").text());
  }
  if (name == "Replace") return make_replace(part);
  if (name == "Strip") {
    part.has_only({"type", "strip_left", "strip_right"});
    const auto side = [&](const char* key) {
      return part.at(key).boolean() ? Strip::Side::kStripped : Strip::Side::kKept;
    };
    return std::make_unique<Strip>(side("strip_left"), side("strip_right"));
  }
  type.fail("is a normalizer that is not understood", "NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip or Sequence");
}

}  // namespace primus::data
