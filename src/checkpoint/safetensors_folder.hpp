#pragma once
// Tensors spread over files: model.safetensors, or shards with model.safetensors.index.json.
#include <filesystem>
#include <functional>

#include "checkpoint/safetensors.hpp"

namespace primus::checkpoint {

/// The tensors of a folder as Hugging Face lays them out. Headers are read when it is opened, data on demand.
class SafetensorsFolder {
 public:
  struct Place {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };

  /// Throws ConfigError for a folder without safetensors (naming pickled files, which are never read), an index that
  /// disagrees with its files, and a tensor that two files hold.
  explicit SafetensorsFolder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return folder_; }
  const std::map<std::string, Place, std::less<>>& tensors() const { return tensors_; }
  /// nullptr if there is none of this name.
  const Place* find(std::string_view name) const;

 private:
  void check_index(const std::filesystem::path& index, const std::map<std::string, std::string>& weight_map) const;

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place, std::less<>> tensors_;
};

/// How tensors are put into files.
struct ShardPlan {
  std::vector<std::string> files;
  std::vector<std::vector<std::size_t>> tensors;  // of each file, by number
  std::vector<std::size_t> shard_of;              // of each tensor
};

/// Fill files up to `most_bytes` each, in the tensors' order; a larger tensor gets one of its own. Names:
/// STEM.safetensors, or STEM-00001-of-00003.safetensors and so on.
ShardPlan plan_shards(const std::vector<StoredTensor>& tensors, std::int64_t most_bytes, const std::string& stem);

/// Writes the shards of a plan, one after the other: tensors come in the plan's order, in pieces of any size.
class SafetensorsFolderWriter {
 public:
  SafetensorsFolderWriter(std::filesystem::path folder, std::vector<StoredTensor> tensors, const ShardPlan& plan);
  void append(std::size_t tensor, std::span<const std::byte> bytes);
  void finish();

 private:
  void open(std::size_t shard);

  std::filesystem::path folder_;
  std::vector<StoredTensor> tensors_;
  ShardPlan plan_;
  std::size_t shard_ = 0;
  std::unique_ptr<SafetensorsWriter> writer_;
};

/// The index that Hugging Face writes beside several shards.
std::string shard_index_text(const std::vector<StoredTensor>& tensors, const ShardPlan& plan);

}  // namespace primus::checkpoint
