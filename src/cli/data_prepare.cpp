#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/config_common.hpp"
#include "cli/data_common.hpp"
#include "cli/terminal.hpp"
#include "data/prepare.hpp"

namespace primus::cli {
namespace {

[[noreturn]] void refuse(std::string key, std::string message, std::string expected) {
  throw ConfigError({{.file = "command line",
                      .key = std::move(key),
                      .message = std::move(message),
                      .expected = std::move(expected)}});
}

void check(const data::PrepareOptions& options) {
  check_prefix("--output-prefix", options.output_prefix);
  check_prefix("--held-out-prefix", options.held_out_prefix);
  if (options.held_out.empty()) {
    if (!options.held_out_prefix.empty())
      refuse("--held-out-prefix", "needs --held-out", "files whose ends are held out");
    if (options.held_out_fraction != 0.0)
      refuse("--held-out-fraction", "needs --held-out", "files whose ends are held out");
    return;
  }
  if (options.held_out_prefix.empty()) refuse("--held-out", "needs --held-out-prefix", "prefix of the held-out data");
  if (!(options.held_out_fraction > 0.0 && options.held_out_fraction <= 1.0)) {
    refuse("--held-out-fraction", "needed beside --held-out", "number above 0, at most 1");
  }
}

/// The first of `paths`, under `heading`.
void print_paths(std::string_view heading, const std::vector<std::string>& paths) {
  if (paths.empty()) return;
  constexpr std::ptrdiff_t kMostNamed = 10;
  fmt::print("{}:\n", heading);
  for (std::ptrdiff_t i = 0; i < std::min(kMostNamed, std::ssize(paths)); ++i)
    fmt::print("  {}\n", paths[static_cast<std::size_t>(i)]);
  if (std::ssize(paths) > kMostNamed) fmt::print("  and {} more\n", std::ssize(paths) - kMostNamed);
}

void print_left_out(const data::PrepareSummary& summary) {
  if (summary.num_skipped_files > 0)
    fmt::print("{} left out: links to other files, or copies\n", counted(summary.num_skipped_files, "file"));
  print_paths("left out, with part of the held-out text in it", summary.repeats_held_out);
  print_paths("left out, no text", summary.not_text);
}

int print_plan(const data::PrepareOptions& options, Format format) {
  const data::PreparePlan plan = data::plan_prepare(options);
  if (format == Format::kJson) {
    print_json({{"ok", true}, {"files", plan.files.size()}, {"bytes", plan.num_bytes}, {"would_write", plan.outputs}});
    return 0;
  }
  fmt::print("would read {}, {}\n", counted(std::ssize(plan.files), "file"), format_bytes(plan.num_bytes));
  for (const std::string& path : plan.outputs) fmt::print("would write {}\n", path);
  return 0;
}

Json summary_json(const data::PrepareSummary& summary) {
  return {{"ok", true},
          {"documents", summary.num_documents},
          {"tokens", summary.num_tokens},
          {"bytes", summary.num_bytes},
          {"resumed_bytes", summary.num_resumed_bytes},
          {"held_out_tokens", summary.num_held_out_tokens},
          {"left_out_copies", summary.num_skipped_files},
          {"repeats_held_out", summary.repeats_held_out},
          {"not_text", summary.not_text},
          {"seconds", summary.seconds},
          {"wrote", summary.outputs}};
}

struct PrepareWords {
  data::PrepareOptions options;
  TokenizerWords tokenizer;
  DocumentWords documents;
  bool no_eod = false;
  bool sentences = false;
  bool keep_copies = false;
  bool dry_run = false;
  data::HoleOptions holes;
  std::string format = "text";
};

void add_options(CLI::App& app, PrepareWords& read) {
  data::PrepareOptions& options = read.options;
  add_document_options(app, read.documents);
  app.add_option("--output-prefix", options.output_prefix, "Prefix of the data to write")
      ->required()
      ->type_name("PREFIX");
  add_tokenizer_options(app, read.tokenizer);
  app.add_flag("--no-append-eod", read.no_eod, "No end-of-document token after each document");
  app.add_flag("--split-sentences", read.sentences, "Every sentence is a sequence of its own");
  app.add_flag("--keep-copies", read.keep_copies, "Files that repeat others are not left out");
  app.add_option("--workers", options.num_threads, "Threads; 0: one a core")->capture_default_str()->type_name("N");
  app.add_option("--held-out", options.held_out, "Files whose ends are held out for evaluation")->type_name("FILE");
  app.add_option("--held-out-fraction", options.held_out_fraction, "Part of each of them")->type_name("F");
  app.add_option("--held-out-prefix", options.held_out_prefix, "Prefix of the held-out data")->type_name("PREFIX");
  app.add_option("--fim-rate", read.holes.rate, "Part of the documents that get a hole, whose text comes last")
      ->type_name("F");
  app.add_option("--fim-spm-rate", read.holes.end_first_rate, "Part of those that give the end first")
      ->type_name("F")
      ->capture_default_str();
  app.add_option("--fim-tokens", read.holes.tokens, "Tokens before beginning, hole and end")
      ->type_name("T")
      ->expected(3);
  app.add_flag("--dry-run", read.dry_run, "Say what would be read and written, and stop");
  add_format_option(app, read.format, {"text", "json"});
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  PrepareWords read;
  CLI::App app("Turn text into training data: PREFIX_text_document.bin and .idx.", "primus-cli data prepare");
  add_options(app, read);
  data::PrepareOptions& options = read.options;
  app.footer(
      "example\n  primus-cli data prepare --input c.jsonl.zst --tokenizer-model tok --output-prefix output/train\n"
      "  primus-cli data prepare --input /usr/share/common-licenses --output-prefix output/train \\\n"
      "    --held-out /usr/share/common-licenses/MPL-2.0 --held-out-fraction 0.5 \\\n"
      "    --held-out-prefix output/valid");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  options.inputs = read.documents.inputs;
  options.documents = document_kind(read.documents);
  options.json_key = read.documents.json_key;
  options.tokenizer = tokenizer_options(read.tokenizer);
  options.append_eod = !read.no_eod;
  if (read.sentences) options.sentences = data::SentenceSplit::kOn;
  for (const double rate : {read.holes.rate, read.holes.end_first_rate}) {
    if (!(rate >= 0.0 && rate <= 1.0)) refuse("--fim-rate", "is no part of the documents", "0 to 1");
  }
  if (read.holes.rate > 0.0) options.holes = read.holes;
  if (read.keep_copies) options.copies = data::Copies::kKept;
  check(options);
  if (read.dry_run || launch.action == Action::kDryRun) return print_plan(options, launch.format);
  data::PrepareSummary summary;
  {
    ProgressBar bar("prepare");
    summary = data::prepare(options, [&](std::int64_t done, std::int64_t all) { bar.show(done, all); });
  }
  if (launch.format == Format::kJson) {
    print_json(summary_json(summary));
    return 0;
  }
  fmt::print("{}, {} from {} in {}\n", counted(summary.num_documents, "document"), counted(summary.num_tokens, "token"),
             format_bytes(summary.num_bytes), format_duration(summary.seconds));
  if (summary.num_resumed_bytes > 0)
    fmt::print("{} of it by an earlier call\n", format_bytes(summary.num_resumed_bytes));
  if (summary.num_held_out_tokens > 0) fmt::print("{} held out\n", counted(summary.num_held_out_tokens, "token"));
  print_left_out(summary);
  for (const std::string& path : summary.outputs) fmt::print("wrote {}\n", path);
  return 0;
}

}  // namespace

const Command kDataPrepare = {"data",
                              "prepare",
                              "--input PATH... --output-prefix P",
                              "text to training data",
                              Starts::kNothing,
                              Rest::kRefuse,
                              "",
                              [](CLI::App& app) {
                                static PrepareWords unused;
                                add_options(app, unused);
                              },
                              run};

}  // namespace primus::cli
