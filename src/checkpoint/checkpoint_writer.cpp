#include "checkpoint/checkpoint_writer.hpp"

#include <fmt/format.h>

#include "base/files.hpp"
#include "checkpoint/crc32c.hpp"
#include "checkpoint/import.hpp"
#include "checkpoint/new_folder.hpp"
#include "checkpoint/safetensors_folder.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerFolder = "tokenizer";

/// Name within its file, which holds several kinds.
std::string stored_name(const TensorSource& source) {
  return source.kind == kWeight ? source.name : fmt::format("{}/{}", source.kind, source.name);
}

/// Writes the tensors into files of this stem and adds them to the index. Returns their bytes.
std::int64_t write_tensors(const fs::path& folder, const std::vector<const TensorSource*>& sources,
                           const std::string& stem, CheckpointIndex& index) {
  if (sources.empty()) return 0;
  std::vector<StoredTensor> tensors;
  for (const TensorSource* source : sources)
    tensors.push_back({.name = stored_name(*source), .type = source->type, .shape = source->shape});
  const ShardPlan plan = plan_shards(tensors, kDefaultShardBytes, stem);
  SafetensorsFolderWriter writer(folder, tensors, plan);
  std::int64_t num_bytes = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    std::uint32_t sum = 0;
    sources[i]->stream([&](std::span<const std::byte> bytes) {
      sum = crc32c(bytes, sum);
      writer.append(i, bytes);
      num_bytes += std::ssize(bytes);
    });
    GlobalTensor tensor{.name = sources[i]->name,
                        .kind = sources[i]->kind,
                        .type = sources[i]->type,
                        .shape = sources[i]->shape,
                        .pieces = {}};
    tensor.pieces.push_back({.file = plan.files[plan.shard_of[i]],
                             .tensor = tensors[i].name,
                             .begin = std::vector<std::int64_t>(sources[i]->shape.size(), 0),
                             .shape = sources[i]->shape,
                             .crc32c = sum});
    index.tensors.push_back(std::move(tensor));
  }
  writer.finish();
  return num_bytes;
}

void copy_tokenizer(const fs::path& tokenizer, const fs::path& to) {
  std::error_code error;
  const bool is_file = fs::is_regular_file(tokenizer, error);
  if (tokenizer.empty() || !(is_file || fs::is_directory(tokenizer, error))) return;
  make_folder(to);
  if (is_file) return write_file(to / tokenizer.filename(), read_file(tokenizer));
  copy_companions(tokenizer, to);
}

}  // namespace

std::int64_t write_training_checkpoint(const fs::path& folder, const CheckpointContent& content) {
  NewFolder target(folder);
  write_file(target.path() / kExperimentFile, content.experiment_json);
  if (!content.experiment_yaml.empty()) write_file(target.path() / kExperimentYaml, content.experiment_yaml);
  copy_tokenizer(content.tokenizer, target.path() / kTokenizerFolder);
  CheckpointIndex index{.iteration = content.iteration,
                        .consumed_samples = content.consumed_samples,
                        .made_by = "train",
                        .tensors = {},
                        .training = content.training,
                        .files = {}};
  std::vector<const TensorSource*> weights;
  std::vector<const TensorSource*> optimizer;
  for (const TensorSource& source : content.tensors) (source.kind == kWeight ? weights : optimizer).push_back(&source);
  std::int64_t num_bytes = write_tensors(target.path(), weights, "weights", index);
  num_bytes += write_tensors(target.path(), optimizer, "optimizer", index);
  index.files = describe_files(target.path());
  write_file(target.path() / kIndexFile, index_text(index));
  target.replace();
  return num_bytes;
}

}  // namespace primus::checkpoint
