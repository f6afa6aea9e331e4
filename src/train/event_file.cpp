#include "train/event_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/error.hpp"
#include "base/files.hpp"
#include "checkpoint/crc32c.hpp"

namespace primus::train {
namespace {

// Field numbers of event.proto, summary.proto, tensor.proto.
namespace event {
constexpr int kWallTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
}  // namespace event
namespace value {
constexpr int kTag = 1;
constexpr int kSimple = 2;
constexpr int kHistogram = 5;
constexpr int kTensor = 8;
constexpr int kMetadata = 9;
}  // namespace value

constexpr const char* kFilePrefix = "events.out.tfevents.";
constexpr int kVarint = 0;
constexpr int kFixed64 = 1;
constexpr int kLengthDelimited = 2;
constexpr int kFixed32 = 5;

template <typename T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::uint32_t masked_crc(std::string_view data) {
  constexpr std::uint32_t kDelta = 0xA282EAD8U;
  const std::uint32_t crc = checkpoint::crc32c(std::as_bytes(std::span(data)));
  return ((crc >> 15) | (crc << 17)) + kDelta;
}

std::string file_name() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) std::strcpy(host.data(), "host");
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  // Seconds, as TensorBoard sorts files; then what tells two files of one second apart.
  return fmt::format("{}{}.{}.{}.{}", kFilePrefix, std::chrono::duration_cast<std::chrono::seconds>(now).count(),
                     host.data(), ::getpid(),
                     std::chrono::duration_cast<std::chrono::microseconds>(now).count() % 1'000'000);
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string plugin_metadata(std::string_view plugin) {
  constexpr int kPluginData = 1;
  constexpr int kPluginName = 1;
  constexpr int kDataClass = 4;
  constexpr int kTensorClass = 2;
  ProtoMessage data;
  data.add_bytes(kPluginName, plugin);
  ProtoMessage metadata;
  metadata.add_bytes(kPluginData, data.bytes());
  metadata.add_int(kDataClass, kTensorClass);
  return metadata.bytes();
}

}  // namespace

void ProtoMessage::add_varint(std::uint64_t value) {
  while (value >= 0x80U) {
    bytes_.push_back(static_cast<char>((value & 0x7FU) | 0x80U));
    value >>= 7;
  }
  bytes_.push_back(static_cast<char>(value));
}

void ProtoMessage::add_tag(int field, int wire_type) {
  add_varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire_type));
}

void ProtoMessage::add_int(int field, std::int64_t value) {
  add_tag(field, kVarint);
  add_varint(static_cast<std::uint64_t>(value));
}

void ProtoMessage::add_float(int field, float value) {
  add_tag(field, kFixed32);
  bytes_ += raw(value);
}

void ProtoMessage::add_double(int field, double value) {
  add_tag(field, kFixed64);
  bytes_ += raw(value);
}

void ProtoMessage::add_bytes(int field, std::string_view bytes) {
  add_tag(field, kLengthDelimited);
  add_varint(bytes.size());
  bytes_ += bytes;
}

void ProtoMessage::add_packed(int field, std::span<const double> values) {
  std::string bytes;
  for (const double each : values) bytes += raw(each);
  add_bytes(field, bytes);
}

std::string tf_record(std::string_view data) {
  const std::string length = raw(static_cast<std::uint64_t>(data.size()));
  return length + raw(masked_crc(length)) + std::string(data) + raw(masked_crc(data));
}

std::vector<std::string> read_tf_records(std::string_view file) {
  constexpr std::size_t kHead = sizeof(std::uint64_t) + sizeof(std::uint32_t);
  constexpr std::size_t kTail = sizeof(std::uint32_t);
  std::vector<std::string> records;
  while (file.size() >= kHead + kTail) {
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    if (length > file.size() - kHead - kTail) break;
    const std::string data(file.substr(kHead, length));
    const std::string record = tf_record(data);
    if (file.substr(0, record.size()) != record) break;
    records.push_back(data);
    file.remove_prefix(record.size());
  }
  return records;
}

namespace {

/// The event's step; 0 where it has none, as the first one of a file.
std::int64_t step_of(std::string_view message) {
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t number = 0;
    for (int shift = 0; at < message.size() && shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(message[at++]);
      number |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if ((byte & 0x80U) == 0) break;
    }
    return number;
  };
  while (at < message.size()) {
    const std::uint64_t tag = varint();
    const auto type = static_cast<int>(tag & 7U);
    if (type == kVarint) {
      const std::uint64_t number = varint();
      if (tag >> 3 == event::kStep) return static_cast<std::int64_t>(number);
    } else {
      const std::uint64_t length = type == kFixed64 ? 8 : type == kFixed32 ? 4 : varint();
      if (length > message.size() - at) break;
      at += length;
    }
  }
  return 0;
}

bool is_over_samples(std::string_view message) {
  return message.find(kVersusSamples) != std::string_view::npos;
}

}  // namespace

void cut_event_files(const std::string& folder, std::int64_t last_step, std::int64_t last_sample) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with(kFilePrefix)) continue;
    std::string kept;
    for (const std::string& message : read_tf_records(read_file(entry.path()))) {
      if (step_of(message) <= (is_over_samples(message) ? last_sample : last_step)) kept += tf_record(message);
    }
    write_file(entry.path(), kept);
  }
}

std::string scalar_value(const std::string& tag, double number) {
  ProtoMessage message;
  message.add_bytes(value::kTag, tag);
  message.add_float(value::kSimple, static_cast<float>(number));
  return message.bytes();
}

std::string text_value(const std::string& tag, const std::string& markdown) {
  constexpr int kDtype = 1;
  constexpr int kShape = 2;
  constexpr int kStringValue = 8;
  constexpr int kStringType = 7;
  constexpr int kDim = 2;
  constexpr int kDimSize = 1;
  ProtoMessage dim;
  dim.add_int(kDimSize, 1);
  ProtoMessage shape;
  shape.add_bytes(kDim, dim.bytes());
  ProtoMessage tensor;
  tensor.add_int(kDtype, kStringType);
  tensor.add_bytes(kShape, shape.bytes());
  tensor.add_bytes(kStringValue, markdown);
  ProtoMessage message;
  message.add_bytes(value::kTag, tag);
  message.add_bytes(value::kTensor, tensor.bytes());
  message.add_bytes(value::kMetadata, plugin_metadata("text"));
  return message.bytes();
}

std::string bar_value(const std::string& tag, std::span<const std::int64_t> counts) {
  // The least value is 0, which protobuf leaves out.
  enum Field { kMax = 2, kNum, kSum, kSumOfSquares, kLimits, kBuckets };
  std::vector<double> limits;
  std::vector<double> buckets;
  double num = 0.0;
  double sum = 0.0;
  double squares = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto count = static_cast<double>(counts[i]);
    const double middle = static_cast<double>(i) + 0.5;
    limits.push_back(static_cast<double>(i + 1));
    buckets.push_back(count);
    num += count;
    sum += count * middle;
    squares += count * middle * middle;
  }
  ProtoMessage histogram;
  histogram.add_double(kMax, static_cast<double>(counts.size()));
  histogram.add_double(kNum, num);
  histogram.add_double(kSum, sum);
  histogram.add_double(kSumOfSquares, squares);
  histogram.add_packed(kLimits, limits);
  histogram.add_packed(kBuckets, buckets);
  ProtoMessage message;
  message.add_bytes(value::kTag, tag);
  message.add_bytes(value::kHistogram, histogram.bytes());
  return message.bytes();
}

EventFile::EventFile(const std::string& folder, std::int64_t queue_size)
    : path_(fmt::format("{}/{}", folder, file_name())), queue_size_(queue_size) {
  make_folder(folder);
  out_.open(path_, std::ios::binary);
  if (!out_) throw UserError(fmt::format("{}: cannot be written: {}", path_, std::strerror(errno)));
  ProtoMessage version;
  version.add_bytes(event::kFileVersion, "brain.Event:2");
  add_event(version);
  flush();
}

EventFile::~EventFile() {
  flush();
}

void EventFile::add_event(ProtoMessage message) {
  message.add_double(event::kWallTime, wall_time());
  held_ += tf_record(message.bytes());
  if (++num_held_ >= queue_size_) flush();
}

void EventFile::add(std::int64_t step, const std::vector<std::string>& values) {
  constexpr int kValue = 1;
  ProtoMessage summary;
  for (const std::string& each : values) summary.add_bytes(kValue, each);
  ProtoMessage message;
  message.add_int(event::kStep, step);
  message.add_bytes(event::kSummary, summary.bytes());
  add_event(std::move(message));
}

bool EventFile::flush() {
  out_.write(held_.data(), static_cast<std::streamsize>(held_.size()));
  out_.flush();
  held_.clear();
  num_held_ = 0;
  const bool is_written = static_cast<bool>(out_);
  out_.clear();
  return is_written;
}

}  // namespace primus::train
