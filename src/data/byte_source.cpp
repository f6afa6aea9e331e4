#include "data/byte_source.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.hpp"

namespace primus::data {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 17;

class PlainSource final : public ByteSource {
 public:
  explicit PlainSource(std::string path) : path_(std::move(path)) {
    file_ = path_ == kStandardInput ? STDIN_FILENO : ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) fail("cannot be opened");
    // Read once and in order; the data that training reads shall stay in the page cache instead.
    if (file_ != STDIN_FILENO) ::posix_fadvise(file_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~PlainSource() override {
    if (file_ > STDIN_FILENO) ::close(file_);
  }

  std::size_t read(std::span<char> out) override {
    while (true) {
      const ssize_t got = ::read(file_, out.data(), out.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("cannot be read");
      num_taken_ += got;
      return static_cast<std::size_t>(got);
    }
  }

  std::int64_t num_bytes_taken() const override { return num_taken_; }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw UserError(fmt::format("{}: {}: {}", path_, what, std::strerror(errno)), ExitCode::kWrongInput);
  }

  std::string path_;
  int file_ = -1;
  std::int64_t num_taken_ = 0;
};

/// What the two compressed forms share: blocks of the file beneath.
class CompressedSource : public ByteSource {
 public:
  explicit CompressedSource(const std::string& path) : path_(path), source_(path), block_(kBlockBytes) {}
  std::int64_t num_bytes_taken() const override { return source_.num_bytes_taken(); }

 protected:
  enum class More { kYes, kNo };

  /// The next block of the file.
  More refill() {
    num_in_block_ = source_.read(block_);
    return num_in_block_ > 0 ? More::kYes : More::kNo;
  }
  const char* block() const { return block_.data(); }
  std::size_t num_in_block() const { return num_in_block_; }

  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(fmt::format("{}: {}", path_, what), ExitCode::kWrongInput);
  }

 private:
  std::string path_;
  PlainSource source_;
  std::vector<char> block_;
  std::size_t num_in_block_ = 0;
};

class GzipSource final : public CompressedSource {
 public:
  explicit GzipSource(const std::string& path) : CompressedSource(path) {
    constexpr int kGzipWindow = 15 + 16;
    PRIMUS_CHECK(inflateInit2(&stream_, kGzipWindow) == Z_OK, "zlib");
  }
  ~GzipSource() override { inflateEnd(&stream_); }

  std::size_t read(std::span<char> out) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(std::min(out.size(), kBlockBytes));
    const std::size_t wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      if (stream_.avail_in == 0) {
        if (refill() == More::kNo) {
          if (place_ == Place::kWithinMember) fail("ends in the middle: it is cut off");
          return 0;
        }
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block()));
        stream_.avail_in = static_cast<uInt>(num_in_block());
      }
      if (place_ == Place::kBetweenMembers) {
        inflateReset(&stream_);
        place_ = Place::kWithinMember;
      }
      const int status = inflate(&stream_, Z_NO_FLUSH);
      if (status == Z_STREAM_END) {
        place_ = Place::kBetweenMembers;  // files put together are one file
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        fail(fmt::format("is no whole gzip file: {}", stream_.msg != nullptr ? stream_.msg : "damaged"));
      }
    }
    return wanted - stream_.avail_out;
  }

 private:
  z_stream stream_{};
  enum class Place { kBetweenMembers, kWithinMember } place_ = Place::kBetweenMembers;
};

class ZstdSource final : public CompressedSource {
 public:
  explicit ZstdSource(const std::string& path) : CompressedSource(path), stream_(ZSTD_createDStream()) {
    PRIMUS_CHECK(stream_ != nullptr, "zstd");
  }
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }

  std::size_t read(std::span<char> out) override {
    ZSTD_outBuffer target{out.data(), out.size(), 0};
    while (target.pos == 0) {
      if (input_.pos == input_.size && !has_more_) {
        if (refill() == More::kNo) {
          if (hint_ != 0) fail("ends in the middle: it is cut off");
          return 0;
        }
        input_ = {block(), num_in_block(), 0};
      }
      const std::size_t before = input_.pos;
      hint_ = ZSTD_decompressStream(stream_, &target, &input_);
      if (ZSTD_isError(hint_) != 0) fail(fmt::format("is no whole zstd file: {}", ZSTD_getErrorName(hint_)));
      // A full target may have left output within the library.
      has_more_ = target.pos == target.size || (target.pos > 0 && input_.pos < input_.size);
      if (target.pos == 0 && input_.pos == before) has_more_ = false;
    }
    return target.pos;
  }

 private:
  ZSTD_DStream* stream_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  std::size_t hint_ = 0;  // 0: a frame is complete
  bool has_more_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> open_source(const std::string& path) {
  if (path.ends_with(".gz")) return std::make_unique<GzipSource>(path);
  if (path.ends_with(".zst")) return std::make_unique<ZstdSource>(path);
  return std::make_unique<PlainSource>(path);
}

std::string without_compression(const std::string& path) {
  for (const std::string_view ending : {".gz", ".zst"}) {
    if (path.ends_with(ending)) return path.substr(0, path.size() - ending.size());
  }
  return path;
}

}  // namespace primus::data
