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

/// Ending of tags whose steps are samples consumed.
inline constexpr const char* kVersusSamples = " vs samples";

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

/// The data of a file's records, up to the first that is cut short or damaged.
std::vector<std::string> read_tf_records(std::string_view file);

/// One value of a summary.
std::string scalar_value(const std::string& tag, double value);
std::string text_value(const std::string& tag, const std::string& markdown);
/// Each value is a bucket of its own: value i between i and i + 1 has `counts[i]` entries.
std::string bar_value(const std::string& tag, std::span<const std::int64_t> counts);

/// A file of events, named so that TensorBoard finds it.
class EventFile {
 public:
  /// `queue_size`: events held before they are written. Throws UserError if the file cannot be made.
  EventFile(const std::string& folder, std::int64_t queue_size);
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

/// Takes the events after these positions out of the folder's event files: they are of a process that ended, and come
/// again. Events over samples are those whose tag ends in " vs samples". Throws UserError.
void cut_event_files(const std::string& folder, std::int64_t last_step, std::int64_t last_sample);

}  // namespace primus::train
