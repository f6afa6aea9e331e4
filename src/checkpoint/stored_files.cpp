#include "checkpoint/stored_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "checkpoint/checkpoint_index.hpp"
#include "checkpoint/crc32c.hpp"
#include "checkpoint/damage.hpp"
#include "checkpoint/safetensors_header.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLengthBytes = 8;

std::string read_head(std::ifstream& in, std::int64_t num_bytes) {
  std::string head(static_cast<std::size_t>(num_bytes), '\0');
  in.read(head.data(), num_bytes);
  return in ? head : std::string();
}

/// Bytes of length and header; the whole file where they cannot be that.
std::int64_t head_bytes(std::ifstream& in, const fs::path& path, std::int64_t num_bytes) {
  if (path.extension() != ".safetensors" || num_bytes < kLengthBytes) return num_bytes;
  const std::string text = read_head(in, kLengthBytes);
  in.seekg(0);
  std::uint64_t length = 0;
  if (text.size() == kLengthBytes) std::memcpy(&length, text.data(), kLengthBytes);
  const std::int64_t most = std::min(kMostHeaderBytes, num_bytes - kLengthBytes);
  return length > static_cast<std::uint64_t>(most) ? num_bytes : kLengthBytes + static_cast<std::int64_t>(length);
}

StoredFile describe(const fs::path& folder, const std::string& name) {
  const fs::path path = folder / name;
  std::error_code error;
  const auto size = fs::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in) throw DamagedError(fmt::format("{}: cannot be read", path.string()));
  StoredFile file{.name = name, .num_bytes = static_cast<std::int64_t>(size)};
  file.head_bytes = head_bytes(in, path, file.num_bytes);
  const std::string head = read_head(in, file.head_bytes);
  if (std::ssize(head) != file.head_bytes) throw DamagedError(fmt::format("{}: reading failed", path.string()));
  file.crc32c = crc32c(std::as_bytes(std::span(head)));
  return file;
}

}  // namespace

std::vector<StoredFile> describe_files(const fs::path& folder) {
  std::vector<StoredFile> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().lexically_relative(folder).generic_string();
    if (name != kIndexFile) files.push_back(describe(folder, name));
  }
  std::ranges::sort(files, {}, &StoredFile::name);
  return files;
}

void check_file(const fs::path& folder, const StoredFile& expected) {
  const fs::path path = folder / expected.name;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) throw DamagedError(fmt::format("{}: is missing", path.string()));
  const auto size = static_cast<std::int64_t>(fs::file_size(path, error));
  if (size != expected.num_bytes) {
    throw DamagedError(
        fmt::format("{}: has another length (expected {} bytes, found {})", path.string(), expected.num_bytes, size));
  }
  const StoredFile found = describe(folder, expected.name);
  if (found.head_bytes == expected.head_bytes && found.crc32c == expected.crc32c) return;
  throw DamagedError(fmt::format("{}: the checksum does not fit: the file is damaged (expected {:08x}, found {:08x})",
                                 path.string(), expected.crc32c, found.crc32c));
}

}  // namespace primus::checkpoint
