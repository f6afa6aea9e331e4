// Rules: data, tokenizer and vocabulary, evaluation.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <utility>

#include "base/text.hpp"
#include "config/parse.hpp"
#include "config/rules.hpp"
#include "config/tokenizer_facts.hpp"

namespace primus::config {
namespace {

constexpr std::array<std::string_view, 4> kDataPaths = {"data_path", "train_data_path", "valid_data_path",
                                                        "test_data_path"};

void mock_data(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (!experiment.get_bool("mock_data")) return;
  for (const std::string_view key : kDataPaths) {
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

/// What the tokenizer's files say, where they are on this machine.
std::optional<TokenizerFacts> facts_of_files(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto text = [&](std::string_view key) { return experiment.get_optional_string(key).value_or(""); };
  try {
    const TokenizerFiles files =
        find_tokenizer_files({text("tokenizer_type"), text("tokenizer_model"), text("vocab_file"), text("merge_file")});
    if (files.kind == TokenizerKind::kNone) return std::nullopt;
    return read_tokenizer_facts(files);
  } catch (const UserError& error) {
    context.report("tokenizer_model", fmt::format("cannot be read: {}", error.what()), "a tokenizer's files", "");
    return std::nullopt;
  }
}

void vocabulary(RuleContext& context) {
  const Experiment& experiment = context.experiment();
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

// Weights and prefixes by turns, or prefixes only.
std::vector<std::string> prefixes_of(const std::vector<std::string>& words) {
  std::vector<std::string> prefixes;
  for (const std::string& word : words) {
    if (!parse_real(word)) prefixes.push_back(word);
  }
  return prefixes;
}

void data_files(RuleContext& context) {
  for (const std::string_view key : kDataPaths) {
    for (const std::string& prefix : prefixes_of(context.experiment().get_strings(key))) {
      for (const std::string_view ending : {".bin", ".idx"}) {
        std::error_code error;
        if (std::filesystem::is_regular_file(prefix + std::string(ending), error)) continue;
        if (context.purpose() == Purpose::kTrain) {
          context.report(key, fmt::format("{}{} does not exist", prefix, ending), "prefix of .bin and .idx files",
                         "make them with `primus-cli data prepare`");
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
    {"vocabulary", "vocab_size is the tokenizer's unless it is set.", vocabulary},
    {"data_split", "split has one to three weights.", data_split},
    {"data_sources", "A train has data from one of data_path, train_data_path, files that name them, and mock_data.",
     data_sources},
    {"data_files", "Every data prefix has its .bin and .idx.", data_files},
    {"evaluation_data", "An evaluation has held-out data.", evaluation_data},
};

}  // namespace

std::span<const Rule> data_rules() {
  return kRules;
}

}  // namespace primus::config
