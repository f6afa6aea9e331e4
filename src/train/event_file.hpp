#pragma once
// TensorBoard's event files: protobuf messages (tensorflow/core/util/event.proto and summary.proto) in TFRecord frames,
// both written by hand.
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace primus::train {

/// A protobuf message as bytes.
class ProtoMessage {
 public:
  void add_int(int field, std::int64_t value);
  void add_float(int field, float value);
  void add_double(int field, double value);
  void add_bytes(int field, std::string_view bytes);
  void add_packed(int field, std::span<const double> values);
  const std::string& bytes() const { return bytes_; }

 private:
  void add_varint(std::uint64_t value);
  void add_tag(int field, int wire_type);

  std::string bytes_;
};

/// Length, its checksum, the data, its checksum: CRC-32C, rotated and shifted as the format has it.
std::string tf_record(std::string_view data);

/// One value of a summary.
std::string scalar_value(const std::string& tag, double value);
std::string text_value(const std::string& tag, const std::string& markdown);
/// Each value is a bucket of its own: value i between i and i + 1 has `counts[i]` entries.
std::string bar_value(const std::string& tag, std::span<const std::int64_t> counts);

/// A file of events, named so that TensorBoard finds it.
class EventFile {
 public:
  /// `begin_step`: steps from here on in older files of the folder are of a run that ended, and are not shown; 0: none.
  /// `queue_size`: events held before they are written. Throws UserError if the file cannot be made.
  EventFile(const std::string& folder, std::int64_t begin_step, std::int64_t queue_size);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  const std::string& path() const { return path_; }
  /// One event of these values.
  void add(std::int64_t step, const std::vector<std::string>& values);
  /// False if the system refuses the bytes; what it did not take is lost.
  bool flush();

 private:
  void add_event(ProtoMessage event);

  std::string path_;
  std::ofstream out_;
  std::string held_;
  std::int64_t num_held_ = 0;
  std::int64_t queue_size_;
};

}  // namespace primus::train
