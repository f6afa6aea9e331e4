#include "data/prepare.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>

#include "base/error.hpp"
#include "base/files.hpp"
#include "data/indexed_writer.hpp"
#include "data/near_duplicates.hpp"
#include "data/tokenizer.hpp"

namespace primus::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = "_text_document";

[[noreturn]] void fail_input(const std::string& path, const std::string& fault) {
  throw UserError(fmt::format("{}: {}", path, fault), ExitCode::kWrongInput);
}

/// Files of a folder and its subfolders in name order, so that the result does not hang on the file system. Links are
/// counted, not followed: what they point to is either here already or was not asked for.
void list_folder(const fs::path& folder, std::vector<std::string>& files, std::int64_t& num_links) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) entries.push_back(*it);
  if (error) fail_input(folder.string(), fmt::format("cannot be listed: {}", error.message()));
  std::sort(entries.begin(), entries.end());
  for (const fs::directory_entry& entry : entries) {
    if (entry.is_symlink()) {
      ++num_links;
    } else if (entry.is_directory()) {
      list_folder(entry.path(), files, num_links);
    } else if (entry.is_regular_file()) {
      files.push_back(entry.path().string());
    }
  }
}

/// One spelling for each file, whichever way it was named.
std::string identity(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  if (error) fail_input(path, error.message());
  return canonical.string();
}

/// Where the held-out end of a text begins: about `fraction` from its end, at the next line's start if there is one,
/// never within a UTF-8 character.
std::size_t held_out_begin(std::string_view text, double fraction) {
  const auto cut = static_cast<std::size_t>(std::llround(static_cast<double>(text.size()) * (1.0 - fraction)));
  if (cut == 0 || cut >= text.size()) return std::min(cut, text.size());
  const std::size_t line_end = text.find('\n', cut - 1);
  if (line_end != std::string_view::npos && line_end + 1 < text.size()) return line_end + 1;
  std::size_t begin = cut;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) ++begin;
  return begin;
}

void check(const PrepareOptions& options) {
  if (options.inputs.empty()) throw UserError("data prepare: no input file or folder is given", ExitCode::kWrongInput);
  if (options.output_prefix.empty()) throw UserError("data prepare: no output prefix is given", ExitCode::kWrongInput);
  if (options.held_out.empty()) return;
  if (!(options.held_out_fraction > 0.0 && options.held_out_fraction <= 1.0)) {
    throw UserError(fmt::format("data prepare: the held-out part must be above 0 and at most 1, found {}",
                                options.held_out_fraction),
                    ExitCode::kWrongInput);
  }
  if (options.held_out_prefix.empty()) {
    throw UserError("data prepare: held-out files are given, but no prefix to write them to", ExitCode::kWrongInput);
  }
  if (options.held_out_prefix == options.output_prefix) {
    throw UserError(
        fmt::format("data prepare: training and held-out data would both be written to {}", options.output_prefix),
        ExitCode::kWrongInput);
  }
}

/// The files that a call writes.
std::vector<std::string> output_paths(const PrepareOptions& options) {
  std::vector<std::string> paths;
  for (const std::string& prefix : {options.output_prefix, options.held_out_prefix}) {
    if (prefix.empty()) continue;
    for (const char* extension : {".bin", ".idx"}) paths.push_back(prefix + kSuffix + extension);
  }
  return paths;
}

/// Text has no NUL bytes; what does is taken for an image, an archive, or token data of an earlier run.
bool holds_text(std::string_view content) {
  return content.find('\0') == std::string_view::npos;
}

/// Documents of one output.
class DocumentWriter {
 public:
  DocumentWriter(const std::string& prefix, const Tokenizer& tokenizer, const PrepareOptions& options)
      : tokenizer_(tokenizer), options_(options), writer_(opened(prefix), token_type_for(tokenizer.vocab_size())) {}

  void add(std::string_view text) {
    ids_.clear();
    tokenizer_.encode(text, ids_);
    if (options_.append_eod) ids_.push_back(tokenizer_.eod());
    writer_.add_sequence(ids_);
    writer_.end_document();
  }

  IndexedWriter& writer() { return writer_; }

 private:
  static std::string opened(const std::string& prefix) {
    const fs::path folder = fs::path(prefix).parent_path();
    if (!folder.empty()) make_folder(folder);
    return prefix + kSuffix;
  }

  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
  IndexedWriter writer_;
  std::vector<std::int64_t> ids_;
};

/// The input files: those named by the user, and those of folders, which may hold what is no text.
struct Inputs {
  struct File {
    std::string path;
    enum class Source { kNamed, kListed } source = Source::kNamed;
  };
  std::vector<File> files;
  std::int64_t num_bytes = 0;
  std::int64_t num_links = 0;
};

Inputs list_inputs(const PrepareOptions& options) {
  Inputs inputs;
  for (const std::string& input : options.inputs) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (!fs::exists(status)) fail_input(input, "does not exist");
    if (fs::is_directory(status)) {
      std::vector<std::string> files;
      list_folder(input, files, inputs.num_links);
      for (std::string& path : files) inputs.files.push_back({std::move(path), Inputs::File::Source::kListed});
    } else if (fs::is_regular_file(status)) {
      inputs.files.push_back({input, Inputs::File::Source::kNamed});
    } else {
      fail_input(input, "is neither a file nor a folder");
    }
  }
  for (const Inputs::File& file : inputs.files) inputs.num_bytes += static_cast<std::int64_t>(fs::file_size(file.path));
  return inputs;
}

/// The work of prepare(), step by step.
class Preparation {
 public:
  Preparation(const PrepareOptions& options, const PrepareProgress& progress)
      : options_(options), progress_(progress), tokenizer_(make_tokenizer({options.tokenizer_type, "", 0})) {}

  PrepareSummary run() {
    const auto start = std::chrono::steady_clock::now();
    inputs_ = list_inputs(options_);
    summary_.num_skipped_files = inputs_.num_links;
    // Held-out text first: every training file is judged against it.
    read_held_out();
    DocumentWriter train(options_.output_prefix, *tokenizer_, options_);
    std::unique_ptr<DocumentWriter> held_out;
    if (!held_out_.empty()) {
      held_out = std::make_unique<DocumentWriter>(options_.held_out_prefix, *tokenizer_, options_);
      for (const auto& [path, text] : held_out_) held_out->add(std::string_view(text).substr(begin_of(text)));
    }
    for (const Inputs::File& file : inputs_.files) add_training_file(file, train);
    if (summary_.num_documents == 0) {
      throw UserError(fmt::format("{}: holds no text to train on", fmt::join(options_.inputs, ", ")),
                      ExitCode::kWrongInput);
    }

    train.writer().complete();
    if (held_out) held_out->writer().complete();
    publish(train.writer());
    if (held_out) publish(held_out->writer());
    summary_.num_tokens = train.writer().num_tokens();
    if (held_out) summary_.num_held_out_tokens = held_out->writer().num_tokens();
    summary_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return summary_;
  }

 private:
  std::size_t begin_of(std::string_view text) const { return held_out_begin(text, options_.held_out_fraction); }

  void read_held_out() {
    for (const std::string& path : options_.held_out) {
      if (!fs::is_regular_file(path)) fail_input(path, "is no file, so that nothing of it can be held out");
      std::string text = read_file(path);
      const std::string_view tail = std::string_view(text).substr(begin_of(text));
      if (tail.empty()) fail_input(path, "is too short to hold a part of it out");
      // The whole file too: another version of it is no training text, whichever part the two have in common.
      held_out_text_.add(tail);
      held_out_text_.add(text);
      held_out_.emplace(identity(path), std::move(text));
    }
  }

  void add_training_file(const Inputs::File& file, DocumentWriter& train) {
    const std::string content = read_file(file.path);
    num_bytes_done_ += static_cast<std::int64_t>(content.size());
    if (!holds_text(content)) {
      if (file.source == Inputs::File::Source::kNamed) {
        fail_input(file.path, fmt::format("is no text: byte {} is NUL", content.find('\0')));
      }
      summary_.not_text.push_back(file.path);
    } else {
      add_text(file.path, content, train);
    }
    if (progress_) progress_(num_bytes_done_, inputs_.num_bytes);
  }

  void add_text(const std::string& path, std::string_view content, DocumentWriter& train) {
    const auto own = held_out_.find(identity(path));
    const std::string_view text = own == held_out_.end() ? content : content.substr(0, begin_of(content));
    if (text.empty()) return;
    const bool tells_held_out = own == held_out_.end() && held_out_text_.is_repeated_in(text);
    if (tells_held_out || copies_.take(text) == CopyFinder::Verdict::kCopy) {
      ++summary_.num_skipped_files;
      return;
    }
    train.add(text);
    ++summary_.num_documents;
    summary_.num_bytes += static_cast<std::int64_t>(text.size());
  }

  void publish(IndexedWriter& writer) {
    try {
      writer.publish();
    } catch (...) {
      for (const std::string& path : summary_.outputs) fs::remove(path);
      throw;
    }
    for (const std::string& path : writer.paths()) summary_.outputs.push_back(path);
  }

  const PrepareOptions& options_;
  const PrepareProgress& progress_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Inputs inputs_;
  std::int64_t num_bytes_done_ = 0;
  std::map<std::string, std::string> held_out_;  // whole texts by canonical path
  HeldOutText held_out_text_;
  CopyFinder copies_;
  PrepareSummary summary_;
};

}  // namespace

PreparePlan plan_prepare(const PrepareOptions& options) {
  check(options);
  const Inputs inputs = list_inputs(options);
  PreparePlan plan;
  for (const Inputs::File& file : inputs.files) plan.files.push_back(file.path);
  plan.num_bytes = inputs.num_bytes;
  plan.outputs = output_paths(options);
  return plan;
}

PrepareSummary prepare(const PrepareOptions& options, const PrepareProgress& progress) {
  check(options);
  return Preparation(options, progress).run();
}

}  // namespace primus::data
