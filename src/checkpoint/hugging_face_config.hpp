#pragma once
// config.json and experiment, both ways (architectures.hpp has the tables).
#include <filesystem>
#include <optional>

#include "base/dtype.hpp"
#include "checkpoint/architectures.hpp"

namespace primus::checkpoint {

/// What a config.json says.
struct HuggingFaceConfig {
  Architecture architecture = Architecture::kLlama;
  Json json;
  config::Experiment experiment;  // the model's settings; data, batch and optimizer are the user's
  ConfigFacts facts;
};

/// Throws ConfigError with every field that is missing, wrong, contradicted or of unknown meaning.
HuggingFaceConfig parse_hugging_face_config(const std::string& text, const std::string& file);

/// FOLDER/config.json.
HuggingFaceConfig read_hugging_face_config(const std::filesystem::path& folder);

struct ExportedConfig {
  Architecture architecture = Architecture::kLlama;
  Json json;
};

/// The config.json of an experiment. `source`, the one that the weights were imported with, keeps what has no meaning
/// here (special tokens and the like) and its spelling; without it the architecture that fits is found.
/// Throws ConfigError that names every setting which no such config can express.
ExportedConfig write_hugging_face_config(const config::Experiment& experiment, const std::optional<Json>& source,
                                         DType dtype, const std::string& experiment_file);

}  // namespace primus::checkpoint
