#include "cli/data_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/blended_dataset.hpp"
#include "data/gpt_index.hpp"
#include "data/indexed_dataset.hpp"

namespace primus::cli {
namespace {

constexpr std::array<std::string_view, 4> kDataPaths = {"data_path", "train_data_path", "valid_data_path",
                                                        "test_data_path"};

class DataCheck {
 public:
  explicit DataCheck(const config::Experiment& experiment) : experiment_(experiment) {}

  void run() {
    for (const std::string_view key : kDataPaths) {
      const std::vector<std::string> entries = experiment_.get_strings(key);
      if (!entries.empty()) check_list(key, entries);
    }
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
  }

 private:
  // Where the user wrote the key, so that the message leads there.
  Problem problem_at(std::string_view key) const {
    const config::Origin& origin = experiment_.setting(key).origin;
    const bool is_typed = origin.layer == config::Layer::kCommandLine;
    return {.file = is_typed ? "command line" : origin.file, .line = origin.line, .key = std::string(key)};
  }

  void add(std::string_view key, std::string message, std::string nearest = "") {
    Problem problem = problem_at(key);
    problem.message = std::move(message);
    problem.nearest = std::move(nearest);
    problems_.push_back(std::move(problem));
  }

  void check_list(std::string_view key, const std::vector<std::string>& entries) {
    data::BlendSpec blend;
    try {
      blend = data::parse_blend(entries, std::string(key));
    } catch (const ConfigError& error) {
      for (Problem problem : error.problems()) {
        const Problem place = problem_at(key);
        problem.file = place.file;
        problem.line = place.line;
        problems_.push_back(std::move(problem));
      }
      return;
    }
    const bool gives_training_samples = key == "data_path" || key == "train_data_path";
    std::int64_t num_tokens = 0;
    bool are_read = true;
    for (std::size_t i = 0; i < blend.prefixes.size(); ++i) {
      const auto tokens = check_file(key, blend.prefixes[i]);
      are_read = are_read && tokens.has_value();
      if (!blend.weights || (*blend.weights)[i] > 0.0) num_tokens = std::max(num_tokens, tokens.value_or(0));
    }
    const std::int64_t sample = experiment_.get_int("seq_length") + 1;
    if (gives_training_samples && are_read && num_tokens < sample) {
      add(key,
          fmt::format("holds no sample to train on: the largest file has {} tokens in its training part, a sample {}",
                      num_tokens, sample),
          key == "data_path" ? "give more text, a smaller seq_length, or a larger first number of split"
                             : "give more text, or a smaller seq_length");
    }
  }

  /// Tokens of a file that training may use; nothing after a fault.
  std::optional<std::int64_t> check_file(std::string_view key, const std::string& prefix) {
    try {
      const data::IndexedDataset file(prefix);
      check_vocabulary(key, file);
      if (key != "data_path") return file.num_tokens();
      const auto split = experiment_.get_optional_string("split").value_or("969,30,1");
      const data::SequenceRange range = data::split_ranges(split, file.num_sequences())[0];
      std::int64_t num_tokens = 0;
      for (std::int64_t i = range.begin; i < range.end; ++i) num_tokens += file.length(i);
      return num_tokens;
    } catch (const UserError& error) {
      add(key, error.what());
      return std::nullopt;
    }
  }

  void check_vocabulary(std::string_view key, const data::IndexedDataset& file) {
    constexpr std::int64_t kMostTokens = 1 << 18;
    const std::int64_t vocab_size = experiment_.get_int("vocab_size");
    std::vector<std::int64_t> tokens;
    std::int64_t num_read = 0;
    for (std::int64_t i = 0; i < file.num_sequences() && num_read < kMostTokens; ++i) {
      tokens.resize(static_cast<std::size_t>(std::min(file.length(i), kMostTokens - num_read)));
      file.read(i, 0, tokens);
      num_read += std::ssize(tokens);
      const auto wrong =
          std::find_if(tokens.begin(), tokens.end(), [&](std::int64_t id) { return id < 0 || id >= vocab_size; });
      if (wrong == tokens.end()) continue;
      add(key,
          fmt::format("{}.bin holds token {}, outside the vocabulary of {} ids", file.name(), *wrong,
                      format_count(vocab_size)),
          fmt::format("was it made with another tokenizer than {}?",
                      experiment_.get_optional_string("tokenizer_type").value_or("this one")));
      return;
    }
  }

  const config::Experiment& experiment_;
  std::vector<Problem> problems_;
};

DataUse look_at(std::string_view key, const std::string& prefix) {
  DataUse use{.key = std::string(key), .prefix = prefix};
  try {
    const data::IndexedDataset file(prefix);
    use.num_sequences = file.num_sequences();
    use.num_tokens = file.num_tokens();
  } catch (const UserError& error) {
    use.fault = error.what();
  }
  return use;
}

}  // namespace

std::vector<DataUse> look_at_data(const config::Experiment& experiment) {
  std::vector<DataUse> uses;
  if (experiment.get_bool("mock_data")) return uses;
  for (const std::string_view key : kDataPaths) {
    const std::vector<std::string> entries = experiment.get_strings(key);
    if (entries.empty()) continue;
    try {
      for (const std::string& prefix : data::parse_blend(entries, std::string(key)).prefixes)
        uses.push_back(look_at(key, prefix));
    } catch (const UserError& error) {
      uses.push_back({.key = std::string(key), .prefix = entries.front(), .fault = error.what()});
    }
  }
  return uses;
}

void check_data(const config::Experiment& experiment) {
  if (!experiment.get_bool("mock_data")) DataCheck(experiment).run();
}

}  // namespace primus::cli
