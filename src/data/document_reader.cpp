#include "data/document_reader.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.hpp"
#include "base/text.hpp"

namespace primus::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_input(const std::string& path, const std::string& fault) {
  throw UserError(fmt::format("{}: {}", path, fault), ExitCode::kWrongInput);
}

/// Links are counted, not followed: what they point to is either here already or was not asked for.
void list_folder(const fs::path& folder, InputList& list) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) entries.push_back(*it);
  if (error) fail_input(folder.string(), fmt::format("cannot be listed: {}", error.message()));
  std::sort(entries.begin(), entries.end());
  for (const fs::directory_entry& entry : entries) {
    if (entry.is_symlink()) {
      ++list.num_links;
    } else if (entry.is_directory()) {
      list_folder(entry.path(), list);
    } else if (entry.is_regular_file()) {
      list.files.push_back({.path = entry.path().string(), .source = InputFile::Source::kListed});
    }
  }
}

DocumentKind kind_of(const std::string& path, DocumentKind wanted) {
  if (wanted != DocumentKind::kByEnding) return wanted;
  const std::string inner = without_compression(path);
  for (const std::string_view ending : {".jsonl", ".ndjson", ".json"}) {
    if (inner.ends_with(ending)) return DocumentKind::kJsonLines;
  }
  return DocumentKind::kWholeFile;
}

/// Reads one member of the outermost object and passes over all else, without building it.
class MemberReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit MemberReader(const std::string& key) : key_(key) {}

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("true or false"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a number"); }
  bool binary(binary_t&) override { return other("binary data"); }
  bool string(string_t& value) override {
    if (!is_wanted()) return other("a text");
    text = std::move(value);
    is_found = true;
    is_at_key_ = false;
    return true;
  }
  bool start_object(std::size_t) override { return begin("an object"); }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override { return depth_ == 0 ? other("a list") : begin("a list"); }
  bool end_array() override { return end(); }
  bool key(string_t& name) override {
    is_at_key_ = depth_ == 1 && name == key_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    fault = fmt::format("no JSON at byte {}: {}", position, reason_of(error.what()));
    return false;
  }

  std::string text;
  std::string fault;
  bool is_found = false;

 private:
  bool is_wanted() const { return is_at_key_ && depth_ == 1; }

  bool other(const char* what) {
    if (depth_ == 0) {
      fault = fmt::format("{}, where an object with '{}' is expected", what, key_);
      return false;
    }
    if (!is_wanted()) return true;
    fault = fmt::format("'{}' is {}, not a text", key_, what);
    return false;
  }
  bool begin(const char* what) {
    if (is_wanted()) return other(what);
    ++depth_;
    return true;
  }
  bool end() {
    --depth_;
    is_at_key_ = false;
    return true;
  }
  /// What nlohmann's message says behind its own numbering.
  static std::string reason_of(const std::string& message) {
    const std::size_t colon = message.rfind(": ");
    return colon == std::string::npos ? message : message.substr(colon + 2);
  }

  const std::string& key_;
  int depth_ = 0;
  bool is_at_key_ = false;
};

}  // namespace

InputList list_inputs(const std::vector<std::string>& inputs, DocumentKind kind) {
  InputList list;
  for (const std::string& input : inputs) {
    if (input == kStandardInput) {
      list.files.push_back({.path = input});
      continue;
    }
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (!fs::exists(status)) fail_input(input, "does not exist");
    if (fs::is_directory(status)) {
      list_folder(input, list);
    } else if (fs::is_regular_file(status) || fs::is_fifo(status)) {
      list.files.push_back({.path = input});
    } else {
      fail_input(input, "is neither a file nor a folder");
    }
  }
  for (InputFile& file : list.files) {
    file.kind = kind_of(file.path, kind);
    std::error_code ignored;
    if (fs::is_regular_file(file.path, ignored)) file.num_bytes = static_cast<std::int64_t>(fs::file_size(file.path));
    list.num_bytes += file.num_bytes;
  }
  return list;
}

std::string json_member(std::string_view json, const std::string& key, const std::string& path, std::int64_t line) {
  MemberReader reader(key);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  if (!reader.fault.empty()) fail_input(fmt::format("{}:{}", path, line), reader.fault);
  if (!reader.is_found) fail_input(fmt::format("{}:{}", path, line), fmt::format("the object has no '{}'", key));
  return std::move(reader.text);
}

DocumentReader::DocumentReader(const std::vector<InputFile>& files, ReadPosition from)
    : files_(files), position_(from) {
  for (std::size_t i = 0; i < position_.file; ++i) num_bytes_before_ += files_[i].num_bytes;
}

void DocumentReader::open_file() {
  source_ = open_source(files_[position_.file].path);
  end_ = End::kAhead;
  pending_.clear();
  // Compressed files can only be read up to a place; plain ones are read, too, which the page cache makes cheap.
  std::int64_t to_skip = position_.offset;
  std::string skipped(kBatchBytes, '\0');
  while (to_skip > 0) {
    const auto wanted = static_cast<std::size_t>(std::min<std::int64_t>(to_skip, kBatchBytes));
    const std::size_t got = source_->read(std::span(skipped).first(wanted));
    if (got == 0) fail_input(files_[position_.file].path, "is shorter than when it was read before");
    to_skip -= static_cast<std::int64_t>(got);
  }
}

void DocumentReader::close_file() {
  source_.reset();
  num_bytes_before_ += files_[position_.file].num_bytes;
  position_ = {position_.file + 1, 0, 0};
}

std::size_t DocumentReader::read_more() {
  const std::size_t before = pending_.size();
  pending_.resize(before + kBatchBytes);
  const std::size_t got = source_->read(std::span(pending_).subspan(before));
  pending_.resize(before + got);
  if (got == 0) end_ = End::kReached;
  if (pending_.size() > kLongestBytes) {
    const InputFile& file = files_[position_.file];
    fail_input(file.path, file.kind == DocumentKind::kWholeFile
                              ? "is too long for one document (1 GiB); make every line one with --documents lines"
                              : fmt::format("line {} is longer than 1 GiB", position_.num_lines + 1));
  }
  return got;
}

std::optional<TextBatch> DocumentReader::next() {
  while (position_.file < files_.size()) {
    if (!source_) open_file();
    auto batch = files_[position_.file].kind == DocumentKind::kWholeFile ? whole_file() : lines();
    if (batch) return batch;
    close_file();
  }
  return std::nullopt;
}

std::optional<TextBatch> DocumentReader::whole_file() {
  if (position_.offset > 0) return std::nullopt;
  while (read_more() > 0) {
  }
  TextBatch batch;
  batch.file = position_.file;
  batch.num_bytes_taken = num_bytes_before_ + source_->num_bytes_taken();
  batch.text = std::move(pending_);
  pending_.clear();
  batch.items.push_back({0, batch.text.size(), 0});
  batch.next = {position_.file + 1, 0, 0};
  // An empty file would otherwise be read again and again.
  position_.offset = std::max<std::int64_t>(1, static_cast<std::int64_t>(batch.text.size()));
  return batch;
}

std::optional<TextBatch> DocumentReader::lines() {
  std::size_t searched = 0;
  std::size_t last = std::string::npos;
  while (end_ == End::kAhead && (pending_.size() < kBatchBytes || last == std::string::npos)) {
    if (read_more() == 0) break;
    const std::size_t found = pending_.rfind('\n');
    if (found != std::string::npos && found >= searched) last = found;
    searched = pending_.size();
  }
  if (pending_.empty()) return std::nullopt;
  if (last == std::string::npos) last = pending_.rfind('\n');
  const std::size_t end = end_ == End::kReached || last == std::string::npos ? pending_.size() : last + 1;
  TextBatch batch;
  batch.file = position_.file;
  batch.num_bytes_taken = num_bytes_before_ + source_->num_bytes_taken();
  batch.text = pending_.substr(0, end);
  pending_.erase(0, end);
  for (std::size_t begin = 0; begin < end;) {
    std::size_t line_end = std::min(batch.text.find('\n', begin), end);
    const std::size_t next = line_end + 1;
    ++position_.num_lines;
    if (line_end > begin && batch.text[line_end - 1] == '\r') --line_end;
    if (!trim(std::string_view(batch.text).substr(begin, line_end - begin)).empty()) {
      batch.items.push_back({begin, line_end, position_.num_lines});
    }
    begin = next;
  }
  position_.offset += static_cast<std::int64_t>(end);
  batch.next = position_;
  return batch;
}

}  // namespace primus::data
