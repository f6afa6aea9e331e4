#pragma once
// A Hugging Face folder from a model that lies elsewhere, tensor by tensor.
#include "checkpoint/import.hpp"

namespace primus::checkpoint {

/// What an export writes, known before any of it is.
struct ExportPlan {
  ExportedConfig config;
  TensorMapping mapping;
  WritePlan write;
  std::vector<std::string> notes;
};

/// Throws ConfigError where the experiment is no model of any architecture that is converted, for tensors that would
/// be of several types where no type was asked for, and for a target that exists already.
ExportPlan plan_export(const StoredModel& stored, const WriteOptions& options);

/// Write config.json, the tokenizer files of the import, and the weights as model.safetensors or shards with an index.
void write_hugging_face(const StoredModel& stored, const WriteOptions& options, const ExportPlan& plan,
                        const Progress& progress);

}  // namespace primus::checkpoint
