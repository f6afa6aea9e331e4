#include "cli/data_common.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/arguments.hpp"
#include "config/key_table.hpp"
#include "config/tokenizer_facts.hpp"

namespace primus::cli {
namespace {

/// The type that goes with the files when the user names none.
std::string type_for(const data::TokenizerOptions& options) {
  if (!options.vocab_file.empty()) return "GPT2BPETokenizer";
  if (options.model.empty()) return "ByteTokenizer";
  return options.model.ends_with(".model") ? "SentencePieceTokenizer" : "HuggingFaceTokenizer";
}

// Tokenizers that an experiment may name and that turn no text into tokens yet are planned, not misspelt.
void check_type(const std::string& type) {
  if (type == "ByteTokenizer" || type == "NullTokenizer" || config::has_tokenizer_files(type)) return;
  const std::vector<std::string> known = split(config::find_key("tokenizer_type")->allowed, '|');
  const std::vector<std::string_view> views(known.begin(), known.end());
  const bool is_planned = std::find(known.begin(), known.end(), type) != known.end();
  const auto nearest = is_planned ? std::nullopt : nearest_name(type, views);
  throw ConfigError(
      {{.file = "command line",
        .key = "--tokenizer-type",
        .message = is_planned ? "this tokenizer is planned for a later release" : "there is no such tokenizer",
        .expected = "ByteTokenizer, NullTokenizer, HuggingFaceTokenizer, GPT2BPETokenizer, SentencePieceTokenizer or "
                    "TikTokenizer",
        .found = type,
        .nearest = nearest ? fmt::format("did you mean '{}'?", *nearest) : ""}});
}

}  // namespace

void add_tokenizer_options(CLI::App& app, TokenizerWords& words) {
  data::TokenizerOptions& options = words.options;
  app.add_option("--tokenizer-type", options.type, "Tokenizer; without it, what the files below are, or ByteTokenizer")
      ->type_name("NAME");
  app.add_option("--tokenizer-model", options.model, "Its tokenizer.json or .model, or the folder of one")
      ->type_name("PATH");
  app.add_option("--vocab-file", options.vocab_file, "GPT-2's vocab.json, beside --merge-file")->type_name("FILE");
  app.add_option("--merge-file", options.merge_file, "GPT-2's merges.txt")->type_name("FILE");
  app.add_option("--vocab-size", options.vocab_size, "Ids of a NullTokenizer or a TikTokenizer")->type_name("N");
  app.add_option("--special-tokens", options.special_tokens,
                 "Further special tokens of a tokenizer.json; all of a TikTokenizer")
      ->type_name("TOKEN");
  app.add_option("--tiktoken-pattern", options.pattern, "Splitting pattern of a TikTokenizer: v1 or v2 (default)")
      ->check([](const std::string& text) { return text == "v1" || text == "v2" ? "" : "expected v1 or v2"; })
      ->type_name("NAME");
  app.add_option("--special-ids", options.num_special_tokens, "First ids of a TikTokenizer, which no text becomes")
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--no-special-tokens", words.no_special_tokens,
               "Without the tokens that a tokenizer.json puts around a text");
}

data::TokenizerOptions tokenizer_options(const TokenizerWords& words) {
  data::TokenizerOptions options = words.options;
  if (options.type.empty()) options.type = type_for(options);
  check_type(options.type);
  if (words.no_special_tokens) options.around_text = data::TokenizerOptions::AroundText::kLeftOut;
  return options;
}

void add_document_options(CLI::App& app, DocumentWords& words) {
  app.add_option("--input", words.inputs, "Files (.gz and .zst too), folders of them, or - for standard input")
      ->required()
      ->type_name("PATH");
  add_choice(app, "--documents", words.kind, "A document is a file, a line, a line's JSON; auto: by the ending",
             {"auto", "file", "line", "json"});
  app.add_option("--json-key", words.json_key, "Member of a JSON line that holds the text")
      ->type_name("KEY")
      ->capture_default_str();
}

data::DocumentKind document_kind(const DocumentWords& words) {
  if (words.kind == "file") return data::DocumentKind::kWholeFile;
  if (words.kind == "line") return data::DocumentKind::kLines;
  return words.kind == "json" ? data::DocumentKind::kJsonLines : data::DocumentKind::kByEnding;
}

void check_prefix(const std::string& option, const std::string& prefix) {
  if (prefix.empty() || !(prefix.ends_with('/') || std::filesystem::is_directory(prefix))) return;
  throw ConfigError({{.file = "command line",
                      .key = option,
                      .message = "names a folder",
                      .expected = "folder and beginning of the file names",
                      .found = fmt::format("'{}'", prefix),
                      .nearest = fmt::format("for instance {}{}train", prefix, prefix.ends_with('/') ? "" : "/")}});
}

}  // namespace primus::cli
