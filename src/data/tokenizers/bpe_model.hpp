#pragma once
// Byte-pair encoding: a word's characters, joined pair by pair in the order in which the pairs were learnt.
#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/tokenizers/pre_tokenizers.hpp"

namespace primus::data {

/// What a model is made of.
struct BpeDescription {
  std::vector<std::pair<std::string, std::int64_t>> vocabulary;   // token and id
  std::vector<std::pair<std::string, std::string>> merges;        // best first
  enum class Rank { kByPlace, kByResult } rank = Rank::kByPlace;  // what is best: an early merge, or a low id
  Alphabet alphabet = Alphabet::kCharacters;
  std::string unknown_token;                                         // "": characters without a token are passed over
  enum class Fuse { kNo, kYes } fuse_unknown = Fuse::kNo;            // neighbouring unknown characters are one token
  enum class Fallback { kNone, kBytes } fallback = Fallback::kNone;  // <0xNN> for the bytes of an unknown character
  enum class Whole { kMerged, kLookedUp } whole = Whole::kMerged;    // a word that is a token needs no merges
};

/// Thrown by the constructor: what is wrong with the description.
class BadVocabulary : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A model. Safe to use from several threads, each with its own workspace.
class BpeModel {
 public:
  static constexpr std::int64_t kLargestId = (std::int64_t{1} << 31) - 1;

  /// What encoding needs besides the model: buffers, and the words met last with their tokens.
  class Workspace {
   public:
    Workspace();

   private:
    friend class BpeModel;
    // A cache line: most words of a text fit, and a look-up touches nothing else.
    static constexpr std::size_t kWordBytes = 22;
    static constexpr std::size_t kWordTokens = 10;
    struct Entry {
      std::uint8_t num_bytes = 0;  // 0: unused
      std::uint8_t num_tokens = 0;
      std::array<char, kWordBytes> word;
      std::array<std::int32_t, kWordTokens> tokens;
    };
    static_assert(sizeof(Entry) == 64);
    static constexpr std::size_t kNumEntries = std::size_t{1} << 16;

    struct Symbol {
      std::int32_t id;
      std::int32_t num_bytes;
      std::int32_t previous;  // -1: none
      std::int32_t next;      // -1: none
    };
    struct Candidate {
      std::int32_t rank;
      std::int32_t at;
      std::int32_t joined;
    };

    std::vector<Entry> cache_;
    std::vector<Symbol> symbols_;
    std::vector<Candidate> candidates_;
  };

  /// Throws BadVocabulary.
  explicit BpeModel(BpeDescription description);

  /// Append the tokens of a word (bytes of the text, for either alphabet) to `ids`; with `lengths`, the number of the
  /// word's bytes behind each of them too.
  void encode(std::string_view word, Workspace& workspace, std::vector<std::int64_t>& ids,
              std::vector<std::int64_t>* lengths) const;

 private:
  struct Merge {
    std::int32_t rank = -1;  // -1: the two are not joined
    std::int32_t joined = 0;
  };
  class MergeTable {
   public:
    void reserve(std::size_t num_merges);
    void insert(std::int32_t left, std::int32_t right, Merge merge);
    Merge find(std::int32_t left, std::int32_t right) const;

   private:
    struct Slot {
      std::uint64_t pair = ~std::uint64_t{0};
      Merge merge;
    };
    std::size_t first_slot(std::uint64_t pair) const;
    std::vector<Slot> slots_;
    std::size_t mask_ = 0;
  };
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Ids = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

  void add_merges(const BpeDescription& description, const Ids& by_name);
  void add_initial(const BpeDescription& description, const Ids& by_name);
  void split_into_symbols(std::string_view word, Workspace& workspace) const;
  void add_symbol(std::int32_t id, std::size_t num_bytes, Workspace& workspace) const;
  void join_few(Workspace& workspace) const;
  void join_many(Workspace& workspace) const;

  Alphabet alphabet_;
  BpeDescription::Fuse fuse_unknown_;
  BpeDescription::Whole whole_;
  Ids tokens_;                                           // by the text (or bytes) that they stand for
  std::int32_t unknown_ = -1;                            // -1: none
  std::array<std::int32_t, 256> bytes_{};                // the token of a byte; -1: none. kBytes
  std::array<std::vector<std::int32_t>, 256> fallback_;  // kBytes: tokens of the character that shows a byte
  std::array<std::int32_t, 256> byte_tokens_{};          // <0xNN>; -1: none
  bool has_fallback_ = false;
  MergeTable merges_;
};

}  // namespace primus::data
