#include "checkpoint/checkpoint_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "checkpoint/crc32c.hpp"
#include "checkpoint/damage.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kChunkBytes = std::int64_t{1} << 22;

/// The box's rows into the tensor's. Both are dense, the last axis runs fastest.
void copy_box(const GlobalTensor& tensor, const Piece& piece, std::span<const std::byte> box,
              std::span<std::byte> out) {
  const std::size_t num_axes = tensor.shape.size();
  PRIMUS_CHECK(num_axes > 0 && tensor.type->num_bits % 8 == 0, "{}: pieces of {}", tensor.name, tensor.type->name);
  const std::int64_t row_bytes = piece.shape.back() * tensor.type->num_bits / 8;
  if (box.empty()) return;
  std::vector<std::int64_t> at(num_axes, 0);
  for (std::int64_t done = 0; done < std::ssize(box); done += row_bytes) {
    std::int64_t element = 0;
    for (std::size_t axis = 0; axis < num_axes; ++axis)
      element = element * tensor.shape[axis] + piece.begin[axis] + at[axis];
    std::memcpy(out.data() + element * tensor.type->num_bits / 8, box.data() + done,
                static_cast<std::size_t>(row_bytes));
    for (std::size_t axis = num_axes - 1; axis-- > 0;) {
      if (++at[axis] < piece.shape[axis]) break;
      at[axis] = 0;
    }
  }
}

}  // namespace

CheckpointReader::CheckpointReader(fs::path folder) : folder_(std::move(folder)), index_(read_index(folder_)) {
  for (const StoredFile& file : index_.files) check_file(folder_, file);
  for (const GlobalTensor& tensor : index_.tensors) {
    for (const Piece& piece : tensor.pieces) {
      auto& file = files_[piece.file];
      // Its header fits its checksum, so what it says was written so.
      if (!file) file = std::make_unique<SafetensorsFile>((folder_ / piece.file).string());
      place_of(tensor, piece);
    }
  }
}

CheckpointReader::Place CheckpointReader::place_of(const GlobalTensor& tensor, const Piece& piece) const {
  const SafetensorsFile* file = files_.at(piece.file).get();
  const StoredTensor* stored = file->find(piece.tensor);
  if (stored == nullptr) throw DamagedError(fmt::format("{}: {}: is missing", file->path(), piece.tensor));
  if (stored->shape != piece.shape || stored->type != tensor.type) {
    throw DamagedError(fmt::format("{}: {}: is not what the index says (expected {} {}, found {} {})", file->path(),
                                   piece.tensor, tensor.type->name, shape_text(piece.shape), stored->type->name,
                                   shape_text(stored->shape)));
  }
  return {file, stored};
}

void CheckpointReader::read_piece(const GlobalTensor& tensor, const Piece& piece, std::span<std::byte> out) const {
  const Place place = place_of(tensor, piece);
  std::uint32_t sum = 0;
  for (std::int64_t done = 0; done < std::ssize(out); done += kChunkBytes) {
    const auto part = out.subspan(static_cast<std::size_t>(done),
                                  static_cast<std::size_t>(std::min(kChunkBytes, std::ssize(out) - done)));
    try {
      place.file->read(*place.tensor, done, part);
    } catch (const UserError& error) {
      throw DamagedError(error.what());
    }
    sum = crc32c(part, sum);
  }
  if (sum == piece.crc32c) return;
  throw DamagedError(
      fmt::format("{}: {}: the checksum does not fit: the file is damaged (expected {:08x}, found {:08x})",
                  place.file->path(), piece.tensor, piece.crc32c, sum));
}

void CheckpointReader::read(const GlobalTensor& tensor, std::span<std::byte> out) const {
  PRIMUS_CHECK(std::ssize(out) == tensor_bytes(*tensor.type, tensor.shape), "{}: {} bytes", tensor.name, out.size());
  if (tensor.pieces.size() == 1) return read_piece(tensor, tensor.pieces.front(), out);
  std::vector<std::byte> box;
  for (const Piece& piece : tensor.pieces) {
    box.resize(static_cast<std::size_t>(tensor_bytes(*tensor.type, piece.shape)));
    read_piece(tensor, piece, box);
    copy_box(tensor, piece, box, out);
  }
}

std::vector<std::string> find_damage(const CheckpointReader& reader,
                                     const std::function<void(std::int64_t done, std::int64_t all)>& progress) {
  std::vector<std::string> damage;
  const auto& tensors = reader.index().tensors;
  const auto bytes_of = [](const GlobalTensor& tensor) { return tensor_bytes(*tensor.type, tensor.shape); };
  const std::int64_t all =
      std::transform_reduce(tensors.begin(), tensors.end(), std::int64_t{0}, std::plus<>(), bytes_of);
  std::int64_t done = 0;
  std::vector<std::byte> buffer;
  for (const GlobalTensor& tensor : tensors) {
    buffer.resize(static_cast<std::size_t>(bytes_of(tensor)));
    try {
      reader.read(tensor, buffer);
    } catch (const DamagedError& error) {
      damage.push_back(error.what());
    }
    progress(done += bytes_of(tensor), all);
  }
  return damage;
}

}  // namespace primus::checkpoint
