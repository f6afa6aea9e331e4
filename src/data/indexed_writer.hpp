#pragma once
// Writer of Megatron's .idx/.bin pair.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.hpp"
#include "data/temporary_file.hpp"

namespace primus::data {

/// How much of a data set has been written.
struct WriterProgress {
  std::int64_t num_sequences = 0;
  std::int64_t num_documents = 0;
  std::int64_t num_tokens = 0;
};

/// Streams sequences to PREFIX.bin and PREFIX.idx with memory that does not grow with them. Both files appear when
/// finish() returns; nothing is left when it is not reached. Throws UserError naming the file.
class IndexedWriter {
 public:
  IndexedWriter(const std::string& prefix, TokenType type);
  /// Goes on from what save_progress() of an earlier one gave; from nothing, begins one that can be gone on with.
  IndexedWriter(const std::string& prefix, TokenType type, const WriterProgress& from);

  /// Append one sequence to the current document. Ids that the type cannot hold are an error.
  void add_sequence(std::span<const std::int64_t> tokens);
  /// The sequences since the last call are a document.
  void end_document();
  /// Bring all that is written to the disk and leave it there, whatever becomes of this writer. Only between documents,
  /// and only of a writer that can be gone on with.
  WriterProgress save_progress();
  /// Complete both files on the disk under temporary names; what can fail for want of room fails here.
  void complete();
  /// Give them their names.
  void publish();
  /// complete() and publish().
  void finish();

  std::int64_t num_sequences() const { return num_sequences_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::vector<std::string> paths() const { return {bin_.final_path(), idx_.final_path()}; }

 private:
  std::string prefix_;
  TokenType type_;
  TemporaryFile bin_;
  TemporaryFile idx_;
  TemporaryFile documents_;  // their boundaries come last in the .idx file
  std::int64_t num_sequences_ = 0;
  std::int64_t num_documents_ = 0;
  std::int64_t num_tokens_ = 0;
  std::vector<std::byte> packed_;
};

}  // namespace primus::data
