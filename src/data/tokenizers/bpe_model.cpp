#include "data/tokenizers/bpe_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "data/tokenizers/byte_alphabet.hpp"
#include "data/tokenizers/utf8.hpp"

namespace primus::data {
namespace {

constexpr std::int32_t kNone = -1;
// Up to here a look at every pair is quicker than a heap of them.
constexpr std::size_t kFewSymbols = 48;

std::uint64_t mixed(std::uint64_t value) {
  // The finaliser of SplitMix64: every bit of the input reaches every bit of the output.
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

std::uint64_t hash_of(std::string_view word) {
  std::uint64_t hash = word.size() * 0x9E3779B97F4A7C15;
  std::size_t at = 0;
  for (; at + 8 <= word.size(); at += 8) {
    std::uint64_t part = 0;
    std::memcpy(&part, word.data() + at, 8);
    hash = mixed(hash ^ part);
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, word.data() + at, word.size() - at);
  return mixed(hash ^ rest);
}

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

BpeModel::Workspace::Workspace() : cache_(kNumEntries) {}

void BpeModel::MergeTable::reserve(std::size_t num_merges) {
  std::size_t num_slots = 16;
  while (num_slots < 2 * num_merges) num_slots *= 2;
  slots_.assign(num_slots, Slot());
  mask_ = num_slots - 1;
}

std::size_t BpeModel::MergeTable::first_slot(std::uint64_t pair) const {
  return static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15) >> 20) & mask_;
}

void BpeModel::MergeTable::insert(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t pair = pair_of(left, right);
  std::size_t slot = first_slot(pair);
  while (slots_[slot].merge.rank != kNone && slots_[slot].pair != pair) slot = (slot + 1) & mask_;
  slots_[slot] = {pair, merge};
}

BpeModel::Merge BpeModel::MergeTable::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  std::size_t slot = first_slot(pair);
  while (slots_[slot].merge.rank != kNone && slots_[slot].pair != pair) slot = (slot + 1) & mask_;
  return slots_[slot].merge;
}

BpeModel::BpeModel(BpeDescription description)
    : alphabet_(description.alphabet), fuse_unknown_(description.fuse_unknown), whole_(description.whole) {
  Ids by_name;
  by_name.reserve(description.vocabulary.size());
  for (const auto& [token, id] : description.vocabulary) {
    if (id < 0 || id > kLargestId) throw BadVocabulary(fmt::format("the token '{}' has id {}", token, id));
    by_name.insert_or_assign(token, static_cast<std::int32_t>(id));
  }
  if (!description.unknown_token.empty()) {
    const auto unknown = by_name.find(description.unknown_token);
    if (unknown == by_name.end()) {
      throw BadVocabulary(fmt::format("the unk_token '{}' is not in the vocabulary", description.unknown_token));
    }
    unknown_ = unknown->second;
  }
  add_merges(description, by_name);
  add_initial(description, by_name);
  if (alphabet_ == Alphabet::kCharacters) {
    tokens_ = std::move(by_name);
    return;
  }
  tokens_.reserve(by_name.size());
  for (const auto& [token, id] : by_name) {
    // A token with other characters stands for no bytes, so that no word can become it.
    if (auto bytes = shown_bytes(token)) tokens_.emplace(std::move(*bytes), id);
  }
}

void BpeModel::add_merges(const BpeDescription& description, const Ids& by_name) {
  const auto id_of = [&](const std::string& token) {
    const auto found = by_name.find(token);
    if (found == by_name.end()) throw BadVocabulary(fmt::format("a merge needs '{}', which is no token", token));
    return found->second;
  };
  merges_.reserve(description.merges.size());
  std::int32_t rank = 0;
  for (const auto& [left, right] : description.merges) {
    // A pair that is given twice has the later rank, as in `tokenizers`.
    const std::int32_t joined = id_of(left + right);
    const std::int32_t by_place = rank++;
    merges_.insert(id_of(left), id_of(right),
                   {description.rank == BpeDescription::Rank::kByResult ? joined : by_place, joined});
  }
}

void BpeModel::add_initial(const BpeDescription& description, const Ids& by_name) {
  has_fallback_ = description.fallback == BpeDescription::Fallback::kBytes;
  for (std::size_t byte = 0; byte < bytes_.size(); ++byte) {
    const std::string& character = byte_character(static_cast<unsigned char>(byte));
    const auto shown = by_name.find(character);
    bytes_[byte] = shown == by_name.end() ? kNone : shown->second;
    const auto fallback = by_name.find(fmt::format("<0x{:02X}>", byte));
    byte_tokens_[byte] = fallback == by_name.end() ? kNone : fallback->second;
  }
  if (!has_fallback_) return;
  for (std::size_t byte = 0; byte < bytes_.size(); ++byte) {
    std::vector<std::int32_t> tokens;
    for (const char c : byte_character(static_cast<unsigned char>(byte))) {
      tokens.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
    }
    if (std::find(tokens.begin(), tokens.end(), kNone) == tokens.end()) fallback_[byte] = std::move(tokens);
  }
}

void BpeModel::add_symbol(std::int32_t id, std::size_t num_bytes, Workspace& workspace) const {
  const auto at = static_cast<std::int32_t>(workspace.symbols_.size());
  if (at > 0) workspace.symbols_.back().next = at;
  workspace.symbols_.push_back({id, static_cast<std::int32_t>(num_bytes), at - 1, kNone});
}

void BpeModel::split_into_symbols(std::string_view word, Workspace& workspace) const {
  workspace.symbols_.clear();
  std::size_t num_unknown_bytes = 0;  // of an unknown token that is not written yet
  const auto write_unknown = [&] {
    if (num_unknown_bytes > 0) add_symbol(unknown_, num_unknown_bytes, workspace);
    num_unknown_bytes = 0;
  };
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t num_bytes = alphabet_ == Alphabet::kBytes ? 1 : sequence_bytes(word[at]);
    const std::string_view character = word.substr(at, num_bytes);
    const auto byte = static_cast<unsigned char>(word[at]);
    at += num_bytes;
    std::int32_t id = kNone;
    if (alphabet_ == Alphabet::kBytes) {
      id = bytes_[byte];
    } else if (const auto found = tokens_.find(character); found != tokens_.end()) {
      id = found->second;
    }
    if (id != kNone) {
      write_unknown();
      add_symbol(id, num_bytes, workspace);
      continue;
    }
    if (has_fallback_) {
      // An unknown token in waiting stays behind these, as it does in `tokenizers`.
      if (alphabet_ == Alphabet::kBytes && !fallback_[byte].empty()) {
        // Two tokens stand for the one byte; the first takes it.
        for (std::size_t i = 0; i < fallback_[byte].size(); ++i) {
          add_symbol(fallback_[byte][i], i == 0 ? 1 : 0, workspace);
        }
        continue;
      }
      const auto has_token = [&](char c) { return byte_tokens_[static_cast<unsigned char>(c)] != kNone; };
      if (alphabet_ == Alphabet::kCharacters && std::all_of(character.begin(), character.end(), has_token)) {
        for (const char c : character) add_symbol(byte_tokens_[static_cast<unsigned char>(c)], 1, workspace);
        continue;
      }
    }
    if (unknown_ == kNone) continue;
    if (fuse_unknown_ == BpeDescription::Fuse::kNo) write_unknown();
    num_unknown_bytes += num_bytes;
  }
  write_unknown();
}

void BpeModel::join_few(Workspace& workspace) const {
  auto& symbols = workspace.symbols_;
  std::array<Merge, kFewSymbols> merges;  // of each symbol and the next
  std::size_t num = symbols.size();
  for (std::size_t i = 0; i + 1 < num; ++i) merges[i] = merges_.find(symbols[i].id, symbols[i + 1].id);
  while (num > 1) {
    std::size_t best = num;
    std::uint32_t best_rank = ~std::uint32_t{0};
    for (std::size_t i = 0; i + 1 < num; ++i) {
      // No merge, as an unsigned number, is the largest rank of all.
      const auto rank = static_cast<std::uint32_t>(merges[i].rank);
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best == num) break;
    symbols[best].id = merges[best].joined;
    symbols[best].num_bytes += symbols[best + 1].num_bytes;
    std::move(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              symbols.begin() + static_cast<std::ptrdiff_t>(num),
              symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::move(merges.begin() + best + 2, merges.begin() + num, merges.begin() + best + 1);
    --num;
    if (best + 1 < num) merges[best] = merges_.find(symbols[best].id, symbols[best + 1].id);
    if (best > 0) merges[best - 1] = merges_.find(symbols[best - 1].id, symbols[best].id);
  }
  symbols.resize(num);
}

void BpeModel::join_many(Workspace& workspace) const {
  auto& symbols = workspace.symbols_;
  auto& heap = workspace.candidates_;
  heap.clear();
  using Candidate = Workspace::Candidate;
  const auto is_worse = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto consider = [&](std::int32_t at) {
    const auto& symbol = symbols[static_cast<std::size_t>(at)];
    const Merge merge = merges_.find(symbol.id, symbols[static_cast<std::size_t>(symbol.next)].id);
    if (merge.rank != kNone) heap.push_back({merge.rank, at, merge.joined});
  };
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<std::int32_t>(i));
  std::make_heap(heap.begin(), heap.end(), is_worse);
  std::vector<bool> is_joined(symbols.size(), false);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), is_worse);
    const Candidate candidate = heap.back();
    heap.pop_back();
    auto& left = symbols[static_cast<std::size_t>(candidate.at)];
    if (is_joined[static_cast<std::size_t>(candidate.at)] || left.next == kNone) continue;
    const auto next = static_cast<std::size_t>(left.next);
    auto& right = symbols[next];
    const Merge merge = merges_.find(left.id, right.id);
    // One of the two has been joined to something else since.
    if (merge.rank == kNone || merge.joined != candidate.joined) continue;
    left.id = candidate.joined;
    left.num_bytes += right.num_bytes;
    left.next = right.next;
    is_joined[next] = true;
    if (right.next != kNone) symbols[static_cast<std::size_t>(right.next)].previous = candidate.at;
    const auto push = [&](std::int32_t at) {
      const std::size_t before = heap.size();
      consider(at);
      if (heap.size() != before) std::push_heap(heap.begin(), heap.end(), is_worse);
    };
    if (left.previous != kNone) push(left.previous);
    if (left.next != kNone) push(candidate.at);
  }
  std::size_t num = 0;
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    if (!is_joined[i]) symbols[num++] = symbols[i];
  }
  symbols.resize(num);
}

void BpeModel::encode(std::string_view word, Workspace& workspace, std::vector<std::int64_t>& ids,
                      std::vector<std::int64_t>* lengths) const {
  if (word.empty()) return;
  if (whole_ == BpeDescription::Whole::kLookedUp) {
    if (const auto found = tokens_.find(word); found != tokens_.end()) {
      ids.push_back(found->second);
      if (lengths != nullptr) lengths->push_back(static_cast<std::int64_t>(word.size()));
      return;
    }
  }
  Workspace::Entry* entry = nullptr;
  if (word.size() <= Workspace::kWordBytes && lengths == nullptr) {
    entry = &workspace.cache_[hash_of(word) & (Workspace::kNumEntries - 1)];
    if (entry->num_bytes == word.size() && std::memcmp(entry->word.data(), word.data(), word.size()) == 0) {
      ids.insert(ids.end(), entry->tokens.begin(), entry->tokens.begin() + entry->num_tokens);
      return;
    }
  }
  split_into_symbols(word, workspace);
  if (workspace.symbols_.size() <= kFewSymbols) {
    join_few(workspace);
  } else {
    join_many(workspace);
  }
  for (const auto& symbol : workspace.symbols_) {
    ids.push_back(symbol.id);
    if (lengths != nullptr) lengths->push_back(symbol.num_bytes);
  }
  if (entry == nullptr || workspace.symbols_.size() > Workspace::kWordTokens) return;
  entry->num_bytes = static_cast<std::uint8_t>(word.size());
  entry->num_tokens = static_cast<std::uint8_t>(workspace.symbols_.size());
  std::memcpy(entry->word.data(), word.data(), word.size());
  for (std::size_t i = 0; i < workspace.symbols_.size(); ++i) entry->tokens[i] = workspace.symbols_[i].id;
}

}  // namespace primus::data
