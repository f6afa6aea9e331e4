#pragma once
// `data prepare`: text, JSON lines, folders of them -> Megatron .bin/.idx.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/document_reader.hpp"
#include "data/fill_in_middle.hpp"
#include "data/tokenizer.hpp"

namespace primus::data {

/// Is a document one sequence, or a sequence a sentence?
enum class SentenceSplit { kOff, kOn };

/// What becomes of files that say what another one has said.
enum class Copies { kLeftOut, kKept };

struct PrepareOptions {
  std::vector<std::string> inputs;  // files and folders of them, or "-": standard input
  std::string output_prefix;        // writes PREFIX_text_document.bin and .idx, or PREFIX_KEY_sentence
  TokenizerOptions tokenizer;
  DocumentKind documents = DocumentKind::kByEnding;
  std::string json_key = "text";  // the member of JSON lines that is the document
  SentenceSplit sentences = SentenceSplit::kOff;
  std::optional<HoleOptions> holes;                 // absent: documents stay whole
  Copies copies = Copies::kLeftOut;                 // looked for among whole files only
  bool append_eod = true;                           // one end-of-document token after each document
  int num_threads = 0;                              // 0: one a core
  std::int64_t save_bytes = std::int64_t{1} << 28;  // of input, after which what is done is saved
  std::vector<std::string> held_out;                // text files whose tail goes to the validation set (decision 21)
  double held_out_fraction = 0.0;                   // the part of each held-out file's end that goes there
  std::string held_out_prefix;                      // writes HELD_OUT_PREFIX_text_document.bin and .idx
};

struct PrepareSummary {
  std::int64_t num_documents = 0;
  std::int64_t num_tokens = 0;
  std::int64_t num_bytes = 0;          // of text
  std::int64_t num_resumed_bytes = 0;  // of them, from an earlier call that was interrupted
  std::int64_t num_skipped_files = 0;  // links to, and copies or near-copies of, files already taken
  std::int64_t num_held_out_tokens = 0;
  std::vector<std::string> repeats_held_out;  // whole files left out because they hold a part of held-out text
  std::vector<std::string> not_text;          // files of folders that hold NUL bytes
  double seconds = 0.0;
  std::vector<std::string> outputs;  // paths written
};

/// What a call would do.
struct PreparePlan {
  std::vector<std::string> files;  // in the order in which they are read
  std::int64_t num_bytes = 0;
  std::vector<std::string> outputs;
};

/// List the inputs; nothing is read or written. Throws UserError as prepare() does for them.
PreparePlan plan_prepare(const PrepareOptions& options);

/// Called with the bytes done so far and in all; for a progress bar.
using PrepareProgress = std::function<void(std::int64_t num_bytes_done, std::int64_t num_bytes)>;

/// Tokenize and write. Of a long input what is done is saved now and then, beside the output; a call with the same
/// options and files goes on from there, to the same bytes. Nothing else is left behind when it fails. Throws UserError
/// naming the file.
PrepareSummary prepare(const PrepareOptions& options, const PrepareProgress& progress);

}  // namespace primus::data
