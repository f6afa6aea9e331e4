#include "data/data_source.hpp"

#include <limits>
#include <map>
#include <span>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/blended_dataset.hpp"
#include "data/gpt_dataset.hpp"
#include "data/indexed_dataset.hpp"
#include "data/mock_dataset.hpp"

namespace primus::data {
namespace {

constexpr std::array<Split, kNumSplits> kSplits = {Split::kTrain, Split::kValid, Split::kTest};

using RequestedCounts = std::array<std::optional<std::int64_t>, kNumSplits>;

RequestedCounts as_array(const RequestedSamples& requested) {
  return {requested.train, requested.valid, requested.test};
}

/// Opens a file once, however many splits read it.
class StoreCache {
 public:
  std::shared_ptr<const TokenStore> open(const std::string& prefix) {
    auto& store = stores_[prefix];
    if (!store) store = std::make_shared<const IndexedDataset>(prefix);
    return store;
  }

 private:
  std::map<std::string, std::shared_ptr<const TokenStore>> stores_;
};

GptIndexOptions index_options(const DataOptions& options, Split split, SequenceRange range,
                              std::optional<std::int64_t> num_samples) {
  GptIndexOptions result;
  result.range = range;
  result.seq_length = options.seq_length;
  result.num_samples = num_samples;
  result.seed = static_cast<std::uint32_t>(options.seed);
  if (split == Split::kValid && !options.drop_last_partial_validation_sequence) {
    result.partial_sample = PartialSample::kKept;
  }
  return result;
}

/// Samples of one split from a blend; `range_of` says which sequences of a store belong to it.
template <typename RangeOf>
std::unique_ptr<SampleSet> build_samples(const DataOptions& options, Split split, const BlendSpec& blend,
                                         std::optional<std::int64_t> requested, StoreCache& stores, RangeOf range_of) {
  const auto build = [&](const std::string& prefix, std::optional<std::int64_t> num_samples) {
    const auto store = stores.open(prefix);
    const SequenceRange range = range_of(*store);
    return std::make_unique<GptDataset>(store, index_options(options, split, range, num_samples));
  };
  const bool is_weighted = blend.weights.has_value();
  if (blend.prefixes.size() == 1 && !is_weighted) return build(blend.prefixes.front(), requested);

  std::vector<std::unique_ptr<SampleSet>> datasets;
  if (is_weighted && !requested) {
    throw UserError(fmt::format("the {} data has weights, which need a number of samples", to_text(split)),
                    ExitCode::kWrongInput);
  }
  const std::vector<double> shares = is_weighted ? normalized(*blend.weights) : std::vector<double>();
  for (std::size_t i = 0; i < blend.prefixes.size(); ++i) {
    std::optional<std::int64_t> num_samples;
    if (is_weighted) num_samples = blend_surplus(blend_target(*requested, shares[i]));
    datasets.push_back(build(blend.prefixes[i], num_samples));
  }
  return std::make_unique<BlendedDataset>(std::move(datasets), blend.weights, requested);
}

void check(const DataOptions& options) {
  std::vector<Problem> problems;
  const auto add = [&problems](const char* key, std::string message, std::string expected, std::string found) {
    Problem problem;
    problem.key = key;
    problem.message = std::move(message);
    problem.expected = std::move(expected);
    problem.found = std::move(found);
    problems.push_back(std::move(problem));
  };
  const bool has_own_lists =
      !options.train_data_path.empty() || !options.valid_data_path.empty() || !options.test_data_path.empty();
  const bool has_files = has_own_lists || !options.data_path.empty();
  if (options.mock_data && has_files) add("mock_data", "cannot be combined with data paths", "one of the two", "both");
  if (!options.mock_data && !has_files) {
    add("data_path", "no data is given", "data_path, train_data_path or mock_data: true", "none");
  }
  if (has_own_lists && !options.data_path.empty()) {
    add("data_path", "cannot be combined with train_data_path, valid_data_path or test_data_path", "one of the two",
        "both");
  }
  if (options.seq_length < 1) {
    add("seq_length", "is too small", "integer >= 1", std::to_string(options.seq_length));
  }
  // NumPy's legacy generator, whose stream defines the order, takes 32 bits.
  if (options.seed < 0 || options.seed > std::numeric_limits<std::uint32_t>::max()) {
    add("seed", "cannot seed the data order", "integer in 0..4294967295", std::to_string(options.seed));
  }
  if (options.vocab_size < 1) {
    add("vocab_size", "is too small", "integer >= 1", std::to_string(options.vocab_size));
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

/// Spread sample rows of seq_length + 1 tokens over the arrays of a batch.
void fill_row(std::span<const std::int64_t> sample, const DataOptions& options, std::int64_t row, GptBatch& batch) {
  const auto base = static_cast<std::size_t>(row * batch.seq_length);
  for (std::size_t i = 0; i + 1 < sample.size(); ++i) {
    const std::int64_t token = sample[i];
    const std::int64_t label = sample[i + 1];
    const bool counts = label != kNoToken && !(options.eod_mask_loss && token == options.eod);
    batch.tokens[base + i] = token == kNoToken ? 0 : token;
    batch.labels[base + i] = label == kNoToken ? 0 : label;
    batch.loss_mask[base + i] = counts ? 1.0F : 0.0F;
    batch.num_valid += counts ? 1 : 0;
  }
}

/// Where the document of each token of a row begins. An end-of-document token is the last of the document it ends.
void mark_documents(const DataOptions& options, std::int64_t row, GptBatch& batch) {
  const auto base = static_cast<std::size_t>(row * batch.seq_length);
  std::int64_t first = 0;
  for (std::int64_t column = 0; column < batch.seq_length; ++column) {
    const std::size_t i = base + static_cast<std::size_t>(column);
    if (options.reset_position_ids) batch.positions[i] = column - first;
    if (options.reset_attention_mask) batch.first_keys[i] = static_cast<std::int32_t>(first);
    if (batch.tokens[i] == options.eod) first = column + 1;
  }
}

}  // namespace

struct DataSource::Part {
  std::unique_ptr<SampleSet> samples;
  Sampler sampler;

  Part(std::unique_ptr<SampleSet> set, const DataOptions& options)
      : samples(std::move(set)),
        sampler(options.dataloader_type, static_cast<std::uint64_t>(options.seed), samples->num_samples()) {}
};

RequestedSamples requested_samples(const RunLength& run) {
  const std::int64_t num_evaluations = run.eval_interval > 0 ? run.train_iters / run.eval_interval + 1 : 0;
  RequestedSamples requested;
  requested.train = run.train_samples.value_or(run.train_iters * run.global_batch_size);
  requested.valid = num_evaluations * run.eval_iters * run.global_batch_size;
  requested.test = run.eval_iters * run.global_batch_size;
  return requested;
}

DataSource::DataSource(DataOptions options) : options_(std::move(options)) {
  check(options_);
  const RequestedCounts requested = as_array(options_.requested);
  if (options_.mock_data) {
    const auto store = std::make_shared<const MockDataset>(options_.vocab_size, options_.eod);
    const auto ranges = split_ranges("1,1,1", store->num_sequences());
    for (const Split split : kSplits) {
      const auto i = static_cast<std::size_t>(split);
      parts_[i] = std::make_unique<Part>(
          std::make_unique<GptDataset>(store, index_options(options_, split, ranges[i], requested[i])), options_);
    }
    return;
  }

  StoreCache stores;
  const std::array<const std::vector<std::string>*, kNumSplits> own_lists = {
      &options_.train_data_path, &options_.valid_data_path, &options_.test_data_path};
  constexpr std::array<const char*, kNumSplits> kOwnKeys = {"train_data_path", "valid_data_path", "test_data_path"};
  for (const Split split : kSplits) {
    const auto i = static_cast<std::size_t>(split);
    std::unique_ptr<SampleSet> samples;
    if (!options_.data_path.empty()) {
      // A split whose share is zero is absent; its data sets must not be asked for samples that they do not have.
      if (split_fractions(options_.split)[i] == 0.0) continue;
      samples = build_samples(
          options_, split, parse_blend(options_.data_path, "data_path"), requested[i], stores,
          [&](const TokenStore& store) { return split_ranges(options_.split, store.num_sequences())[i]; });
    } else if (!own_lists[i]->empty()) {
      BlendSpec blend = parse_blend(*own_lists[i], kOwnKeys[i]);
      // As in Megatron, a lone data set is no blend here, while the weight of a lone `data_path` still adds the
      // surplus.
      if (blend.prefixes.size() == 1) blend.weights.reset();
      samples = build_samples(options_, split, blend, requested[i], stores, [](const TokenStore& store) {
        return SequenceRange{0, store.num_sequences()};
      });
    } else {
      continue;
    }
    parts_[i] = std::make_unique<Part>(std::move(samples), options_);
  }
}

DataSource::~DataSource() = default;

std::int64_t DataSource::num_samples(Split split) const {
  const auto& part = parts_[static_cast<std::size_t>(split)];
  return part ? part->samples->num_samples() : 0;
}

const DataSource::Part& DataSource::part(Split split) const {
  const auto& part = parts_[static_cast<std::size_t>(split)];
  if (!part || part->samples->num_samples() == 0) {
    throw UserError(
        fmt::format("the {} split has no samples of {} tokens: give it more documents, or a larger part of split '{}'",
                    to_text(split), options_.seq_length + 1, options_.split),
        ExitCode::kWrongInput);
  }
  return *part;
}

GptBatch DataSource::read(Split split, const BatchPosition& position) const {
  const Part& source = part(split);
  const DataParallelRank& ranks = position.data_parallel;
  PRIMUS_CHECK(position.consumed_samples >= 0 && position.micro_batch >= 0 && position.micro_batch_size > 0 &&
                   ranks.rank >= 0 && ranks.rank < ranks.size,
               "consumed {}, micro-batch {} of {}, rank {} of {}", position.consumed_samples, position.micro_batch,
               position.micro_batch_size, ranks.rank, ranks.size);
  const std::int64_t first =
      position.consumed_samples + (position.micro_batch * ranks.size + ranks.rank) * position.micro_batch_size;
  if (options_.dataloader_type == DataloaderType::kSingle &&
      first + position.micro_batch_size > source.samples->num_samples()) {
    throw UserError(fmt::format(
        "the {} data ends after {} samples, sample {} was asked for: train for fewer iterations, or give more data",
        to_text(split), format_count(source.samples->num_samples()),
        format_count(first + position.micro_batch_size - 1)));
  }

  GptBatch batch;
  batch.batch_size = position.micro_batch_size;
  batch.seq_length = options_.seq_length;
  const auto num_elements = static_cast<std::size_t>(batch.batch_size * batch.seq_length);
  batch.tokens.resize(num_elements);
  batch.labels.resize(num_elements);
  batch.loss_mask.resize(num_elements);
  if (options_.reset_position_ids) batch.positions.resize(num_elements);
  if (options_.reset_attention_mask) batch.first_keys.resize(num_elements);
  std::vector<std::int64_t> sample(static_cast<std::size_t>(options_.seq_length) + 1);
  for (std::int64_t row = 0; row < batch.batch_size; ++row) {
    source.samples->read(source.sampler.at(first + row), sample);
    for (const std::int64_t token : sample) {
      // Checked here, where the file is known: in the embedding it would be a wild read.
      if (token != kNoToken && (token < 0 || token >= options_.vocab_size)) [[unlikely]] {
        throw UserError(fmt::format("{}: holds token {}, outside the vocabulary of {} ids: was it made with another "
                                    "tokenizer?",
                                    source.samples->name(), token, options_.vocab_size),
                        ExitCode::kWrongInput);
      }
    }
    fill_row(sample, options_, row, batch);
    mark_documents(options_, row, batch);
  }
  return batch;
}

}  // namespace primus::data
