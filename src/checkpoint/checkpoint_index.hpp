#pragma once
// checkpoint.json: what a checkpoint of ours holds and where (docs/checkpoints.md).
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/element_type.hpp"
#include "checkpoint/stored_files.hpp"
#include "checkpoint/training_state.hpp"

namespace primus::checkpoint {

inline constexpr const char* kIndexFile = "checkpoint.json";
inline constexpr const char* kExperimentFile = "experiment.json";
inline constexpr const char* kExperimentYaml = "experiment.yaml";
inline constexpr const char* kSourceFolder = "hugging_face";  // config.json and tokenizer files of an import

/// A box of a global tensor, stored as one tensor of a safetensors file of the folder.
struct Piece {
  std::string file;
  std::string tensor;  // its name there
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> shape;
  std::uint32_t crc32c = 0;
};

/// A tensor as it is without any splitting over ranks.
struct GlobalTensor {
  std::string name;
  std::string kind;  // kWeight, or what training adds
  const ElementType* type = nullptr;
  std::vector<std::int64_t> shape;
  std::vector<Piece> pieces;  // cover every element exactly once
};

struct CheckpointIndex {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  std::string made_by;  // "import", "upcycle", "train", …
  std::vector<GlobalTensor> tensors;
  std::optional<TrainingState> training;  // absent: weights alone
  std::vector<StoredFile> files;          // beside the index

  const GlobalTensor* find(std::string_view name, std::string_view kind = kWeight) const;
};

/// Does the folder hold such an index?
bool is_checkpoint(const std::filesystem::path& folder);

/// With a checksum of its own as the first field.
std::string index_text(const CheckpointIndex& index);

/// Throws DamagedError unless that checksum fits the text.
void check_seal(const std::string& text, const std::string& file);

/// Throws ConfigError, which names file, tensor, expected and found, unless format, version, shapes and coverage hold.
CheckpointIndex parse_index(const std::string& text, const std::string& file);

/// The folder's index, its checksum compared. Throws DamagedError for one that is damaged or missing, ConfigError for
/// one that says what this release cannot read.
CheckpointIndex read_index(const std::filesystem::path& folder);

}  // namespace primus::checkpoint
