#include "checkpoint/import.hpp"

#include <fmt/format.h>

#include <array>

#include "base/files.hpp"
#include "checkpoint/crc32c.hpp"
#include "checkpoint/refuse.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 10> kCompanions = {"generation_config.json",
                                                     "tokenizer.json",
                                                     "tokenizer_config.json",
                                                     "special_tokens_map.json",
                                                     "added_tokens.json",
                                                     "vocab.json",
                                                     "merges.txt",
                                                     "tokenizer.model",
                                                     "chat_template.jinja",
                                                     "chat_template.json"};

/// Checksums come after the data, so the index is the last file.
CheckpointIndex make_index(const WritePlan& plan, const std::vector<std::uint32_t>& sums, const std::string& made_by) {
  CheckpointIndex index;
  index.made_by = made_by;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const StoredTensor& tensor = plan.tensors[i];
    GlobalTensor global{.name = tensor.name, .kind = kWeight, .type = tensor.type, .shape = tensor.shape, .pieces = {}};
    global.pieces.push_back({.file = plan.shards.files[plan.shards.shard_of[i]],
                             .tensor = tensor.name,
                             .begin = std::vector<std::int64_t>(tensor.shape.size(), 0),
                             .shape = tensor.shape,
                             .crc32c = sums[i]});
    index.tensors.push_back(std::move(global));
  }
  return index;
}

void write_experiment(const fs::path& folder, const RunDescription& run, const StoredModel& source) {
  write_file(folder / kExperimentFile, run.experiment_json);
  write_file(folder / kExperimentYaml, run.experiment_yaml);
  if (!source.source_config) return;
  make_folder(folder / kSourceFolder);
  write_file(folder / kSourceFolder / "config.json", source.source_config->dump(2) + "\n");
  copy_companions(is_checkpoint(source.folder) ? source.folder / kSourceFolder : source.folder, folder / kSourceFolder);
}

}  // namespace

DType written_type(DType stored, std::optional<DType> wanted, model::Trained trained) {
  if (!wanted || trained == model::Trained::kNo) return stored;
  return *wanted;
}

void copy_companions(const fs::path& from, const fs::path& to) {
  for (const char* name : kCompanions) {
    if (fs::exists(from / name)) write_file(to / name, read_file(from / name));
  }
}

WritePlan plan_checkpoint(const Weights& weights, const WriteOptions& options) {
  check_target(options.to);
  WritePlan plan;
  std::vector<Problem> problems;
  const auto& parameters = weights.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!options.dtype && weights.has_mixed_types(i)) {
      problems.push_back(problem_of({.file = "command line",
                                     .key = parameters[i].name,
                                     .message = "is made of tensors of several types",
                                     .expected = "a type to convert to, such as --dtype bf16"}));
    }
    StoredTensor tensor;
    tensor.name = parameters[i].name;
    tensor.type = &element_type(written_type(weights.dtype(i), options.dtype, parameters[i].trained));
    tensor.shape = parameters[i].shape;
    plan.num_bytes += tensor_bytes(*tensor.type, tensor.shape);
    plan.tensors.push_back(std::move(tensor));
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  plan.shards = plan_shards(plan.tensors, options.shard_bytes, "weights");
  return plan;
}

void write_checkpoint(const Weights& weights, const WriteOptions& options, const WritePlan& plan,
                      const RunDescription& run, const StoredModel& source, const Progress& progress) {
  NewFolder folder(options.to);
  write_experiment(folder.path(), run, source);
  SafetensorsFolderWriter writer(folder.path(), plan.tensors, plan.shards);
  std::vector<std::uint32_t> sums(plan.tensors.size(), 0);
  std::int64_t done = 0;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    weights.stream(i, *plan.tensors[i].type->dtype, [&](std::span<const std::byte> bytes) {
      sums[i] = crc32c(bytes, sums[i]);
      writer.append(i, bytes);
      done += std::ssize(bytes);
      progress(done, plan.num_bytes);
    });
  }
  writer.finish();
  CheckpointIndex index = make_index(plan, sums, run.made_by);
  index.files = describe_files(folder.path());
  write_file(folder.path() / kIndexFile, index_text(index));
  folder.commit();
}

}  // namespace primus::checkpoint
