#include "data/train_tokenizer.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "data/ordered_pipeline.hpp"
#include "data/tokenizers/bpe_trainer.hpp"
#include "data/tokenizers/byte_alphabet.hpp"
#include "data/tokenizers/normalizers.hpp"
#include "data/tokenizers/pre_tokenizers.hpp"

namespace primus::data {
namespace {

using Json = nlohmann::json;

// About a gigabyte of words.
constexpr std::size_t kMostWords = std::size_t{1} << 24;

struct NamedPattern {
  std::string_view name;
  std::string_view pattern;  // "": ByteLevel's own
};

// As in the models' tokenizer.json files: 1 to 3 digits together, or each alone.
constexpr std::array<NamedPattern, 4> kPatterns = {
    {{"gpt2", ""},
     {"llama3",
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
     {"qwen",
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
     {"deepseek3",
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}};

// DeepSeek-V3 splits numbers and the scripts of China and Japan off first.
constexpr std::array<std::string_view, 2> kDeepSeek3Before = {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+"};

Json split_step(std::string_view pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", use_regex}};
}

Json pre_tokenizer_json(const std::string& pattern) {
  if (pattern == "gpt2") return byte_level(true);
  Json steps = Json::array();
  const auto* const named =
      std::find_if(kPatterns.begin(), kPatterns.end(), [&](const NamedPattern& row) { return row.name == pattern; });
  if (pattern == "deepseek3") {
    for (const std::string_view before : kDeepSeek3Before) steps.push_back(split_step(before));
  }
  steps.push_back(split_step(named == kPatterns.end() ? std::string_view(pattern) : named->pattern));
  steps.push_back(byte_level(false));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

void check(const TrainTokenizerOptions& options) {
  std::vector<Problem> problems;
  const auto refuse = [&](std::string key, std::string message, std::string expected, std::string found) {
    problems.push_back({.key = std::move(key),
                        .message = std::move(message),
                        .expected = std::move(expected),
                        .found = std::move(found)});
  };
  const std::int64_t least = 256 + std::ssize(options.special_tokens);
  constexpr std::int64_t kMost = 1 << 24;
  if (options.vocab_size < least || options.vocab_size > kMost) {
    refuse("--vocab-size", "has no room for the bytes and the special tokens, or is too large",
           fmt::format("{} to {}", least, format_count(kMost)), std::to_string(options.vocab_size));
  }
  if (options.normalizer != "none" && options.normalizer != "NFC" && options.normalizer != "NFKC") {
    refuse("--normalizer", "there is no such normalisation", "none, NFC or NFKC", options.normalizer);
  }
  const std::set<std::string> different(options.special_tokens.begin(), options.special_tokens.end());
  if (different.size() != options.special_tokens.size() || different.contains("")) {
    refuse("--special-tokens", "are not all different and filled", "texts",
           fmt::format("{}", fmt::join(options.special_tokens, " ")));
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

/// Text to words, by the same steps that the tokenizer will take.
class WordSplitter {
 public:
  explicit WordSplitter(const Json& json)
      : normalizer_(make_normalizer(JsonPart(json["normalizer"], "command line", "--normalizer"))),
        steps_(make_pre_tokenizer(JsonPart(json["pre_tokenizer"], "command line", "--pattern"))) {}

  void count(std::string_view text, TextWorkspace& workspace, WordCounts& counts) const {
    std::string storage;
    const Piece whole{well_formed(text, storage, nullptr), nullptr, Piece::Place::kFirst};
    split(normalizer_ ? normalizer_->apply(whole, workspace) : whole, 0, workspace, counts);
    workspace.clear();
  }

 private:
  void split(const Piece& piece, std::size_t step, TextWorkspace& workspace, WordCounts& counts) const {
    if (step == steps_.steps.size()) return counts.add(piece.text, 1);
    steps_.steps[step]->split(piece, workspace, [&](const Piece& part) { split(part, step + 1, workspace, counts); });
  }

  std::unique_ptr<Normalizer> normalizer_;
  PreTokenizerSteps steps_;
};

/// One thread's counts and buffers, lent out while a batch is counted.
struct Counter {
  explicit Counter(std::size_t most_words) : counts(most_words) {}

  WordCounts counts;
  TextWorkspace workspace;
};

class Counters {
 public:
  explicit Counters(std::size_t num_threads) : most_words_(kMostWords / num_threads) {}

  std::unique_ptr<Counter> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Counter>(most_words_);
    auto counter = std::move(idle_.back());
    idle_.pop_back();
    return counter;
  }
  void give_back(std::unique_ptr<Counter> counter) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(counter));
  }
  WordCounts all() const {
    WordCounts counts(kMostWords);
    for (const auto& counter : idle_) counts.merge(counter->counts);
    return counts;
  }

 private:
  std::size_t most_words_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Counter>> idle_;
};

struct Counted {
  std::int64_t num_text_bytes = 0;
  std::int64_t num_bytes_taken = 0;
};

WordCounts count_words(const TrainTokenizerOptions& options, const WordSplitter& splitter,
                       const TrainTokenizerProgress& progress, TrainTokenizerSummary& summary) {
  const InputList inputs = list_inputs(options.inputs, options.documents);
  DocumentReader reader(inputs.files, {});
  const int num_threads = options.num_threads > 0 ? options.num_threads
                                                  : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  Counters counters(static_cast<std::size_t>(num_threads));
  {
    OrderedPipeline<TextBatch, Counted> pipeline(
        num_threads, [&] { return reader.next(); },
        [&](const TextBatch& batch) {
          auto counter = counters.take();
          const InputFile& file = inputs.files[batch.file];
          Counted counted{.num_bytes_taken = batch.num_bytes_taken};
          // Folders hold images and archives, too.
          const bool is_text = file.kind != DocumentKind::kWholeFile || batch.text.find('\0') == std::string::npos;
          for (std::size_t i = 0; is_text && i < batch.items.size(); ++i) {
            std::string member;
            std::string_view text = batch.item(i);
            if (file.kind == DocumentKind::kJsonLines) {
              member = json_member(text, options.json_key, file.path, batch.items[i].line);
              text = member;
            }
            splitter.count(text, counter->workspace, counter->counts);
            counted.num_text_bytes += static_cast<std::int64_t>(text.size());
          }
          counters.give_back(std::move(counter));
          return counted;
        });
    pipeline.run([&](const Counted& counted) {
      summary.num_text_bytes += counted.num_text_bytes;
      if (progress.reading) progress.reading(counted.num_bytes_taken, inputs.num_bytes);
    });
  }
  return counters.all();
}

/// Vocabulary and merges of a tokenizer.json.
Json model_json(const std::vector<LearntMerge>& merges, const std::vector<std::string>& special_tokens) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(byte_character(static_cast<unsigned char>(byte)));
  Json pairs = Json::array();
  for (const LearntMerge& merge : merges) {
    const std::string& left = tokens[static_cast<std::size_t>(merge.left)];
    const std::string& right = tokens[static_cast<std::size_t>(merge.right)];
    pairs.push_back({left, right});
    tokens.push_back(left + right);
  }
  tokens.insert(tokens.end(), special_tokens.begin(), special_tokens.end());
  Json vocabulary = Json::object();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (vocabulary.contains(tokens[i])) {
      throw ConfigError(
          {{.key = "--special-tokens", .message = "the text has a token of this name already", .found = tokens[i]}});
    }
    vocabulary[tokens[i]] = i;
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(pairs)}};
}

Json added_tokens_json(const std::vector<std::string>& special_tokens, std::int64_t first_id) {
  Json added = Json::array();
  for (const std::string& token : special_tokens) {
    added.push_back({{"id", first_id++},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return added;
}

void write_files(const TrainTokenizerOptions& options, const Json& tokenizer, TrainTokenizerSummary& summary) {
  const std::filesystem::path folder(options.output);
  make_folder(folder);
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"model_max_length", std::int64_t{1} << 30},
                 {"clean_up_tokenization_spaces", false}};
  if (!options.special_tokens.empty()) config["eos_token"] = options.special_tokens.front();
  for (const auto& [name, json] :
       {std::pair("tokenizer.json", &tokenizer), std::pair("tokenizer_config.json", &std::as_const(config))}) {
    write_file(folder / name, json->dump(1) + "\n");
    summary.outputs.push_back((folder / name).string());
  }
}

}  // namespace

std::vector<std::string_view> split_patterns() {
  std::vector<std::string_view> names;
  for (const NamedPattern& row : kPatterns) names.push_back(row.name);
  return names;
}

TrainTokenizerSummary train_tokenizer(const TrainTokenizerOptions& options, const TrainTokenizerProgress& progress) {
  check(options);
  const auto start = std::chrono::steady_clock::now();
  Json tokenizer = {{"version", "1.0"},
                    {"truncation", nullptr},
                    {"padding", nullptr},
                    {"normalizer", options.normalizer == "none" ? Json() : Json{{"type", options.normalizer}}},
                    {"pre_tokenizer", pre_tokenizer_json(options.pattern)},
                    {"post_processor", nullptr},
                    {"decoder", byte_level(true)}};
  TrainTokenizerSummary summary;
  const WordCounts counts = count_words(options, WordSplitter(tokenizer), progress, summary);
  if (counts.num_words() == 0) {
    throw UserError(fmt::format("{}: holds no text to learn from", fmt::join(options.inputs, ", ")),
                    ExitCode::kWrongInput);
  }
  const std::int64_t num_merges = options.vocab_size - 256 - std::ssize(options.special_tokens);
  const auto merges =
      learn_merges(counts, {.num_merges = num_merges, .least_count = options.least_count}, [&](std::int64_t done) {
        if (progress.learning) progress.learning(done, num_merges);
      });
  summary.num_merges = std::ssize(merges);
  summary.vocab_size = 256 + summary.num_merges + std::ssize(options.special_tokens);
  summary.num_words = static_cast<std::int64_t>(counts.num_words());
  summary.num_forgotten = counts.num_forgotten();
  tokenizer["model"] = model_json(merges, options.special_tokens);
  tokenizer["added_tokens"] = added_tokens_json(options.special_tokens, 256 + summary.num_merges);
  write_files(options, tokenizer, summary);
  summary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return summary;
}

}  // namespace primus::data
