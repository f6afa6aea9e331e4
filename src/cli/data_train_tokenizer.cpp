#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/config_common.hpp"
#include "cli/data_common.hpp"
#include "cli/terminal.hpp"
#include "data/train_tokenizer.hpp"

namespace primus::cli {
namespace {

struct TrainTokenizerWords {
  data::TrainTokenizerOptions options;
  DocumentWords documents;
  std::string format = "text";
};

void add_options(CLI::App& app, TrainTokenizerWords& read) {
  data::TrainTokenizerOptions& options = read.options;
  add_document_options(app, read.documents);
  app.add_option("--output", options.output, "Folder for tokenizer.json and tokenizer_config.json")
      ->required()
      ->type_name("FOLDER");
  app.add_option("--vocab-size", options.vocab_size, "Tokens: 256 bytes, merges and special tokens")
      ->required()
      ->type_name("N");
  app.add_option("--pattern", options.pattern, "Cuts words: gpt2, llama3, qwen, deepseek3, or an expression")
      ->capture_default_str()
      ->type_name("P");
  app.add_option("--normalizer", options.normalizer, "none, NFC or NFKC")->capture_default_str()->type_name("NAME");
  app.add_option("--special-tokens", options.special_tokens, "Special tokens; the first ends a document")
      ->capture_default_str()
      ->type_name("TEXT");
  app.add_option("--min-frequency", options.least_count, "Pairs that are rarer become no token")
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--workers", options.num_threads, "Threads; 0: one a core")->capture_default_str()->type_name("N");
  add_format_option(app, read.format, {"text", "json"});
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  TrainTokenizerWords read;
  CLI::App app("Learn a byte-level BPE vocabulary and write it as a tokenizer.json.",
               "primus-cli data train-tokenizer");
  add_options(app, read);
  app.footer(
      "example\n  primus-cli data train-tokenizer --input corpus.jsonl --vocab-size 32000 --output my_tokenizer\n"
      "  primus-cli data prepare --input corpus.jsonl --tokenizer-model my_tokenizer --output-prefix train");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  data::TrainTokenizerOptions& options = read.options;
  options.inputs = read.documents.inputs;
  options.documents = document_kind(read.documents);
  options.json_key = read.documents.json_key;
  data::TrainTokenizerSummary summary;
  {
    ProgressBar reading("read");
    ProgressBar learning("learn", Unit::kThings);
    summary = data::train_tokenizer(
        options, {.reading = [&](std::int64_t done, std::int64_t all) { reading.show(done, all); },
                  .learning = [&](std::int64_t done, std::int64_t all) { learning.show(done, all); }});
  }
  if (launch.format == Format::kJson) {
    print_json({{"ok", true},
                {"vocab_size", summary.vocab_size},
                {"merges", summary.num_merges},
                {"bytes", summary.num_text_bytes},
                {"words", summary.num_words},
                {"forgotten_words", summary.num_forgotten},
                {"seconds", summary.seconds},
                {"wrote", summary.outputs}});
    return 0;
  }
  fmt::print("{} tokens learnt from {} of text ({} different words) in {}\n", format_count(summary.vocab_size),
             format_bytes(summary.num_text_bytes), format_count(summary.num_words), format_duration(summary.seconds));
  if (summary.vocab_size < options.vocab_size) {
    fmt::print("fewer than {}: the text has no more pairs that occur {} times\n", format_count(options.vocab_size),
               options.least_count);
  }
  if (summary.num_forgotten > 0) fmt::print("{} rare words were left out\n", format_count(summary.num_forgotten));
  for (const std::string& path : summary.outputs) fmt::print("wrote {}\n", path);
  return 0;
}

}  // namespace

const Command kDataTrainTokenizer = {"data",
                                     "train-tokenizer",
                                     "--input PATH... --vocab-size N --output DIR",
                                     "a BPE vocabulary from text",
                                     Starts::kNothing,
                                     Rest::kRefuse,
                                     "",
                                     [](CLI::App& app) {
                                       static TrainTokenizerWords unused;
                                       add_options(app, unused);
                                     },
                                     run};

}  // namespace primus::cli
