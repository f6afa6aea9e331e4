#pragma once
// What the index knows of each file beside it, so that every byte of a checkpoint is under a checksum: tensors have
// theirs in their pieces, headers and small files here.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace primus::checkpoint {

struct StoredFile {
  std::string name;  // within the checkpoint's folder
  std::int64_t num_bytes = 0;
  std::int64_t head_bytes = 0;  // of a safetensors file: length and header; else the whole file
  std::uint32_t crc32c = 0;     // of the head
};

/// All files under the folder but the index, by name. Throws UserError if one cannot be read.
std::vector<StoredFile> describe_files(const std::filesystem::path& folder);

/// Throws DamagedError that names the file unless it is there, as long as it was, with the same head.
void check_file(const std::filesystem::path& folder, const StoredFile& expected);

}  // namespace primus::checkpoint
