#include "checkpoint/safetensors.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "checkpoint/refuse.hpp"

namespace primus::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::int64_t kLengthBytes = 8;

void read_at(int file, const std::string& path, std::string_view what, std::int64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::pread(file, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw UserError(fmt::format("{}: {}: reading failed: {}", path, what,
                                  got < 0 ? std::strerror(errno) : "the file has become shorter"));
    }
    out = out.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

std::int64_t header_length(int file, const std::string& path, std::int64_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    refuse({.file = path,
            .message = "is no safetensors file",
            .expected = "at least 8 bytes",
            .found = fmt::format("{} bytes", file_bytes)});
  }
  std::uint64_t length = 0;
  read_at(file, path, "header", 0, std::as_writable_bytes(std::span(&length, 1)));
  const std::int64_t most = std::min(kMostHeaderBytes, file_bytes - kLengthBytes);
  if (length > static_cast<std::uint64_t>(most)) {
    refuse({.file = path,
            .message = "the header's length cannot be right: no safetensors file, or one that is cut short",
            .expected = fmt::format("at most {} bytes", most),
            .found = std::to_string(length)});
  }
  return static_cast<std::int64_t>(length);
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)) {
  const auto fail = [this](const char* what) {
    throw UserError(fmt::format("{}: {}: {}", path_, what, std::strerror(errno)), ExitCode::kWrongInput);
  };
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) fail("cannot be opened");
  try {
    struct stat status {};
    if (::fstat(file_, &status) != 0) fail("cannot be examined");
    if (!S_ISREG(status.st_mode)) refuse({.file = path_, .message = "is not a file"});
    const std::int64_t length = header_length(file_, path_, status.st_size);
    std::string text(static_cast<std::size_t>(length), '\0');
    read_at(file_, path_, "header", kLengthBytes, std::as_writable_bytes(std::span(text)));
    data_begin_ = kLengthBytes + length;
    header_ = parse_safetensors_header(text, status.st_size - data_begin_, path_);
  } catch (...) {
    ::close(file_);
    throw;
  }
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) by_name_[header_.tensors[i].name] = i;
}

SafetensorsFile::~SafetensorsFile() {
  ::close(file_);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

void SafetensorsFile::read(const StoredTensor& tensor, std::int64_t offset, std::span<std::byte> out) const {
  PRIMUS_CHECK(offset >= 0 && offset + std::ssize(out) <= tensor.num_bytes, "{}: bytes {} to {} of {}", tensor.name,
               offset, offset + std::ssize(out), tensor.num_bytes);
  read_at(file_, path_, tensor.name, data_begin_ + tensor.begin + offset, out);
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<StoredTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(std::move(tensors)), file_(path) {
  std::int64_t begin = 0;
  for (StoredTensor& tensor : tensors_) {
    tensor.num_bytes = tensor_bytes(*tensor.type, tensor.shape);
    PRIMUS_CHECK(tensor.num_bytes >= 0, "{}: {} {}", tensor.name, tensor.type->name, shape_text(tensor.shape));
    tensor.begin = begin;
    begin += tensor.num_bytes;
  }
  const std::string header = safetensors_header_text(tensors_, metadata);
  const std::uint64_t length = header.size();
  file_.append(std::as_bytes(std::span(&length, 1)));
  file_.append(std::as_bytes(std::span(header)));
  skip_whole_tensors();
}

void SafetensorsWriter::skip_whole_tensors() {
  while (current_ < tensors_.size() && written_ == tensors_[current_].num_bytes) {
    ++current_;
    written_ = 0;
  }
}

void SafetensorsWriter::append(std::string_view tensor, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  PRIMUS_CHECK(current_ < tensors_.size() && tensors_[current_].name == tensor, "{} is not the tensor being written",
               tensor);
  written_ += std::ssize(bytes);
  PRIMUS_CHECK(written_ <= tensors_[current_].num_bytes, "{}: {} of {} bytes", tensor, written_,
               tensors_[current_].num_bytes);
  file_.append(bytes);
  skip_whole_tensors();
}

void SafetensorsWriter::finish() {
  PRIMUS_CHECK(current_ == tensors_.size(), "{} is not complete", tensors_[current_].name);
  file_.sync();
  file_.commit();
}

}  // namespace primus::checkpoint
