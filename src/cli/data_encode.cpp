// `data encode` and `data decode`: what a tokenizer makes of a text, and back.
#include <fmt/format.h>

#include <charconv>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"
#include "cli/app.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/config_common.hpp"
#include "cli/data_common.hpp"
#include "data/byte_source.hpp"
#include "data/tokenizers/make_tokenizer.hpp"

namespace primus::cli {
namespace {

/// Where the text, or the ids, come from.
struct SourceWords {
  std::vector<std::string> words;
  std::string input;
};

std::string read_all(const std::string& path) {
  constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
  const auto source = data::open_source(path);
  std::string text;
  while (true) {
    const std::size_t before = text.size();
    text.resize(before + kBlockBytes);
    const std::size_t got = source->read(std::span(text).subspan(before));
    text.resize(before + got);
    if (got == 0) return text;
  }
}

/// The words with a space between, or the file's content.
std::string content_of(const SourceWords& source, std::string_view what) {
  if (source.words.empty() == source.input.empty()) {
    throw ConfigError(
        {{.file = "command line",
          .message = source.input.empty() ? fmt::format("no {} is given", what) : fmt::format("gives {} twice", what),
          .expected = fmt::format("the {} itself, or --input FILE", what)}});
  }
  return source.input.empty() ? fmt::format("{}", fmt::join(source.words, " ")) : read_all(source.input);
}

struct EncodeWords {
  TokenizerWords tokenizer;
  SourceWords source;
  bool offsets = false;
  std::string format = "text";
};

void add_encode_options(CLI::App& app, EncodeWords& read) {
  app.add_option("text", read.source.words, "The text")->type_name("TEXT");
  app.add_option("--input", read.source.input, "A file of text instead; -: standard input")->type_name("FILE");
  add_tokenizer_options(app, read.tokenizer);
  app.add_flag("--offsets", read.offsets, "The bytes and the text of each id, one a line");
  add_format_option(app, read.format, {"text", "json"});
}

void print_offsets(const std::string& text, const std::vector<std::int64_t>& ids,
                   const std::vector<data::TextRange>& offsets) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto [begin, end] = offsets[i];
    const std::string part = text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    fmt::print("{:>8} {:>8}..{:<8} '{}'\n", ids[i], begin, end, visible(part));
  }
}

int run_encode(std::span<const std::string> words, const LaunchOptions& launch) {
  EncodeWords read;
  CLI::App app("The token ids of a text.", "primus-cli data encode");
  add_encode_options(app, read);
  app.footer(
      "example\n  primus-cli data encode --tokenizer-model my_tokenizer --offsets 'a text of some words'\n"
      "  primus-cli data encode --tokenizer-model my_tokenizer --input README.md --format json");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const auto tokenizer = data::make_tokenizer(tokenizer_options(read.tokenizer));
  const std::string text = content_of(read.source, "text");
  std::vector<std::int64_t> ids;
  std::vector<data::TextRange> offsets;
  if (read.offsets) {
    tokenizer->encode_with_offsets(text, ids, offsets);
  } else {
    tokenizer->encode(text, ids);
  }
  if (launch.format == Format::kJson) {
    Json json = {{"ok", true}, {"bytes", text.size()}, {"ids", ids}};
    if (read.offsets) {
      Json pairs = Json::array();
      for (const auto& [begin, end] : offsets) pairs.push_back({begin, end});
      json["offsets"] = std::move(pairs);
    }
    print_json(json);
  } else if (read.offsets) {
    print_offsets(text, ids, offsets);
  } else {
    fmt::print("{}\n", fmt::join(ids, " "));
  }
  return 0;
}

struct DecodeWords {
  TokenizerWords tokenizer;
  SourceWords source;
  std::string format = "text";
};

void add_decode_options(CLI::App& app, DecodeWords& read) {
  app.add_option("id", read.source.words, "The ids")->type_name("ID");
  app.add_option("--input", read.source.input, "A file of ids instead; -: standard input")->type_name("FILE");
  add_tokenizer_options(app, read.tokenizer);
  add_format_option(app, read.format, {"text", "json"});
}

/// Ids between spaces, commas, brackets and line ends.
std::vector<std::int64_t> ids_of(std::string_view text) {
  constexpr std::string_view kBetween = " ,[]\t\r\n";
  std::vector<std::int64_t> ids;
  for (std::size_t begin = text.find_first_not_of(kBetween); begin != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBetween, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    std::int64_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc{} || stop != word.data() + word.size()) {
      throw ConfigError(
          {{.file = "command line", .message = "is no id", .expected = "integers", .found = std::string(word)}});
    }
    ids.push_back(id);
    begin = text.find_first_not_of(kBetween, end);
  }
  return ids;
}

int run_decode(std::span<const std::string> words, const LaunchOptions& launch) {
  DecodeWords read;
  CLI::App app("The text of token ids; end-of-document tokens have none.", "primus-cli data decode");
  add_decode_options(app, read);
  app.footer("example\n  primus-cli data decode --tokenizer-model my_tokenizer 312 87 4011");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const auto tokenizer = data::make_tokenizer(tokenizer_options(read.tokenizer));
  const std::string text = tokenizer->decode(ids_of(content_of(read.source, "ids")));
  if (launch.format == Format::kJson) {
    print_json({{"ok", true}, {"text", text}});
  } else {
    fmt::print("{}\n", text);
  }
  return 0;
}

}  // namespace

const Command kDataEncode = {"data",
                             "encode",
                             "[--tokenizer-model PATH] TEXT",
                             "token ids of a text",
                             Starts::kNothing,
                             Rest::kRefuse,
                             "",
                             [](CLI::App& app) {
                               static EncodeWords unused;
                               add_encode_options(app, unused);
                             },
                             run_encode};

const Command kDataDecode = {"data",
                             "decode",
                             "[--tokenizer-model PATH] ID...",
                             "text of token ids",
                             Starts::kNothing,
                             Rest::kRefuse,
                             "",
                             [](CLI::App& app) {
                               static DecodeWords unused;
                               add_decode_options(app, unused);
                             },
                             run_decode};

}  // namespace primus::cli
