#include "data/tokenizers/make_tokenizer.hpp"

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "config/tokenizer_facts.hpp"
#include "data/tokenizers/hugging_face_tokenizer.hpp"
#include "data/tokenizers/sentencepiece_tokenizer.hpp"
#include "data/tokenizers/tiktoken_file.hpp"

namespace primus::data {
namespace {

using Json = nlohmann::json;

/// The tokenizer.json that stands for GPT-2's two files.
Json gpt2_json(const config::TokenizerFiles& files) {
  Json vocabulary = Json::parse(read_file(files.model));  // has been read once, for the facts
  Json merges = Json::array();
  for (const std::string& line : split(read_file(files.merges), '\n')) {
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
  }
  Json added = Json::array();
  constexpr const char* kEnd = "<|endoftext|>";
  if (vocabulary.contains(kEnd)) added.push_back({{"id", vocabulary[kEnd]}, {"content", kEnd}, {"special", true}});
  return {{"added_tokens", added},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", std::move(merges)}}}};
}

[[noreturn]] void refuse_type(const std::string& type) {
  constexpr std::array<std::string_view, 6> kTypes = {"ByteTokenizer",          "NullTokenizer",
                                                      "HuggingFaceTokenizer",   "GPT2BPETokenizer",
                                                      "SentencePieceTokenizer", "TikTokenizer"};
  Problem problem{.key = "tokenizer_type", .message = "there is no such tokenizer", .found = type};
  problem.expected = fmt::format("one of {}", fmt::join(kTypes, ", "));
  if (const auto near = nearest_name(type, kTypes)) problem.nearest = fmt::format("did you mean '{}'?", *near);
  throw ConfigError({problem});
}

Json json_of(const config::TokenizerFiles& files, const config::TokenizerFacts& facts) {
  if (files.kind == config::TokenizerKind::kTikToken) return tiktoken_json(files);
  Json json = files.kind == config::TokenizerKind::kGpt2 ? gpt2_json(files) : Json::parse(read_file(files.model));
  for (const auto& [token, id] : facts.added)
    json["added_tokens"].push_back({{"id", id}, {"content", token}, {"special", true}, {"normalized", false}});
  return json;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options) {
  if (options.type == "ByteTokenizer" || options.type == "NullTokenizer") return make_plain_tokenizer(options);
  if (!config::has_tokenizer_files(options.type)) refuse_type(options.type);
  const config::TokenizerFiles files = config::find_tokenizer_files({options.type,
                                                                     options.model,
                                                                     options.vocab_file,
                                                                     options.merge_file,
                                                                     {.special_tokens = options.special_tokens,
                                                                      .num_special_tokens = options.num_special_tokens,
                                                                      .pattern = options.pattern,
                                                                      .vocab_size = options.vocab_size}});
  if (files.kind == config::TokenizerKind::kNone) {
    throw ConfigError({{.key = "tokenizer_model",
                        .message = options.model.empty() ? fmt::format("{} needs the tokenizer's files", options.type)
                                                         : "is not on this machine, and nothing is fetched from a hub",
                        .expected = "a tokenizer.json, a sentencepiece .model, or a folder that holds one",
                        .found = options.model}});
  }
  if (files.kind == config::TokenizerKind::kSentencePiece) {
    return std::make_unique<SentencePieceTokenizer>(files.model, options.type);
  }
  const config::TokenizerFacts facts = config::read_tokenizer_facts(files);
  HuggingFaceTokenizer::Setting setting{.name = options.type,
                                        .vocab_size = facts.vocab_size,
                                        .eod = facts.eod.value_or(kNoEod),
                                        .around_text = options.around_text};
  if (files.kind == config::TokenizerKind::kTikToken) setting.rank = BpeDescription::Rank::kByResult;
  return std::make_unique<HuggingFaceTokenizer>(json_of(files, facts), files.model, std::move(setting));
}

}  // namespace primus::data
