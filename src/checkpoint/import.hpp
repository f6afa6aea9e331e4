#pragma once
// A checkpoint of ours from weights that lie elsewhere, tensor by tensor.
#include "checkpoint/new_folder.hpp"
#include "checkpoint/weights.hpp"

namespace primus::checkpoint {

/// Bytes done and in all.
using Progress = std::function<void(std::int64_t done, std::int64_t all)>;

inline constexpr std::int64_t kDefaultShardBytes = 5'000'000'000;  // as Hugging Face cuts

/// What to write and where.
struct WriteOptions {
  std::filesystem::path to;
  std::optional<DType> dtype;  // none: each parameter as it is stored
  std::int64_t shard_bytes = kDefaultShardBytes;
};

/// What is written, known before any of it is.
struct WritePlan {
  std::vector<StoredTensor> tensors;
  ShardPlan shards;
  std::int64_t num_bytes = 0;
};

/// The run's half of a checkpoint.
struct RunDescription {
  std::string experiment_json;
  std::string experiment_yaml;
  std::string made_by;
};

/// Throws ConfigError for parameters whose tensors are of several types where no type was asked for, and for a target
/// that exists already.
WritePlan plan_checkpoint(const Weights& weights, const WriteOptions& options);

/// Write it as a folder beside `options.to` that is renamed when all of it is on the disk. Router biases stay fp32.
/// `source`: the model it is made from, whose config.json and tokenizer files are kept for an export.
void write_checkpoint(const Weights& weights, const WriteOptions& options, const WritePlan& plan,
                      const RunDescription& run, const StoredModel& source, const Progress& progress);

/// The type in which a parameter or tensor is written.
DType written_type(DType stored, std::optional<DType> wanted, model::Trained trained);

/// Files that go along with a Hugging Face model and that nothing here reads, such as its tokenizer.
void copy_companions(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace primus::checkpoint
