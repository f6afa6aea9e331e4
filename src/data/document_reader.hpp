#pragma once
// Documents of text files, of JSON lines and of standard input, batch by batch.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_source.hpp"

namespace primus::data {

/// What the documents of a file are.
enum class DocumentKind {
  kByEnding,   // kJsonLines for .jsonl, .ndjson and .json, else kWholeFile
  kWholeFile,  // the file is one document
  kLines,      // every line that is not empty is one
  kJsonLines,  // one member of the JSON object of every line
};

/// One file to read.
struct InputFile {
  std::string path;
  enum class Source { kNamed, kListed } source = Source::kNamed;  // by the user, or found in a folder
  DocumentKind kind = DocumentKind::kWholeFile;                   // never kByEnding
  std::int64_t num_bytes = 0;                                     // on the disk; 0 for standard input
};

/// The files that inputs stand for: folders give theirs, recursively and in name order.
struct InputList {
  std::vector<InputFile> files;
  std::int64_t num_bytes = 0;
  std::int64_t num_links = 0;  // in folders; they are not followed
};

/// Throws UserError naming an input that is not there.
InputList list_inputs(const std::vector<std::string>& inputs, DocumentKind kind);

/// Where reading stands.
struct ReadPosition {
  std::size_t file = 0;        // in the list
  std::int64_t offset = 0;     // bytes of it, decompressed
  std::int64_t num_lines = 0;  // before the offset
  bool operator==(const ReadPosition&) const = default;
};

/// Some documents of one file.
struct TextBatch {
  struct Item {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int64_t line = 0;  // 1-based; 0: a whole file
  };
  std::size_t file = 0;
  std::string text;
  std::vector<Item> items;
  ReadPosition next;                 // behind the batch
  std::int64_t num_bytes_taken = 0;  // of all files up to here, on the disk

  std::string_view item(std::size_t i) const {
    return std::string_view(text).substr(items[i].begin, items[i].end - items[i].begin);
  }
};

/// Reads the files of a list in order with memory for one batch.
class DocumentReader {
 public:
  static constexpr std::size_t kBatchBytes = std::size_t{1} << 20;
  /// A document, and so a line, may not be longer.
  static constexpr std::size_t kLongestBytes = std::size_t{1} << 30;

  /// Starts at `from`, which an earlier reader's batch gave.
  DocumentReader(const std::vector<InputFile>& files, ReadPosition from);

  /// The next documents; nothing at the end. Throws UserError naming the file and what to change.
  std::optional<TextBatch> next();

 private:
  void open_file();
  void close_file();
  std::size_t read_more();
  std::optional<TextBatch> whole_file();
  std::optional<TextBatch> lines();

  const std::vector<InputFile>& files_;
  ReadPosition position_;
  std::int64_t num_bytes_before_ = 0;  // of the files before this one
  std::unique_ptr<ByteSource> source_;
  std::string pending_;  // read and not given away
  enum class End { kAhead, kReached } end_ = End::kAhead;
};

/// The text of member `key` of a JSON object on one line. Throws UserError: `path`, `line` and what is wrong.
std::string json_member(std::string_view json, const std::string& key, const std::string& path, std::int64_t line);

}  // namespace primus::data
