#include "config/tokenizer_facts.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "base/error.hpp"
#include "base/files.hpp"
#include "config/sentencepiece_facts.hpp"

namespace primus::config {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::array<std::string_view, 14> kTypesWithFiles = {
    "TikTokenizer",           "HuggingFaceTokenizer",     "DeepSeekV2Tokenizer", "DeepSeekV3Tokenizer",
    "DeepSeekV4Tokenizer",    "KimiK2Tokenizer",          "MixtralTokenizer",    "Llama2Tokenizer",
    "Llama3Tokenizer",        "Llama4Tokenizer",          "Lfm2Tokenizer",       "GPT2BPETokenizer",
    "SentencePieceTokenizer", "GPTSentencePieceTokenizer"};

// Tokens that end a document in files that have no tokenizer_config.json beside them.
constexpr std::array<std::string_view, 5> kUsualEnds = {"<|endoftext|>", "</s>", "<|end_of_text|>",
                                                        "<｜end▁of▁sentence｜>", "<eos>"};

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

[[noreturn]] void fail(const std::string& path, std::string message, std::string expected = "") {
  throw ConfigError({{.file = path, .message = std::move(message), .expected = std::move(expected)}});
}

/// Depth of brackets; the JSON library would accept any, and what reads its result recursively would not.
std::size_t depth_of(std::string_view text) {
  std::size_t depth = 0;
  std::size_t deepest = 0;
  enum class Place { kOutside, kInText } place = Place::kOutside;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (place == Place::kInText) {
      if (c == '\\') ++i;
      if (c == '"') place = Place::kOutside;
    } else if (c == '"') {
      place = Place::kInText;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

Json read_json(const std::string& path) {
  constexpr std::size_t kDeepest = 100;
  const std::string content = read_file(path);
  if (depth_of(content) > kDeepest) fail(path, "is nested more than 100 levels deep");
  try {
    return Json::parse(content);
  } catch (const Json::exception& error) {
    fail(path, fmt::format("is no JSON: {}", error.what()));
  }
}

/// A file beside the tokenizer; null if there is none.
Json read_beside(const TokenizerFiles& files, const char* name) {
  if (files.folder.empty() || !is_file(fs::path(files.folder) / name)) return {};
  return read_json((fs::path(files.folder) / name).string());
}

/// The text of a special token, given as such or as an object.
std::optional<std::string> token_text(const Json& config, const char* key) {
  if (!config.is_object() || !config.contains(key)) return std::nullopt;
  const Json& value = config[key];
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return std::nullopt;
}

/// An id, or the first of a list of ids.
std::optional<std::int64_t> token_id(const Json& config, const char* key) {
  if (!config.is_object() || !config.contains(key)) return std::nullopt;
  const Json& value = config[key];
  if (value.is_number_unsigned()) return value.get<std::int64_t>();
  if (value.is_array() && !value.empty() && value.front().is_number_unsigned()) {
    return value.front().get<std::int64_t>();
  }
  return std::nullopt;
}

/// Tokens and ids of a tokenizer.json or a vocab.json.
struct Vocabulary {
  std::map<std::string, std::int64_t, std::less<>> ids;
  std::int64_t size = 0;

  void add(const std::string& token, const Json& id, const std::string& path) {
    constexpr std::uint64_t kLargest = 0x7FFFFFFF;
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kLargest) {
      fail(path, fmt::format("gives the token '{}' no id", token), "0 to 2147483646");
    }
    ids[token] = id.get<std::int64_t>();
    size = std::max(size, id.get<std::int64_t>() + 1);
  }

  std::optional<std::int64_t> find(std::string_view token) const {
    const auto found = ids.find(token);
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  }
};

Vocabulary read_vocabulary(const TokenizerFiles& files) {
  const Json json = read_json(files.model);
  Vocabulary vocabulary;
  const Json* words = &json;
  if (files.kind == TokenizerKind::kHuggingFace) {
    if (!json.is_object() || !json.contains("model") || !json["model"].is_object() ||
        !json["model"].contains("vocab")) {
      fail(files.model, "has no model.vocab", "a tokenizer.json of the tokenizers package");
    }
    words = &json["model"]["vocab"];
  }
  if (!words->is_object()) fail(files.model, "has a vocabulary that is no object", "tokens and their ids");
  for (const auto& [token, id] : words->items()) vocabulary.add(token, id, files.model);
  if (files.kind != TokenizerKind::kHuggingFace || !json.contains("added_tokens")) return vocabulary;
  const Json& added = json["added_tokens"];
  if (added.is_null()) return vocabulary;
  if (!added.is_array()) fail(files.model, "has added_tokens that are no list");
  for (const Json& token : added) {
    if (!token.is_object() || !token.contains("content") || !token["content"].is_string() || !token.contains("id")) {
      fail(files.model, "has an added token without id or content");
    }
    vocabulary.add(token["content"].get<std::string>(), token["id"], files.model);
  }
  return vocabulary;
}

std::optional<std::int64_t> find_end(const TokenizerFiles& files, const Vocabulary& vocabulary, const Json& config) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (const auto text = token_text(read_beside(files, name), "eos_token")) {
      if (const auto id = vocabulary.find(*text)) return id;
    }
  }
  if (const auto id = token_id(config, "eos_token_id")) return id;
  for (const std::string_view usual : kUsualEnds) {
    if (const auto id = vocabulary.find(usual)) return id;
  }
  return std::nullopt;
}

TokenizerFiles in_folder(const fs::path& folder) {
  TokenizerFiles files;
  files.folder = folder.string();
  if (is_file(folder / "tokenizer.json")) {
    files.kind = TokenizerKind::kHuggingFace;
    files.model = (folder / "tokenizer.json").string();
  } else if (is_file(folder / "tokenizer.model")) {
    files.kind = TokenizerKind::kSentencePiece;
    files.model = (folder / "tokenizer.model").string();
  } else if (is_file(folder / "vocab.json") && is_file(folder / "merges.txt")) {
    files.kind = TokenizerKind::kGpt2;
    files.model = (folder / "vocab.json").string();
    files.merges = (folder / "merges.txt").string();
  } else {
    throw ConfigError({{.file = folder.string(),
                        .key = "tokenizer_model",
                        .message = "holds no tokenizer",
                        .expected = "tokenizer.json, tokenizer.model, or vocab.json and merges.txt"}});
  }
  return files;
}

constexpr std::array<const char*, 7> kTikTokenSpecial = {"<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"};

[[noreturn]] void refuse_special(const std::string& message, const std::string& expected, const std::string& found) {
  throw ConfigError({{.key = "tiktoken_special_tokens", .message = message, .expected = expected, .found = found}});
}

}  // namespace

std::vector<std::string> tiktoken_special_tokens(const TokenizerExtras& extras) {
  std::vector<std::string> names = extras.special_tokens;
  if (names.empty()) names.assign(kTikTokenSpecial.begin(), kTikTokenSpecial.end());
  std::set<std::string_view> different(names.begin(), names.end());
  if (different.size() != names.size()) refuse_special("holds a name twice", "names that differ", "");
  for (const char* needed : {"<unk>", "<s>", "</s>"}) {
    if (!different.contains(needed)) refuse_special("lacks a token that the tokenizer needs", needed, "");
  }
  if (std::ssize(names) > extras.num_special_tokens || extras.num_special_tokens >= tiktoken_vocab_size(extras)) {
    refuse_special("does not fit",
                   fmt::format("at most tiktoken_num_special_tokens ({}), which is below vocab_size ({})",
                               extras.num_special_tokens, tiktoken_vocab_size(extras)),
                   std::to_string(names.size()));
  }
  for (std::int64_t id = std::ssize(names); id < extras.num_special_tokens; ++id)
    names.push_back(fmt::format("<SPECIAL_{}>", id));
  return names;
}

std::int64_t tiktoken_vocab_size(const TokenizerExtras& extras) {
  constexpr std::int64_t kUsual = std::int64_t{1} << 17;
  return extras.vocab_size > 0 ? extras.vocab_size : kUsual;
}

bool has_tokenizer_files(std::string_view type) {
  return std::find(kTypesWithFiles.begin(), kTypesWithFiles.end(), type) != kTypesWithFiles.end();
}

namespace {

TokenizerFiles files_of(const TokenizerNames& names) {
  if (!names.vocab_file.empty() && !names.merge_file.empty()) {
    for (const std::string& path : {names.vocab_file, names.merge_file}) {
      if (!is_file(path)) fail(path, "does not exist", "a file of a GPT-2 tokenizer");
    }
    return {TokenizerKind::kGpt2, names.vocab_file, names.merge_file,
            fs::path(names.vocab_file).parent_path().string()};
  }
  const fs::path model(names.model);
  std::error_code ignored;
  if (names.model.empty()) return {};
  if (fs::is_directory(model, ignored)) return in_folder(model);
  if (is_file(model)) {
    const auto kind = model.extension() == ".json" ? TokenizerKind::kHuggingFace : TokenizerKind::kSentencePiece;
    const fs::path folder = model.parent_path();
    return {kind, names.model, "", folder.empty() ? "." : folder.string()};
  }
  if (model.extension() == ".json" || model.extension() == ".model") {
    throw ConfigError({{.file = names.model, .key = "tokenizer_model", .message = "does not exist"}});
  }
  return {};
}

/// Megatron's list of tokens: one file.
TokenizerFiles tiktoken_file(const TokenizerNames& names) {
  if (names.model.empty()) return {};
  if (!is_file(names.model)) fail(names.model, "does not exist", "the .json file of a TikTokenizer");
  return {TokenizerKind::kTikToken, names.model, "", ""};
}

}  // namespace

TokenizerFiles find_tokenizer_files(const TokenizerNames& names) {
  if (!has_tokenizer_files(names.type)) return {};
  TokenizerFiles files = names.type == "TikTokenizer" ? tiktoken_file(names) : files_of(names);
  files.extras = names.extras;
  return files;
}

TokenizerFacts read_tokenizer_facts(const TokenizerFiles& files) {
  PRIMUS_CHECK(files.kind != TokenizerKind::kNone);
  if (files.kind == TokenizerKind::kTikToken) {
    const std::vector<std::string> special = tiktoken_special_tokens(files.extras);
    return {tiktoken_vocab_size(files.extras), std::ranges::find(special, "</s>") - special.begin()};
  }
  if (files.kind == TokenizerKind::kSentencePiece) {
    const SentencePieceFacts facts = read_sentencepiece_facts(read_file(files.model), files.model);
    return {facts.num_pieces, facts.eos};
  }
  const Vocabulary vocabulary = read_vocabulary(files);
  const Json config = read_beside(files, "config.json");
  TokenizerFacts facts{vocabulary.size, find_end(files, vocabulary, config)};
  for (const std::string& token : files.extras.special_tokens) {
    if (!vocabulary.find(token)) facts.added.emplace_back(token, facts.vocab_size++);
  }
  // A model's embedding may have more rows than its tokenizer has tokens: the folder's config.json wins.
  if (config.is_object() && config.contains("vocab_size") && config["vocab_size"].is_number_unsigned()) {
    facts.vocab_size = std::max(facts.vocab_size, config["vocab_size"].get<std::int64_t>());
  }
  return facts;
}

}  // namespace primus::config
