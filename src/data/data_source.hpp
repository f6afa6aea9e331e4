#pragma once
// The training, validation and test data of a run, batch by batch.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/gpt_index.hpp"
#include "data/sample_set.hpp"
#include "data/sampler.hpp"

namespace primus::data {

/// Samples that a run will want of each split; absent: one epoch.
struct RequestedSamples {
  std::optional<std::int64_t> train;
  std::optional<std::int64_t> valid;
  std::optional<std::int64_t> test;
};

/// How long a run is, for requested_samples().
struct RunLength {
  std::int64_t train_iters = 0;
  std::optional<std::int64_t> train_samples;  // instead of train_iters x global_batch_size
  std::int64_t global_batch_size = 0;
  std::int64_t eval_interval = 0;  // 0: never
  std::int64_t eval_iters = 0;
};

/// Counts as Megatron asks for them: one evaluation an interval, one at the end, one of the test split.
RequestedSamples requested_samples(const RunLength& run);

/// What a DataSource is made from; names follow the keys.
struct DataOptions {
  std::vector<std::string> data_path;  // one list for all splits, divided by `split` …
  std::string split = "969,30,1";
  std::vector<std::string> train_data_path;  // … or a list of its own for each
  std::vector<std::string> valid_data_path;
  std::vector<std::string> test_data_path;
  bool mock_data = false;  // instead of files; split into three equal parts
  std::int64_t seed = 1234;
  std::int64_t seq_length = 0;
  RequestedSamples requested;
  std::int64_t vocab_size = 0;        // ids must be below it (unpadded)
  std::int64_t eod = 0;               // end-of-document id
  bool eod_mask_loss = false;         // do not learn what follows an end of document
  bool reset_position_ids = false;    // batches say where each token stands in its document
  bool reset_attention_mask = false;  // batches say where each token's document begins
  bool drop_last_partial_validation_sequence = true;
  DataloaderType dataloader_type = DataloaderType::kSingle;
};

/// A micro-batch; all arrays are [batch_size, seq_length], row by row.
struct GptBatch {
  std::int64_t batch_size = 0;
  std::int64_t seq_length = 0;
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> labels;
  std::vector<float> loss_mask;          // 1: this label counts
  std::int64_t num_valid = 0;            // labels that count
  std::vector<std::int64_t> positions;   // in the token's document; empty: in its row
  std::vector<std::int32_t> first_keys;  // column where the token's document begins; empty: the row's first
};

/// Which micro-batch: `micro_batch` of the step that begins after `consumed_samples`, as `data_parallel` sees it.
struct BatchPosition {
  std::int64_t consumed_samples = 0;
  std::int64_t micro_batch = 0;
  std::int64_t micro_batch_size = 1;
  DataParallelRank data_parallel;
};

/// The data of a run. What a batch holds depends on the options and its position only: not on what was read before,
/// on the number of ranks that share the global batch, or on restarts. Safe to use from several threads.
class DataSource {
 public:
  /// Opens and checks every file. Throws UserError or ConfigError.
  explicit DataSource(DataOptions options);
  ~DataSource();

  const DataOptions& options() const { return options_; }
  /// Samples of a split; 0 if it is empty. More than were requested, as whole epochs are laid out.
  std::int64_t num_samples(Split split) const;
  /// Throws UserError if the split ends before this position.
  GptBatch read(Split split, const BatchPosition& position) const;

 private:
  struct Part;
  const Part& part(Split split) const;

  DataOptions options_;
  std::array<std::unique_ptr<Part>, kNumSplits> parts_;
};

}  // namespace primus::data
