#include "checkpoint/export.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.hpp"
#include "checkpoint/refuse.hpp"

namespace primus::checkpoint {
namespace {

/// The type that most elements have: what config.json calls the model's.
DType main_type(const std::vector<StoredTensor>& tensors) {
  std::map<DType, std::int64_t> bytes;
  for (const StoredTensor& tensor : tensors) bytes[*tensor.type->dtype] += tensor_bytes(*tensor.type, tensor.shape);
  return std::ranges::max_element(bytes, {}, [](const auto& entry) { return entry.second; })->first;
}

std::string experiment_file(const StoredModel& stored) {
  const bool is_ours = is_checkpoint(stored.folder);
  return (stored.folder / (is_ours ? kExperimentFile : "config.json")).string();
}

}  // namespace

ExportPlan plan_export(const StoredModel& stored, const WriteOptions& options) {
  check_target(options.to);
  ExportPlan plan;
  const auto& parameters = stored.weights->parameters();
  // Which architecture it is decides how tensors are called, and which type most have stands in config.json.
  plan.config =
      write_hugging_face_config(stored.experiment, stored.source_config, DType::kFloat32, experiment_file(stored));
  plan.mapping = map_tensors(parameters, plan.config.architecture);
  std::vector<Problem> problems;
  for (const std::string& name : plan.mapping.unnamed) {
    problems.push_back(problem_of({experiment_file(stored), name, "is a parameter without a Hugging Face name"}));
  }
  const std::vector<std::vector<Block>> blocks = blocks_by_tensor(plan.mapping);
  for (std::size_t i = 0; i < plan.mapping.tensors.size(); ++i) {
    const HuggingFaceTensor& tensor = plan.mapping.tensors[i];
    StoredTensor written;
    written.name = tensor.name;
    written.type =
        &element_type(written_type(stored.weights->dtype(blocks[i].front().parameter), options.dtype, tensor.trained));
    written.shape = tensor.shape;
    plan.write.num_bytes += tensor_bytes(*written.type, written.shape);
    plan.write.tensors.push_back(std::move(written));
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  plan.config = write_hugging_face_config(stored.experiment, stored.source_config, main_type(plan.write.tensors),
                                          experiment_file(stored));
  plan.write.shards = plan_shards(plan.write.tensors, options.shard_bytes, "model");
  if (stored.spec.padded_vocab_size > stored.spec.vocab_size) {
    plan.notes.push_back(fmt::format("left out: {} rows that pad the vocabulary of {}",
                                     stored.spec.padded_vocab_size - stored.spec.vocab_size, stored.spec.vocab_size));
  }
  return plan;
}

void write_hugging_face(const StoredModel& stored, const WriteOptions& options, const ExportPlan& plan,
                        const Progress& progress) {
  NewFolder folder(options.to);
  write_file(folder.path() / "config.json", plan.config.json.dump(2) + "\n");
  if (stored.source_config) {
    copy_companions(is_checkpoint(stored.folder) ? stored.folder / kSourceFolder : stored.folder, folder.path());
  }
  const std::vector<std::vector<Block>> blocks = blocks_by_tensor(plan.mapping);
  SafetensorsFolderWriter writer(folder.path(), plan.write.tensors, plan.write.shards);
  std::int64_t done = 0;
  for (std::size_t i = 0; i < plan.write.tensors.size(); ++i) {
    const DType dtype = *plan.write.tensors[i].type->dtype;
    const auto read = [&](std::size_t parameter, std::int64_t begin, std::span<std::byte> out) {
      stored.weights->read(parameter, begin, dtype, out);
    };
    stream_tensor(blocks[i], size_bytes(dtype), read, [&](std::span<const std::byte> bytes) {
      writer.append(i, bytes);
      done += std::ssize(bytes);
      progress(done, plan.write.num_bytes);
    });
  }
  writer.finish();
  if (plan.write.shards.files.size() > 1) {
    write_file(folder.path() / "model.safetensors.index.json", shard_index_text(plan.write.tensors, plan.write.shards));
  }
  folder.commit();
}

}  // namespace primus::checkpoint
