#pragma once
// What an interrupted `data prepare` leaves for the next one.
#include <optional>
#include <string>

#include "data/document_reader.hpp"
#include "data/indexed_writer.hpp"

namespace primus::data {

/// How far a call has come.
struct PrepareState {
  ReadPosition position;
  WriterProgress written;
  std::int64_t num_documents = 0;
  std::int64_t num_text_bytes = 0;
};

/// The state file of an output.
class PrepareStateFile {
 public:
  /// `signature` says everything that the output depends on.
  PrepareStateFile(std::string path, std::string signature);

  /// The state of an earlier call with the same signature; nothing if there is none that can be used.
  std::optional<PrepareState> load() const;
  void save(const PrepareState& state) const;
  void remove() const;

 private:
  std::string path_;
  std::string signature_;
};

/// Names, sizes and times of the files, for a signature.
std::string signature_of(const InputList& inputs);

}  // namespace primus::data
