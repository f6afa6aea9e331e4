#include "data/tokenizers/tiktoken_file.hpp"

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.hpp"
#include "base/files.hpp"
#include "data/tokenizers/byte_alphabet.hpp"

namespace primus::data {
namespace {

using Json = nlohmann::json;

// Megatron's patterns of these names.
constexpr const char* kFirstPattern =
    R"([^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kSecondPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

[[noreturn]] void fail(const std::string& file, std::string message, std::string expected = "") {
  throw ConfigError({{.file = file, .message = std::move(message), .expected = std::move(expected)}});
}

/// Nothing for text that is no base64 with its padding.
std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  std::uint32_t held = 0;
  int num_bits = 0;
  for (const char c : text) {
    const std::size_t value = kLetters.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    held = held << 6 | static_cast<std::uint32_t>(value);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(held >> num_bits & 0xFFU);
  }
  return bytes;
}

/// The byte sequences by rank, not more than `most`.
std::vector<std::string> read_tokens(const std::string& file, std::size_t most) {
  constexpr std::size_t kNumBytes = 256;
  constexpr std::size_t kLongest = 512;  // of the published vocabularies the longest token has 128 bytes
  const Json list = Json::parse(read_file(file), nullptr, false);
  if (!list.is_array()) fail(file, "is no list of tokens", "[{\"rank\": 0, \"token_bytes\": \"AA==\", ...}, ...]");
  std::vector<std::string> tokens;
  std::unordered_set<std::string_view> different;
  for (const Json& entry : list) {
    const std::size_t rank = tokens.size();
    if (rank == most) break;
    const bool is_entry = entry.is_object() && entry.contains("rank") && entry.contains("token_bytes") &&
                          entry["token_bytes"].is_string() && entry["rank"] == rank;
    const auto bytes = is_entry ? from_base64(entry["token_bytes"].get<std::string>()) : std::nullopt;
    if (!bytes || bytes->empty() || bytes->size() > kLongest ||
        (rank < kNumBytes && *bytes != std::string(1, static_cast<char>(rank)))) {
      fail(file, fmt::format("entry {} is no token of that rank", rank), "the 256 bytes, then longer tokens");
    }
    tokens.push_back(*bytes);
  }
  if (tokens.size() < kNumBytes) fail(file, "has too few tokens", "at least the 256 bytes");
  for (const std::string& token : tokens) {
    if (!different.insert(token).second) fail(file, "has a token twice");
  }
  return tokens;
}

std::string shown(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += byte_character(static_cast<unsigned char>(c));
  return text;
}

/// Every way to put a token together from two others.
Json merges_of(const std::vector<std::string>& tokens) {
  const std::unordered_set<std::string_view> known(tokens.begin(), tokens.end());
  Json merges = Json::array();
  for (const std::string& token : tokens) {
    const std::string_view whole = token;
    for (std::size_t cut = 1; cut < whole.size(); ++cut) {
      if (known.contains(whole.substr(0, cut)) && known.contains(whole.substr(cut)))
        merges.push_back({shown(whole.substr(0, cut)), shown(whole.substr(cut))});
    }
  }
  return merges;
}

}  // namespace

Json tiktoken_json(const config::TokenizerFiles& files) {
  const config::TokenizerExtras& extras = files.extras;
  const std::vector<std::string> special = config::tiktoken_special_tokens(extras);
  const std::int64_t room = config::tiktoken_vocab_size(extras) - extras.num_special_tokens;
  const std::vector<std::string> tokens = read_tokens(files.model, static_cast<std::size_t>(room));
  Json vocabulary = Json::object();
  for (const std::string& token : tokens) vocabulary[shown(token)] = vocabulary.size() + special.size();
  for (std::size_t id = 0; id < special.size(); ++id) {
    if (!vocabulary.emplace(special[id], id).second)
      fail(files.model, fmt::format("has the special token '{}' as text", special[id]));
  }
  const char* pattern = extras.pattern == "v1" ? kFirstPattern : kSecondPattern;
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"}, {"ignore_merges", true}, {"vocab", std::move(vocabulary)}, {"merges", merges_of(tokens)}}}};
}

}  // namespace primus::data
