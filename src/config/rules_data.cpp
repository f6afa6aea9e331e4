// Rules: data, tokenizer and vocabulary, evaluation.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "config/key_table.hpp"
#include "config/parse.hpp"
#include "config/read_beside.hpp"
#include "config/rules.hpp"
#include "config/tokenizer_facts.hpp"

namespace primus::config {
namespace {

constexpr std::array<std::string_view, 4> kDataPaths = {"data_path", "train_data_path", "valid_data_path",
                                                        "test_data_path"};

void mock_data(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (!experiment.get_bool("mock_data")) return;
  std::vector<std::string_view> sources(kDataPaths.begin(), kDataPaths.end());
  sources.insert(sources.end(), {"data_args_path", "per_split_data_args_path"});
  for (const std::string_view key : sources) {
    if (experiment.is_null(key)) continue;
    if (experiment.is_explicitly_set(key)) context.note(key, "not read, because mock_data is on");
    context.set(key, {});
  }
  const std::string tokenizer = experiment.get_optional_string("tokenizer_type").value_or("null");
  if (tokenizer != "NullTokenizer") {
    context.note("tokenizer_type", fmt::format("{} -> NullTokenizer, because mock_data makes token ids", tokenizer));
    context.set("tokenizer_type", {std::string("NullTokenizer")});
  }
  if (experiment.is_null("vocab_size")) {
    context.note("vocab_size", "null -> 131072, the vocabulary of mock_data");
    context.set("vocab_size", {std::int64_t{131072}});
  }
}

struct Vocabulary {
  std::string_view name;  // tokenizer_type, or part of tokenizer_model in lower case
  std::int64_t size;
};

// The hub is out of reach, so the sizes of the model families are a table (docs/compatibility.md).
constexpr Vocabulary kByType[] = {
    {"ByteTokenizer", 257},          {"DeepSeekV2Tokenizer", 102400}, {"DeepSeekV3Tokenizer", 129280},
    {"DeepSeekV4Tokenizer", 129280}, {"KimiK2Tokenizer", 163840},     {"MixtralTokenizer", 32000},
    {"Llama2Tokenizer", 32000},      {"Llama3Tokenizer", 128256},     {"Llama4Tokenizer", 202048},
    {"Lfm2Tokenizer", 65536},
};
constexpr Vocabulary kByModel[] = {
    {"deepseek-v2", 102400}, {"deepseek-v3", 129280}, {"deepseek-v4", 129280}, {"kimi-k2", 163840},
    {"kimi-k3", 163840},     {"glm-4-9b", 151552},    {"mixtral-8x7b", 32000}, {"mixtral-8x22b", 32000},
    {"qwen3.5", 248320},     {"qwen3", 151936},       {"minimax-m2", 200064},  {"llama-4", 202048},
    {"llama-3", 128256},     {"lfm2", 65536},         {"gpt-oss", 201088},
};

std::optional<std::int64_t> known_vocabulary(const std::string& type, const std::string& model) {
  for (const Vocabulary& row : kByType) {
    if (row.name == type) return row.size;
  }
  const std::string folded = lower(model);
  for (const Vocabulary& row : kByModel) {
    if (folded.find(row.name) != std::string::npos) return row.size;
  }
  return std::nullopt;
}

// What a tokenizer may be named by.
constexpr std::string_view kTokenizerKeys[] = {"tokenizer_type", "tokenizer_model", "vocab_file",
                                               "merge_file",     "special_tokens",  "tiktoken_special_tokens"};

/// What the tokenizer's files say, where they are on this machine.
std::optional<TokenizerFacts> facts_of_files(RuleContext& context) {
  const auto text = [&](std::string_view key) { return context.experiment().get_optional_string(key).value_or(""); };
  if (std::ranges::all_of(kTokenizerKeys, [&](std::string_view key) { return context.is_null(key); }))
    return std::nullopt;
  try {
    const std::string type = text("tokenizer_type");
    const TokenizerFiles files = find_tokenizer_files(tokenizer_names(context.experiment()));
    if (files.kind == TokenizerKind::kNone) return std::nullopt;
    if (!context.is_null("vocab_file") && files.kind == TokenizerKind::kGpt2 && type != "GPT2BPETokenizer" &&
        context.is_wanted("tokenizer_type")) {
      context.note("tokenizer_type", "vocab_file and merge_file make it GPT-2's", "vocab_file");
    }
    return read_tokenizer_facts(files);
  } catch (const UserError& error) {
    const std::string merges = text("merge_file");
    const bool is_gpt2 = !text("vocab_file").empty() && !merges.empty();
    const bool is_of_merges = std::string_view(error.what()).starts_with(merges + ":");
    const std::string_view key = is_gpt2 ? (is_of_merges ? "merge_file" : "vocab_file") : "tokenizer_model";
    context.report(key, Problem{.message = error.what(), .expected = is_gpt2 ? "" : "a tokenizer's files"});
    return std::nullopt;
  }
}

void vocabulary(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  for (const auto& [key, other] : {std::pair{"vocab_file", "merge_file"}, std::pair{"merge_file", "vocab_file"}}) {
    if (context.is_null(key) || !context.is_null(other) || !is_read(*find_key(key), experiment)) continue;
    return context.report(key, fmt::format("needs {} beside it", other), "both, or neither");
  }
  const std::string type = experiment.get_optional_string("tokenizer_type").value_or("");
  const std::size_t num_problems = context.problems().size();
  const std::optional<TokenizerFacts> facts = facts_of_files(context);
  if (context.problems().size() > num_problems) return;
  if (facts && !experiment.is_null("vocab_size") && experiment.get_int("vocab_size") < facts->vocab_size) {
    context.report("vocab_size", "is smaller than the tokenizer's vocabulary",
                   fmt::format("at least {}", facts->vocab_size), "leave vocab_size out");
    return;
  }
  if (facts && experiment.is_null("vocab_size")) {
    context.set("vocab_size", {facts->vocab_size});
    return;
  }
  if (!experiment.is_null("vocab_size")) {
    if (type == "ByteTokenizer" && experiment.get_int("vocab_size") != 257) {
      context.report("vocab_size", "does not fit tokenizer_type ByteTokenizer", "257 (256 bytes and end of document)",
                     "leave vocab_size out");
    }
    return;
  }
  const auto size = known_vocabulary(type, experiment.get_optional_string("tokenizer_model").value_or(""));
  if (size) {
    context.set("vocab_size", {*size});
  } else {
    context.report(
        "vocab_size",
        fmt::format("not set, and the vocabulary of tokenizer_type {} is not known here", type.empty() ? "null" : type),
        "integer >= 1", "write vocab_size: N");
  }
}

std::vector<double> split_weights(const std::string& text) {
  std::vector<double> weights;
  for (const std::string& part : split(text, ',')) {
    const auto weight = parse_real(trim(part));
    if (!weight || *weight < 0.0) return {};
    weights.push_back(*weight);
  }
  return weights.size() <= 3 ? weights : std::vector<double>{};
}

void data_split(RuleContext& context) {
  const auto text = context.experiment().get_optional_string("split");
  if (!text) return;
  double sum = 0.0;
  for (const double weight : split_weights(*text)) sum += weight;
  if (sum > 0.0) return;
  context.report("split", "malformed", "one to three weights >= 0 with a positive sum, as in 99,1,0");
}

void data_sources(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.get_bool("mock_data")) return;
  constexpr std::array<std::string_view, 4> kSources = {"data_path", "train_data_path", "data_args_path",
                                                        "per_split_data_args_path"};
  std::string_view chosen;
  for (const std::string_view key : kSources) {
    if (experiment.is_null(key) || (key.ends_with("data_path") && experiment.get_strings(key).empty())) continue;
    if (!chosen.empty()) {
      const std::size_t num_problems = context.problems().size();
      context.exclude({chosen, {}}, {key, {}});
      if (context.problems().size() > num_problems) return;
      if (experiment.is_null(key)) continue;
    }
    chosen = key;
  }
  if (chosen.empty() && context.purpose() == Purpose::kTrain) {
    context.report("train_data_path", "there is no data to train on", "prefix of .bin and .idx files",
                   "write train_data_path or data_path, or mock_data: true");
  }
}

/// The content of a file that a key names; nothing, and a problem told, if there is none to read.
std::optional<std::string> content_of(RuleContext& context, std::string_view key) {
  const std::string path = *context.experiment().get_optional_string(key);
  try {
    return read_file(path);
  } catch (const UserError& error) {
    context.report(key, error.what(), "a file of data paths", "");
    return std::nullopt;
  }
}

Value list_of(const std::vector<std::string>& words) {
  Value::List list;
  for (const std::string& word : words) list.push_back({word});
  return {std::move(list)};
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// One list for all parts: words, as on a command line.
void read_data_args(RuleContext& context) {
  constexpr std::string_view kKey = "data_args_path";
  if (context.experiment().is_null(kKey)) return;
  const auto content = content_of(context, kKey);
  if (!content) return;
  const std::vector<std::string> words = words_of(*content);
  if (words.empty()) return context.report(kKey, "names no data", "weights and prefixes by turns, or prefixes", "");
  context.note(kKey, fmt::format("{} words of it are data_path now", words.size()));
  context.set("data_path", list_of(words));
  context.set(kKey, {});
}

/// A JSON object with a list for each part.
void read_per_split_data_args(RuleContext& context) {
  constexpr std::string_view kKey = "per_split_data_args_path";
  constexpr const char* kExpected = "a JSON object of lists: train, valid, test";
  if (context.experiment().is_null(kKey)) return;
  const auto content = content_of(context, kKey);
  if (!content) return;
  const auto json = nlohmann::json::parse(*content, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return context.report(kKey, "is no JSON object", kExpected, "");
  for (const auto& [part, list] : json.items()) {
    if (part != "train" && part != "valid" && part != "test") {
      return context.report(kKey, fmt::format("has a member '{}'", part), kExpected, "");
    }
    std::vector<std::string> words;
    if (list.is_string()) words = words_of(list.get<std::string>());
    for (std::size_t i = 0; list.is_array() && i < list.size(); ++i) {
      // Weights may be given as numbers.
      words.push_back(list[i].is_string() ? list[i].get<std::string>() : list[i].dump());
    }
    if (list.is_null()) continue;
    if (words.empty()) return context.report(kKey, fmt::format("names no data for '{}'", part), kExpected, "");
    context.set(part + "_data_path", list_of(words));
  }
  context.note(kKey, "its lists are train_data_path, valid_data_path and test_data_path now");
  context.set(kKey, {});
}

void data_lists(RuleContext& context) {
  if (context.experiment().get_bool("mock_data")) return;
  read_data_args(context);
  read_per_split_data_args(context);
}

// In the original, the program that calls it hands such a loader over.
void data_loader(RuleContext& context) {
  if (context.experiment().get_optional_string("dataloader_type") != "external") return;
  context.report("dataloader_type",
                 "external is a loader of the Python program around the original, and there is none here",
                 "single or cyclic");
}

void encoder_seq_length(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto length = experiment.get_optional_int("encoder_seq_length");
  if (!length || *length == experiment.get_int("seq_length")) return;
  if (experiment.is_explicitly_set("seq_length")) {
    context.report("encoder_seq_length", "contradicts seq_length", std::to_string(experiment.get_int("seq_length")),
                   "leave one of the two out");
    return;
  }
  context.note("seq_length",
               fmt::format("{} -> {}, which is encoder_seq_length", experiment.get_int("seq_length"), *length));
  context.set("seq_length", {*length});
}

void inter_document_masking(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (!experiment.get_bool("dataloader_inter_document_masking")) return;
  for (const std::string_view key : {"reset_attention_mask", "reset_position_ids"}) {
    if (!experiment.get_bool(key)) {
      context.require(key, {true}, "dataloader_inter_document_masking: every document is a sequence of its own");
    }
  }
}

void padded_vocabulary(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.is_null("vocab_size")) return;  // which has been told
  const std::int64_t vocab_size = experiment.get_int("vocab_size");
  const std::int64_t num_ranks = experiment.get_int("tensor_model_parallel_size");
  const auto given = experiment.get_optional_int("padded_vocab_size");
  if (given && (*given < vocab_size || *given % num_ranks != 0)) {
    context.report("padded_vocab_size", "does not hold the vocabulary in equal parts",
                   fmt::format("at least {}, a multiple of tensor_model_parallel_size {}", vocab_size, num_ranks), "");
  } else if (!given && !experiment.get_bool("pad_vocab_size") && vocab_size % num_ranks != 0) {
    context.report("pad_vocab_size",
                   fmt::format("leaves {} tokens for {} tensor-parallel ranks", vocab_size, num_ranks),
                   "true, or a vocab_size that they divide", "");
  }
}

void null_tokenizer(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto eod = experiment.get_optional_int("null_tokenizer_eod_id");
  if (!eod || experiment.is_null("vocab_size") ||
      experiment.get_optional_string("tokenizer_type").value_or("") != "NullTokenizer")
    return;
  if (*eod < experiment.get_int("vocab_size")) return;
  context.report("null_tokenizer_eod_id", "is outside the vocabulary",
                 fmt::format("0 to {}", experiment.get_int("vocab_size") - 1), "");
}

// Weights and prefixes by turns, or prefixes only.
std::vector<std::string> prefixes_of(const std::vector<std::string>& words) {
  std::vector<std::string> prefixes;
  for (const std::string& word : words) {
    if (!parse_real(word)) prefixes.push_back(word);
  }
  return prefixes;
}

// What was probably meant by a prefix of which no file exists.
std::string meant_prefix(const std::string& prefix) {
  const std::filesystem::path path(prefix);
  const std::string stem =
      path.extension() == ".bin" || path.extension() == ".idx" ? (path.parent_path() / path.stem()).string() : prefix;
  for (const std::string& candidate : {stem, stem + "_text_document", stem + "_text_sentence"}) {
    std::error_code error;
    if (std::filesystem::is_regular_file(candidate + ".idx", error))
      return fmt::format("did you mean '{}'?", candidate);
  }
  return "make them with `primus-cli data prepare`";
}

void data_files(RuleContext& context) {
  for (const std::string_view key : kDataPaths) {
    for (const std::string& prefix : prefixes_of(context.experiment().get_strings(key))) {
      for (const std::string_view ending : {".bin", ".idx"}) {
        std::error_code error;
        if (std::filesystem::is_regular_file(prefix + std::string(ending), error)) continue;
        if (context.purpose() == Purpose::kTrain) {
          context.report(key, fmt::format("{}{} does not exist", prefix, ending), "prefix of .bin and .idx files",
                         meant_prefix(prefix));
        } else {
          context.note(key, fmt::format("{}{} does not exist on this machine", prefix, ending));
        }
        break;
      }
    }
  }
}

void evaluation_data(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.get_int("eval_iters") == 0 || experiment.get_bool("mock_data")) return;
  bool has_data = !experiment.get_strings("valid_data_path").empty();
  if (!experiment.get_strings("data_path").empty()) {
    const auto weights = split_weights(experiment.get_optional_string("split").value_or("969,30,1"));
    has_data = has_data || (weights.size() > 1 && weights[1] > 0.0);
  }
  if (has_data) return;
  if (experiment.is_explicitly_set("eval_iters")) {
    context.report("eval_iters", "there is no held-out data to evaluate on", "0, or held-out data",
                   "write valid_data_path, or data_path with a split such as 99,1,0");
    return;
  }
  context.require("eval_iters", {std::int64_t{0}}, "no held-out data");
}

constexpr Rule kRules[] = {
    {"mock_data", "Mock data is token ids: no data paths, NullTokenizer, 131072 tokens unless vocab_size is set.",
     mock_data},
    {"data_loader", "Samples come from data sets, not from another program.", data_loader},
    {"encoder_seq_length", "encoder_seq_length is seq_length where that is not written.", encoder_seq_length},
    {"inter_document_masking", "dataloader_inter_document_masking is reset_attention_mask and reset_position_ids.",
     inter_document_masking},
    {"vocabulary", "vocab_size is the tokenizer's unless it is set.", vocabulary},
    {"padded_vocabulary", "The padded vocabulary holds all tokens, in equal parts for the tensor-parallel ranks.",
     padded_vocabulary},
    {"null_tokenizer", "A null_tokenizer_eod_id is in the vocabulary.", null_tokenizer},
    {"data_split", "split has one to three weights.", data_split},
    {"data_sources", "A train has data from one of data_path, train_data_path, files that name them, and mock_data.",
     data_sources},
    {"data_lists",
     "Files that name the data are read, and their lists stand in data_path or train_data_path and its like.",
     data_lists},
    {"data_files", "Every data prefix has its .bin and .idx.", data_files},
    {"evaluation_data", "An evaluation has held-out data.", evaluation_data},
};

}  // namespace

std::span<const Rule> data_rules() {
  return kRules;
}

}  // namespace primus::config
