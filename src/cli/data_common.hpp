#pragma once
// Options that the data commands share.
#include <string>
#include <string_view>

#include "data/document_reader.hpp"
#include "data/tokenizer.hpp"

namespace CLI {
class App;
}

namespace primus::cli {

/// What the user wrote about the tokenizer.
struct TokenizerWords {
  data::TokenizerOptions options{.type = ""};
  bool no_special_tokens = false;
};

void add_tokenizer_options(CLI::App& app, TokenizerWords& words);

/// The options with the type that the files call for where none is given. Throws ConfigError for a type that is planned
/// or does not exist.
data::TokenizerOptions tokenizer_options(const TokenizerWords& words);

/// What the user wrote about the texts to read.
struct DocumentWords {
  std::vector<std::string> inputs;
  std::string kind = "auto";
  std::string json_key = "text";
};

void add_document_options(CLI::App& app, DocumentWords& words);
data::DocumentKind document_kind(const DocumentWords& words);

/// Throws ConfigError for a prefix such as "data/", which names a folder: the files would be data/_text_document.bin.
void check_prefix(const std::string& option, const std::string& prefix);

}  // namespace primus::cli
