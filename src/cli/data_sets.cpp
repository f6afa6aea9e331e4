// `data info`, `data verify`, `data merge`, `data shuffle`: what .bin/.idx pairs hold, and new ones made of them.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
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
#include "cli/terminal.hpp"
#include "config/parse.hpp"
#include "data/dataset_tools.hpp"
#include "data/tokenizers/make_tokenizer.hpp"

namespace primus::cli {
namespace {

/// The tokenizer that the user named; none where no option speaks of one.
std::unique_ptr<data::Tokenizer> named_tokenizer(const TokenizerWords& words) {
  const data::TokenizerOptions& options = words.options;
  const bool is_named = !options.type.empty() || !options.model.empty() || !options.vocab_file.empty();
  return is_named ? data::make_tokenizer(tokenizer_options(words)) : nullptr;
}

struct InfoWords {
  std::vector<std::string> prefixes;
  TokenizerWords tokenizer;
  std::int64_t num_samples = 1;
  std::string format = "text";
};

void add_info_options(CLI::App& app, InfoWords& read) {
  app.add_option("prefix", read.prefixes, "Data sets, without .bin")->required()->type_name("PREFIX");
  add_tokenizer_options(app, read.tokenizer);
  app.add_option("--samples", read.num_samples, "Documents to show from the beginning; as text if a tokenizer is named")
      ->capture_default_str()
      ->check([](const std::string& text) {
        const auto count = config::parse_int(text);
        return count && *count >= 0 ? "" : fmt::format("expected an integer >= 0, found '{}'", text);
      })
      ->type_name("N");
  add_format_option(app, read.format, {"text", "json"});
}

/// The first tokens of a document, as text or as ids.
std::string sample_of(const data::IndexedDataset& dataset, std::int64_t document, const data::Tokenizer* tokenizer) {
  constexpr std::int64_t kMostTokens = 64;
  std::vector<std::int64_t> ids;
  const std::int64_t end = dataset.document_begin(document + 1);
  for (std::int64_t i = dataset.document_begin(document); i < end && std::ssize(ids) < kMostTokens; ++i) {
    const auto count = std::min(dataset.length(i), kMostTokens - std::ssize(ids));
    const std::size_t before = ids.size();
    ids.resize(before + static_cast<std::size_t>(count));
    dataset.read(i, 0, std::span(ids).subspan(before));
  }
  return tokenizer != nullptr ? tokenizer->decode(ids) : fmt::format("{}", fmt::join(ids, " "));
}

Json info_json(const data::IndexedDataset& dataset, const data::LengthSummary& lengths,
               const std::vector<std::string>& samples) {
  Json bins = Json::array();
  for (const data::LengthBin& bin : lengths.bins) {
    bins.push_back({{"from", bin.from}, {"to", bin.to}, {"sequences", bin.num_sequences}, {"tokens", bin.num_tokens}});
  }
  return {{"prefix", dataset.name()},
          {"documents", dataset.num_documents()},
          {"sequences", dataset.num_sequences()},
          {"tokens", dataset.num_tokens()},
          {"type", data::to_text(dataset.token_type())},
          {"modes", dataset.modes() == data::IndexedDataset::Modes::kPresent},
          {"lengths",
           {{"shortest", lengths.shortest},
            {"median", lengths.median},
            {"mean", lengths.mean},
            {"longest", lengths.longest},
            {"empty", lengths.num_empty}}},
          {"histogram", std::move(bins)},
          {"samples", samples}};
}

void print_info(const data::IndexedDataset& dataset, const data::LengthSummary& lengths,
                const std::vector<std::string>& samples) {
  fmt::print("{}\n", coloured(dataset.name(), Colour::kBold, stdout));
  fmt::print("  {}, {}, {} of {}\n", counted(dataset.num_documents(), "document"),
             counted(dataset.num_sequences(), "sequence"), counted(dataset.num_tokens(), "token"),
             data::to_text(dataset.token_type()));
  fmt::print("  length: shortest {}, median {}, mean {:.1f}, longest {}\n", format_count(lengths.shortest),
             format_count(lengths.median), lengths.mean, format_count(lengths.longest));
  std::int64_t most = 1;
  for (const data::LengthBin& bin : lengths.bins) most = std::max(most, bin.num_sequences);
  for (const data::LengthBin& bin : lengths.bins) {
    constexpr std::int64_t kWidth = 40;
    const auto width = static_cast<std::size_t>((bin.num_sequences * kWidth + most - 1) / most);
    fmt::print("  {:>13}..{:<13} {:>12} {}\n", format_count(bin.from), format_count(bin.to),
               format_count(bin.num_sequences), std::string(width, '#'));
  }
  for (std::size_t i = 0; i < samples.size(); ++i) fmt::print("  document {}: {}\n", i, visible(samples[i]));
}

int run_info(std::span<const std::string> words, const LaunchOptions& launch) {
  InfoWords read;
  CLI::App app("What data sets hold: documents, tokens, lengths, the first documents.", "primus-cli data info");
  add_info_options(app, read);
  app.footer("example\n  primus-cli data info data/train_text_document --tokenizer-model my_tokenizer");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const auto tokenizer = named_tokenizer(read.tokenizer);
  Json sets = Json::array();
  for (const std::string& prefix : read.prefixes) {
    const data::IndexedDataset dataset(prefix);
    const data::LengthSummary lengths = data::summarize_lengths(dataset);
    std::vector<std::string> samples;
    for (std::int64_t i = 0; i < std::min(read.num_samples, dataset.num_documents()); ++i) {
      samples.push_back(sample_of(dataset, i, tokenizer.get()));
    }
    if (launch.format == Format::kJson) {
      sets.push_back(info_json(dataset, lengths, samples));
    } else {
      print_info(dataset, lengths, samples);
    }
  }
  if (launch.format == Format::kJson) print_json({{"ok", true}, {"data", std::move(sets)}});
  return 0;
}

struct VerifyWords {
  std::vector<std::string> prefixes;
  TokenizerWords tokenizer;
  std::string format = "text";
};

void add_verify_options(CLI::App& app, VerifyWords& read) {
  app.add_option("prefix", read.prefixes, "Data sets, without .bin")->required()->type_name("PREFIX");
  add_tokenizer_options(app, read.tokenizer);
  add_format_option(app, read.format, {"text", "json"});
}

int run_verify(std::span<const std::string> words, const LaunchOptions& launch) {
  VerifyWords read;
  CLI::App app(
      "Check every length, offset and boundary of data sets against their .bin files, and every token\n"
      "against the vocabulary of a tokenizer where one is named.",
      "primus-cli data verify");
  add_verify_options(app, read);
  app.footer("example\n  primus-cli data verify data/train_text_document --tokenizer-model my_tokenizer");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const auto tokenizer = named_tokenizer(read.tokenizer);
  Json sets = Json::array();
  for (const std::string& prefix : read.prefixes) {
    const data::IndexedDataset dataset(prefix);
    ProgressBar bar("verify", Unit::kThings);
    const data::TokenSummary tokens = data::verify_tokens(
        dataset, tokenizer ? tokenizer->vocab_size() : 0, tokenizer ? tokenizer->eod() : data::kNoEod,
        [&](std::int64_t done, std::int64_t all) { bar.show(done, all); });
    if (launch.format == Format::kJson) {
      Json set = {{"prefix", prefix},
                  {"documents", dataset.num_documents()},
                  {"tokens", dataset.num_tokens()},
                  {"smallest_token", tokens.smallest},
                  {"largest_token", tokens.largest}};
      if (tokenizer) set["documents_without_end"] = tokens.num_documents_open;
      sets.push_back(std::move(set));
      continue;
    }
    fmt::print("{}: whole; {}, {} from {} to {}\n", prefix, counted(dataset.num_documents(), "document"),
               counted(dataset.num_tokens(), "token"), tokens.smallest, tokens.largest);
    if (tokenizer && tokens.num_documents_open > 0) {
      fmt::print("  {} documents do not end with the end-of-document token {}\n",
                 format_count(tokens.num_documents_open), tokenizer->eod());
    }
  }
  if (launch.format == Format::kJson) print_json({{"ok", true}, {"data", std::move(sets)}});
  return 0;
}

struct NewSetWords {
  std::vector<std::string> inputs;
  std::string output_prefix;
  std::uint64_t seed = 1234;
  std::string format = "text";
};

/// Says what was made of what.
void print_made(const std::string& prefix, const std::vector<std::string>& outputs, Format format) {
  const data::IndexedDataset made(prefix);
  if (format == Format::kJson) {
    print_json({{"ok", true}, {"documents", made.num_documents()}, {"tokens", made.num_tokens()}, {"wrote", outputs}});
    return;
  }
  fmt::print("{}, {}\n", counted(made.num_documents(), "document"), counted(made.num_tokens(), "token"));
  for (const std::string& path : outputs) fmt::print("wrote {}\n", path);
}

/// Makes the set that `read` names, under a progress bar, and says what was made. make(progress) gives the files.
template <typename Make>
int make_set(const NewSetWords& read, Format format, const char* work, const Make& make) {
  check_prefix("--output-prefix", read.output_prefix);
  std::vector<std::string> outputs;
  {
    ProgressBar bar(work, Unit::kThings);
    outputs = make([&](std::int64_t done, std::int64_t all) { bar.show(done, all); });
  }
  print_made(read.output_prefix, outputs, format);
  return 0;
}

void add_merge_options(CLI::App& app, NewSetWords& read) {
  app.add_option("--input", read.inputs, "Data sets, without .bin, in order")->required()->type_name("PREFIX");
  app.add_option("--output-prefix", read.output_prefix, "The one to write")->required()->type_name("PREFIX");
  add_format_option(app, read.format, {"text", "json"});
}

int run_merge(std::span<const std::string> words, const LaunchOptions& launch) {
  NewSetWords read;
  CLI::App app("Put data sets one behind the other: OUTPUT.bin and .idx.", "primus-cli data merge");
  add_merge_options(app, read);
  app.footer(
      "example\n  primus-cli data merge --input data/a_text_document data/b_text_document --output-prefix data/all");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  return make_set(read, launch.format, "merge", [&](const auto& progress) {
    return data::merge_datasets(read.inputs, read.output_prefix, progress);
  });
}

void add_shuffle_options(CLI::App& app, NewSetWords& read) {
  app.add_option("--input", read.inputs, "Data set, without .bin")->required()->expected(1)->type_name("PREFIX");
  app.add_option("--output-prefix", read.output_prefix, "The one to write")->required()->type_name("PREFIX");
  app.add_option("--seed", read.seed, "Seed of the order")->capture_default_str()->type_name("N");
  add_format_option(app, read.format, {"text", "json"});
}

int run_shuffle(std::span<const std::string> words, const LaunchOptions& launch) {
  NewSetWords read;
  CLI::App app("Write a data set's documents in a random order: OUTPUT.bin and .idx.", "primus-cli data shuffle");
  add_shuffle_options(app, read);
  app.footer("example\n  primus-cli data shuffle --input data/train_text_document --output-prefix data/mixed --seed 7");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  return make_set(read, launch.format, "shuffle", [&](const auto& progress) {
    return data::shuffle_documents(read.inputs.front(), read.output_prefix, read.seed, progress);
  });
}

template <typename Words, void (*Add)(CLI::App&, Words&)>
void add_for_completion(CLI::App& app) {
  static Words unused;
  Add(app, unused);
}

}  // namespace

const Command kDataInfo = {
    "data",           "info",        "PREFIX...", "what data sets hold",
    Starts::kNothing, Rest::kRefuse, "",          add_for_completion<InfoWords, add_info_options>,
    run_info};
const Command kDataVerify = {
    "data",           "verify",      "PREFIX...", "check data sets",
    Starts::kNothing, Rest::kRefuse, "",          add_for_completion<VerifyWords, add_verify_options>,
    run_verify};
const Command kDataMerge = {"data",
                            "merge",
                            "--input PREFIX... --output-prefix P",
                            "several data sets into one",
                            Starts::kNothing,
                            Rest::kRefuse,
                            "",
                            add_for_completion<NewSetWords, add_merge_options>,
                            run_merge};
const Command kDataShuffle = {"data",
                              "shuffle",
                              "--input PREFIX --output-prefix P",
                              "documents in a random order",
                              Starts::kNothing,
                              Rest::kRefuse,
                              "",
                              add_for_completion<NewSetWords, add_shuffle_options>,
                              run_shuffle};

}  // namespace primus::cli
