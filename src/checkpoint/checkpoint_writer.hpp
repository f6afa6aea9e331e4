#pragma once
// A checkpoint of a training run: tensors as they come, in safetensors files, with the index behind them.
#include "checkpoint/checkpoint_index.hpp"
#include "checkpoint/tensor_stream.hpp"

namespace primus::checkpoint {

/// A tensor to write, and what gives its bytes, in order and in pieces.
struct TensorSource {
  std::string name;
  std::string kind;
  const ElementType* type = nullptr;
  std::vector<std::int64_t> shape;
  std::function<void(const Sink& sink)> stream;
};

struct CheckpointContent {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  TrainingState training;
  std::vector<TensorSource> tensors;
  std::string experiment_json;
  std::string experiment_yaml;      // empty: left out
  std::filesystem::path tokenizer;  // a file, or a folder with files of a Hugging Face model; empty: none
};

/// Write it beside `folder`, bring it to the disk and give it its name, in the place of what stands there. Returns the
/// bytes of its tensors. Throws UserError with path and reason; then nothing has changed under that name.
std::int64_t write_training_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content);

}  // namespace primus::checkpoint
