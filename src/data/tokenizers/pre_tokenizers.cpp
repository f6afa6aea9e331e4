#include "data/tokenizers/pre_tokenizers.hpp"

#include "base/error.hpp"
#include "data/tokenizers/newer_characters.hpp"
#include "data/tokenizers/regex_syntax.hpp"
#include "data/tokenizers/text_edit.hpp"

namespace primus::data {
namespace {

// GPT-2's, which ByteLevel stands for.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// What becomes of matches.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// Whether the expression describes what separates, or what is kept.
enum class Sense { kSeparators, kPieces };

/// Stretches of the text, matched or between matches, covering all of it.
struct Stretch {
  std::size_t begin;
  std::size_t end;
  enum class Kind { kMatch, kGap } kind;
};

void add_stretch(std::vector<Stretch>& stretches, const Stretch& next, Behavior behavior, Stretch::Kind previous) {
  const bool joins = behavior == Behavior::kMergedWithPrevious
                         ? next.kind == Stretch::Kind::kMatch && previous == Stretch::Kind::kGap
                         : next.kind == previous;
  if (joins && !stretches.empty()) {
    stretches.back().end = next.end;
  } else {
    stretches.push_back(next);
  }
}

std::vector<Stretch> merged(std::vector<Stretch> stretches, Behavior behavior) {
  using Kind = Stretch::Kind;
  std::vector<Stretch> result;
  Kind previous = Kind::kGap;
  if (behavior != Behavior::kMergedWithNext) {
    for (const Stretch& stretch : stretches) {
      add_stretch(result, stretch, behavior, previous);
      previous = stretch.kind;
    }
    return result;
  }
  for (auto it = stretches.rbegin(); it != stretches.rend(); ++it) {
    if (it->kind == Kind::kMatch && previous == Kind::kGap && !result.empty()) {
      result.back().begin = it->begin;
    } else {
      result.push_back(*it);
    }
    previous = it->kind;
  }
  return {result.rbegin(), result.rend()};
}

class Split final : public PreTokenizer {
 public:
  Split(Regex regex, Behavior behavior, Sense sense) : regex_(std::move(regex)), behavior_(behavior), sense_(sense) {}

  void split(const Piece& piece, TextWorkspace& workspace, const Visit& visit) const override {
    if (piece.text.empty()) return;
    const auto give = [&](std::size_t begin, std::size_t end) {
      if (begin < end) visit(piece.part(begin, end));
    };
    // Steps behind this one use the same buffer, so that it is taken away for as long as matches are looked for in it.
    std::string older;
    older.swap(workspace.older);
    const std::string_view subject = with_older_characters(piece.text, older);
    if (behavior_ == Behavior::kIsolated || behavior_ == Behavior::kRemoved) {
      const bool keeps_matches = behavior_ == Behavior::kIsolated || sense_ == Sense::kPieces;
      const bool keeps_gaps = behavior_ == Behavior::kIsolated || sense_ == Sense::kSeparators;
      std::size_t at = 0;
      for_each_match(regex_, subject, workspace.regex, [&](const Match& match) {
        if (keeps_gaps) give(at, match.begin);
        if (keeps_matches) give(match.begin, match.end);
        at = match.end;
      });
      if (keeps_gaps) give(at, piece.text.size());
    } else {
      for (const Stretch& stretch : merged(stretches_of(subject, workspace), behavior_))
        give(stretch.begin, stretch.end);
    }
    older.swap(workspace.older);
  }

 private:
  std::vector<Stretch> stretches_of(std::string_view subject, TextWorkspace& workspace) const {
    using Kind = Stretch::Kind;
    const Kind matched = sense_ == Sense::kSeparators ? Kind::kMatch : Kind::kGap;
    const Kind between = sense_ == Sense::kSeparators ? Kind::kGap : Kind::kMatch;
    std::vector<Stretch> stretches;
    std::size_t at = 0;
    for_each_match(regex_, subject, workspace.regex, [&](const Match& match) {
      if (at != match.begin) stretches.push_back({at, match.begin, between});
      stretches.push_back({match.begin, match.end, matched});
      at = match.end;
    });
    if (at != subject.size()) stretches.push_back({at, subject.size(), between});
    return stretches;
  }

  Regex regex_;
  Behavior behavior_;
  Sense sense_;
};

/// A space in front of text that does not begin with one.
class PrefixSpace final : public PreTokenizer {
 public:
  void split(const Piece& piece, TextWorkspace& workspace, const Visit& visit) const override {
    if (piece.text.empty() || piece.text.starts_with(' ')) {
      if (!piece.text.empty()) visit(piece);
      return;
    }
    TextEdit edit(piece, workspace);
    edit.put(" ", 0, 0);
    edit.keep(0, piece.text.size());
    visit(edit.result());
  }
};

/// Spaces shown as another character, which words then begin with.
class Metaspace final : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  enum class Cut { kWords, kNowhere };

  Metaspace(std::string replacement, Prepend prepend, Cut cut)
      : replacement_(std::move(replacement)), prepend_(prepend), cut_(cut) {}

  void split(const Piece& piece, TextWorkspace& workspace, const Visit& visit) const override {
    if (piece.text.empty()) return;
    const bool begins_so = piece.text.starts_with(' ') || piece.text.starts_with(replacement_);
    const bool prepends = !begins_so && (prepend_ == Prepend::kAlways ||
                                         (prepend_ == Prepend::kFirst && piece.place == Piece::Place::kFirst));
    TextEdit edit(piece, workspace);
    if (prepends) edit.put(replacement_, 0, 0);
    std::size_t at = 0;
    for (std::size_t space = piece.text.find(' '); space != std::string_view::npos; space = piece.text.find(' ', at)) {
      edit.keep(at, space);
      edit.put(replacement_, space, space + 1);
      at = space + 1;
    }
    edit.keep(at, piece.text.size());
    const Piece result = edit.result();
    if (cut_ == Cut::kNowhere) return visit(result);
    give_words(result, visit);
  }

 private:
  void give_words(const Piece& piece, const Visit& visit) const {
    std::size_t begin = 0;
    while (begin < piece.text.size()) {
      const std::size_t search_from =
          piece.text.substr(begin).starts_with(replacement_) ? begin + replacement_.size() : begin;
      const std::size_t end = std::min(piece.text.find(replacement_, search_from), piece.text.size());
      visit(piece.part(begin, end));
      begin = end;
    }
  }

  std::string replacement_;
  Prepend prepend_;
  Cut cut_;
};

Regex regex_of(const JsonPart& part, std::string_view pattern) {
  try {
    return Regex(pattern);
  } catch (const UnknownSyntax& error) {
    part.fail(fmt::format("is not understood: {}", error.what()));
  }
}

/// The text as an expression that matches it and nothing else.
std::string literal_pattern(std::string_view text) {
  constexpr std::string_view kSpecial = "\\^$.|?*+()[]{}-&";
  std::string pattern;
  for (const char c : text) {
    if (kSpecial.find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

Behavior behavior_of(const JsonPart& part) {
  struct Name {
    std::string_view name;
    Behavior behavior;
  };
  constexpr Name kNames[] = {{"Removed", Behavior::kRemoved},
                             {"Isolated", Behavior::kIsolated},
                             {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                             {"MergedWithNext", Behavior::kMergedWithNext},
                             {"Contiguous", Behavior::kContiguous}};
  for (const Name& row : kNames) {
    if (part.text() == row.name) return row.behavior;
  }
  part.fail("is a behavior that is not understood",
            "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

std::unique_ptr<PreTokenizer> make_split(const JsonPart& part) {
  part.has_only({"type", "pattern", "behavior", "invert"});
  const JsonPart pattern = part.at("pattern");
  pattern.has_only({"String", "Regex"});
  const JsonPart literal = pattern.maybe("String");
  const Behavior behavior = behavior_of(part.at("behavior"));
  const Sense sense = part.boolean_or("invert", false) ? Sense::kPieces : Sense::kSeparators;
  if (literal.is_null()) {
    const JsonPart regex = pattern.at("Regex");
    return std::make_unique<Split>(regex_of(regex, regex.text()), behavior, sense);
  }
  if (literal.text().empty()) literal.fail("is empty", "a text to split at");
  return std::make_unique<Split>(regex_of(literal, literal_pattern(literal.text())), behavior, sense);
}

std::unique_ptr<PreTokenizer> make_metaspace(const JsonPart& part) {
  part.has_only({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const JsonPart scheme = part.maybe("prepend_scheme");
  Metaspace::Prepend prepend = Metaspace::Prepend::kAlways;
  if (!scheme.is_null()) {
    if (scheme.text() == "first") {
      prepend = Metaspace::Prepend::kFirst;
    } else if (scheme.text() == "never") {
      prepend = Metaspace::Prepend::kNever;
    } else if (scheme.text() != "always") {
      scheme.fail("is a scheme that is not understood", "always, first or never");
    }
  }
  if (!part.boolean_or("add_prefix_space", true) && prepend != Metaspace::Prepend::kNever) {
    part.at("add_prefix_space").fail("contradicts prepend_scheme", "prepend_scheme: never beside it");
  }
  const std::string& replacement = part.at("replacement").text();
  if (replacement.empty() || sequence_bytes(replacement.front()) != replacement.size()) {
    part.at("replacement").fail("is not one character", "one character");
  }
  const auto cut = part.boolean_or("split", true) ? Metaspace::Cut::kWords : Metaspace::Cut::kNowhere;
  return std::make_unique<Metaspace>(replacement, prepend, cut);
}

void add_byte_level(const JsonPart& part, PreTokenizerSteps& result) {
  part.has_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (part.boolean_or("add_prefix_space", true)) result.steps.push_back(std::make_unique<PrefixSpace>());
  if (part.boolean_or("use_regex", true)) {
    result.steps.push_back(
        std::make_unique<Split>(regex_of(part, kGpt2Pattern), Behavior::kIsolated, Sense::kSeparators));
  }
  result.alphabet = Alphabet::kBytes;
}

void add_steps(const JsonPart& part, PreTokenizerSteps& result) {
  const JsonPart type = part.at("type");
  const std::string& name = type.text();
  if (result.alphabet == Alphabet::kBytes) type.fail("stands behind ByteLevel", "ByteLevel as the last step");
  if (name == "Sequence") {
    part.has_only({"type", "pretokenizers"});
    for (const JsonPart& step : part.at("pretokenizers").items()) add_steps(step, result);
  } else if (name == "ByteLevel") {
    add_byte_level(part, result);
  } else if (name == "Split") {
    result.steps.push_back(make_split(part));
  } else if (name == "Digits") {
    part.has_only({"type", "individual_digits"});
    const Behavior behavior = part.boolean_or("individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous;
    result.steps.push_back(std::make_unique<Split>(Regex("\\p{N}"), behavior, Sense::kSeparators));
  } else if (name == "Metaspace") {
    result.steps.push_back(make_metaspace(part));
  } else {
    type.fail("is a pre-tokenizer that is not understood", "ByteLevel, Split, Digits, Metaspace or Sequence");
  }
}

}  // namespace

PreTokenizerSteps make_pre_tokenizer(const JsonPart& part) {
  PreTokenizerSteps result;
  if (!part.is_null()) add_steps(part, result);
  return result;
}

}  // namespace primus::data
