#pragma once
// A checkpoint of ours, tensor by tensor, with every checksum compared.
#include <functional>
#include <map>
#include <memory>

#include "checkpoint/checkpoint_index.hpp"
#include "checkpoint/safetensors.hpp"

namespace primus::checkpoint {

class CheckpointReader {
 public:
  /// Reads the index and compares every file's length and header with it. Throws DamagedError, and ConfigError for a
  /// checkpoint of another release.
  explicit CheckpointReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const CheckpointIndex& index() const { return index_; }

  /// The whole tensor in the type in which it is stored, put together from its pieces. Throws DamagedError.
  void read(const GlobalTensor& tensor, std::span<std::byte> out) const;

 private:
  struct Place {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };

  Place place_of(const GlobalTensor& tensor, const Piece& piece) const;
  void read_piece(const GlobalTensor& tensor, const Piece& piece, std::span<std::byte> out) const;

  std::filesystem::path folder_;
  CheckpointIndex index_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

/// Every byte of a checkpoint: what is damaged, tensor by tensor. `progress`: bytes done and in all.
std::vector<std::string> find_damage(const CheckpointReader& reader,
                                     const std::function<void(std::int64_t done, std::int64_t all)>& progress);

}  // namespace primus::checkpoint
