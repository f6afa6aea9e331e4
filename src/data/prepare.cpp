#include "data/prepare.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <thread>

#include "base/error.hpp"
#include "base/files.hpp"
#include "data/indexed_writer.hpp"
#include "data/near_duplicates.hpp"
#include "data/ordered_pipeline.hpp"
#include "data/prepare_progress.hpp"
#include "data/sentences.hpp"
#include "data/tokenizers/make_tokenizer.hpp"

namespace primus::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_input(const std::string& path, const std::string& fault) {
  throw UserError(fmt::format("{}: {}", path, fault), ExitCode::kWrongInput);
}

/// Megatron's names: the member's name, and what a sequence is.
std::string suffix(const PrepareOptions& options) {
  return fmt::format("_{}_{}", options.json_key, options.sentences == SentenceSplit::kOn ? "sentence" : "document");
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
    for (const char* extension : {".bin", ".idx"}) paths.push_back(prefix + suffix(options) + extension);
  }
  return paths;
}

/// Text has no NUL bytes; what does is taken for an image, an archive, or token data of an earlier run.
bool holds_text(std::string_view content) {
  return content.find('\0') == std::string_view::npos;
}

/// Tokens of some documents.
struct EncodedDocuments {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> sequence_lengths;
  std::vector<std::int64_t> sequences_of_document;
  std::int64_t num_text_bytes = 0;
  std::int64_t num_bytes_taken = 0;
  ReadPosition next;  // in the input, behind them
};

/// Documents to tokens. Safe to use from several threads.
class DocumentEncoder {
 public:
  DocumentEncoder(const PrepareOptions& options, const Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer) {
    if (options.holes) holes_.emplace(*options.holes, tokenizer);
  }

  void add(std::string_view text, EncodedDocuments& result) const {
    const std::size_t num_before = result.sequence_lengths.size();
    if (options_.sentences == SentenceSplit::kOn) {
      for (const std::string_view sentence : sentences(text)) add_sequence(sentence, result);
    } else {
      add_sequence(text, result);
    }
    if (options_.append_eod && result.sequence_lengths.size() > num_before) {
      result.ids.push_back(tokenizer_.eod());
      ++result.sequence_lengths.back();
    }
    result.sequences_of_document.push_back(static_cast<std::int64_t>(result.sequence_lengths.size() - num_before));
    result.num_text_bytes += static_cast<std::int64_t>(text.size());
  }

 private:
  void add_sequence(std::string_view text, EncodedDocuments& result) const {
    const std::size_t before = result.ids.size();
    holes_ ? holes_->encode(text, result.ids) : tokenizer_.encode(text, result.ids);
    result.sequence_lengths.push_back(static_cast<std::int64_t>(result.ids.size() - before));
  }

  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  std::optional<HoleCutter> holes_;
};

std::unique_ptr<IndexedWriter> make_writer(const std::string& prefix, const PrepareOptions& options,
                                           const Tokenizer& tokenizer, const WriterProgress& from) {
  const fs::path folder = fs::path(prefix).parent_path();
  if (!folder.empty()) make_folder(folder);
  return std::make_unique<IndexedWriter>(prefix + suffix(options), token_type_for(tokenizer.vocab_size()), from);
}

void write(const EncodedDocuments& documents, IndexedWriter& writer) {
  std::span<const std::int64_t> ids = documents.ids;
  std::size_t sequence = 0;
  for (const std::int64_t num_sequences : documents.sequences_of_document) {
    for (std::int64_t i = 0; i < num_sequences; ++i) {
      const auto length = static_cast<std::size_t>(documents.sequence_lengths[sequence++]);
      writer.add_sequence(ids.first(length));
      ids = ids.subspan(length);
    }
    writer.end_document();
  }
}

/// Everything that the output depends on.
std::string signature_of(const PrepareOptions& options, const InputList& inputs) {
  std::string tokenizer_files;
  for (const std::string& path :
       {options.tokenizer.model, options.tokenizer.vocab_file, options.tokenizer.merge_file}) {
    std::error_code ignored;
    const fs::path file = fs::is_directory(path, ignored) ? fs::path(path) / "tokenizer.json" : fs::path(path);
    tokenizer_files += fmt::format("{} {}\n", path, fs::last_write_time(file, ignored).time_since_epoch().count());
  }
  if (options.holes) {
    const HoleOptions& holes = *options.holes;
    tokenizer_files +=
        fmt::format("{} {} {} {}\n", holes.rate, holes.end_first_rate, fmt::join(holes.tokens, " "), holes.seed);
  }
  tokenizer_files += fmt::format("{} {} {}\n", fmt::join(options.tokenizer.special_tokens, " "),
                                 options.tokenizer.num_special_tokens, options.tokenizer.pattern);
  return fmt::format("{}\n{}{} {} {} {} {} {} {}\n{}\n{}", options.tokenizer.type, tokenizer_files,
                     options.tokenizer.vocab_size, static_cast<int>(options.tokenizer.around_text), options.json_key,
                     static_cast<int>(options.sentences), static_cast<int>(options.copies), options.append_eod,
                     options.held_out_fraction, fmt::join(options.held_out, "\n"), signature_of(inputs));
}

/// The work of prepare(), step by step.
class Preparation {
 public:
  Preparation(const PrepareOptions& options, const PrepareProgress& progress)
      : options_(options), progress_(progress), tokenizer_(make_tokenizer(options.tokenizer)) {
    if (options.append_eod && tokenizer_->eod() == kNoEod) {
      throw UserError(fmt::format("{}: {} names no end-of-document token; give its tokenizer_config.json an eos_token, "
                                  "or leave the token out",
                                  options.tokenizer.model, tokenizer_->name()),
                      ExitCode::kWrongInput);
    }
  }

  PrepareSummary run() {
    const auto start = std::chrono::steady_clock::now();
    inputs_ = list_inputs(options_.inputs, options_.documents);
    summary_.num_skipped_files = inputs_.num_links;
    // Held-out text first: every training file is judged against it.
    read_held_out();
    const PrepareStateFile state_file(options_.output_prefix + suffix(options_) + ".progress.json",
                                      signature_of(options_, inputs_));
    const PrepareState state = state_file.load().value_or(PrepareState());
    const auto train = make_writer(options_.output_prefix, options_, *tokenizer_, state.written);
    std::unique_ptr<IndexedWriter> held_out;
    if (!held_out_.empty()) {
      held_out = make_writer(options_.held_out_prefix, options_, *tokenizer_, {});
      write_held_out(*held_out);
    }
    encode_all(*train, state, state_file);
    if (summary_.num_documents == 0) {
      throw UserError(fmt::format("{}: holds no text to train on", fmt::join(options_.inputs, ", ")),
                      ExitCode::kWrongInput);
    }

    train->complete();
    if (held_out) held_out->complete();
    publish(*train);
    if (held_out) publish(*held_out);
    state_file.remove();
    summary_.num_tokens = train->num_tokens();
    if (held_out) summary_.num_held_out_tokens = held_out->num_tokens();
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

  void write_held_out(IndexedWriter& writer) const {
    const DocumentEncoder encoder(options_, *tokenizer_);
    EncodedDocuments documents;
    for (const auto& [path, text] : held_out_) encoder.add(std::string_view(text).substr(begin_of(text)), documents);
    write(documents, writer);
  }

  void encode_all(IndexedWriter& train, const PrepareState& from, const PrepareStateFile& state_file) {
    judge_again(from.position.file);
    DocumentReader reader(inputs_.files, from.position);
    summary_.num_documents = from.num_documents;
    summary_.num_bytes = summary_.num_resumed_bytes = from.num_text_bytes;
    std::int64_t num_bytes_saved = 0;
    // Standard input cannot be read a second time.
    const bool may_resume = std::none_of(inputs_.files.begin(), inputs_.files.end(),
                                         [](const InputFile& file) { return file.path == kStandardInput; });
    const DocumentEncoder encoder(options_, *tokenizer_);
    const int num_threads = options_.num_threads > 0
                                ? options_.num_threads
                                : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    OrderedPipeline<TextBatch, EncodedDocuments> pipeline(
        num_threads,
        [&] {
          auto batch = reader.next();
          if (batch) judge(*batch);
          return batch;
        },
        [&](const TextBatch& batch) { return encoded(batch, encoder); });
    pipeline.run([&](const EncodedDocuments& documents) {
      write(documents, train);
      summary_.num_documents += std::ssize(documents.sequences_of_document);
      summary_.num_bytes += documents.num_text_bytes;
      if (progress_) progress_(documents.num_bytes_taken, inputs_.num_bytes);
      if (num_bytes_saved == 0) num_bytes_saved = documents.num_bytes_taken;
      if (may_resume && documents.num_bytes_taken - num_bytes_saved >= options_.save_bytes) {
        num_bytes_saved = documents.num_bytes_taken;
        state_file.save({documents.next, train.save_progress(), summary_.num_documents, summary_.num_bytes});
      }
    });
  }

  /// Whole files that an earlier call has read: what is left out from here on depends on them.
  void judge_again(std::size_t num_files) {
    const std::vector<InputFile> files(inputs_.files.begin(),
                                       inputs_.files.begin() + static_cast<std::ptrdiff_t>(num_files));
    const auto is_whole = [](const InputFile& file) { return file.kind == DocumentKind::kWholeFile; };
    if (std::none_of(files.begin(), files.end(), is_whole)) return;
    DocumentReader reader(files, {});
    while (auto batch = reader.next()) judge(*batch);
  }

  EncodedDocuments encoded(const TextBatch& batch, const DocumentEncoder& encoder) const {
    EncodedDocuments documents;
    documents.num_bytes_taken = batch.num_bytes_taken;
    documents.next = batch.next;
    const InputFile& file = inputs_.files[batch.file];
    for (std::size_t i = 0; i < batch.items.size(); ++i) {
      if (file.kind == DocumentKind::kJsonLines) {
        const std::string text = json_member(batch.item(i), options_.json_key, file.path, batch.items[i].line);
        if (!text.empty()) encoder.add(text, documents);
      } else {
        encoder.add(batch.item(i), documents);
      }
    }
    return documents;
  }

  /// Leaves out what is no text to train on: files of bytes, copies, what is held out. On the reading thread, in order.
  void judge(TextBatch& batch) {
    const InputFile& file = inputs_.files[batch.file];
    if (file.kind != DocumentKind::kWholeFile) return;
    if (!holds_text(batch.text)) {
      if (file.source == InputFile::Source::kNamed) {
        fail_input(file.path, fmt::format("is no text: byte {} is NUL", batch.text.find('\0')));
      }
      summary_.not_text.push_back(file.path);
      batch.items.clear();
      return;
    }
    const auto own = file.path == kStandardInput ? held_out_.end() : held_out_.find(identity(file.path));
    if (own != held_out_.end()) batch.items.front().end = begin_of(batch.text);
    const std::string_view text = batch.item(0);
    if (text.empty()) {
      batch.items.clear();
      return;
    }
    if (own == held_out_.end() && held_out_text_.is_repeated_in(text)) {
      summary_.repeats_held_out.push_back(file.path);
      batch.items.clear();
    } else if (options_.copies == Copies::kLeftOut && copies_.take(text) == CopyFinder::Verdict::kCopy) {
      ++summary_.num_skipped_files;
      batch.items.clear();
    }
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
  InputList inputs_;
  std::map<std::string, std::string> held_out_;  // whole texts by canonical path
  HeldOutText held_out_text_;
  CopyFinder copies_;
  PrepareSummary summary_;
};

}  // namespace

PreparePlan plan_prepare(const PrepareOptions& options) {
  check(options);
  const InputList inputs = list_inputs(options.inputs, options.documents);
  PreparePlan plan;
  for (const InputFile& file : inputs.files) plan.files.push_back(file.path);
  plan.num_bytes = inputs.num_bytes;
  plan.outputs = output_paths(options);
  return plan;
}

PrepareSummary prepare(const PrepareOptions& options, const PrepareProgress& progress) {
  check(options);
  return Preparation(options, progress).run();
}

}  // namespace primus::data
