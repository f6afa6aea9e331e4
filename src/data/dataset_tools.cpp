#include "data/dataset_tools.hpp"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <memory>

#include "base/error.hpp"
#include "base/files.hpp"
#include "data/indexed_writer.hpp"
#include "data/sampler.hpp"

namespace primus::data {
namespace {

// Read and written at a time; a sequence of any length takes no more memory.
constexpr std::int64_t kBlockTokens = 1 << 16;

/// The narrowest type that holds all values of both.
TokenType wider(TokenType a, TokenType b) {
  if (a == b) return a;
  const auto is_real = [](TokenType type) { return type == TokenType::kFloat32 || type == TokenType::kFloat64; };
  if (is_real(a) || is_real(b)) return TokenType::kFloat64;
  const auto is_unsigned = [](TokenType type) { return type == TokenType::kUint8 || type == TokenType::kUint16; };
  const TokenType larger = size_bytes(a) >= size_bytes(b) ? a : b;
  const TokenType smaller = larger == a ? b : a;
  if (is_unsigned(larger) == is_unsigned(smaller)) return larger;
  if (!is_unsigned(larger) && size_bytes(larger) > size_bytes(smaller)) return larger;
  return size_bytes(larger) == 1 ? TokenType::kInt16 : TokenType::kInt32;
}

void refuse_modes(const IndexedDataset& dataset) {
  if (dataset.modes() == IndexedDataset::Modes::kAbsent) return;
  throw UserError(fmt::format("{}.idx: has a mode for every sequence, which this command would lose", dataset.name()),
                  ExitCode::kWrongInput);
}

/// A new data set must not be written over one that is being read.
void refuse_same(const std::string& input, const std::string& output) {
  std::error_code ignored;
  if (!std::filesystem::equivalent(input + ".idx", output + ".idx", ignored)) return;
  throw UserError(fmt::format("{}: would be read and written at once", output), ExitCode::kWrongInput);
}

std::unique_ptr<IndexedWriter> make_writer(const std::string& prefix, TokenType type) {
  const std::filesystem::path folder = std::filesystem::path(prefix).parent_path();
  if (!folder.empty()) make_folder(folder);
  return std::make_unique<IndexedWriter>(prefix, type);
}

/// One document of a data set behind those that are written.
void copy_document(const IndexedDataset& dataset, std::int64_t document, std::vector<std::int64_t>& buffer,
                   IndexedWriter& writer) {
  for (std::int64_t i = dataset.document_begin(document); i < dataset.document_begin(document + 1); ++i) {
    buffer.resize(static_cast<std::size_t>(dataset.length(i)));
    dataset.read(i, 0, buffer);
    writer.add_sequence(buffer);
  }
  writer.end_document();
}

}  // namespace

LengthSummary summarize_lengths(const IndexedDataset& dataset) {
  LengthSummary summary;
  const std::int64_t count = dataset.num_sequences();
  if (count == 0) return summary;
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    lengths[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(dataset.length(i));
  }
  const auto bin_of = [](std::int32_t length) { return std::bit_width(static_cast<std::uint32_t>(length)); };
  std::vector<LengthBin> bins(33);
  for (const std::int32_t length : lengths) {
    LengthBin& bin = bins[static_cast<std::size_t>(bin_of(length))];
    ++bin.num_sequences;
    bin.num_tokens += length;
  }
  for (std::size_t i = 0; i < bins.size(); ++i) {
    bins[i].from = i == 0 ? 0 : std::int64_t{1} << (i - 1);
    bins[i].to = i == 0 ? 0 : (std::int64_t{1} << i) - 1;
  }
  const auto is_filled = [](const LengthBin& bin) { return bin.num_sequences > 0; };
  const auto first = std::find_if(bins.begin(), bins.end(), is_filled);
  const auto last = std::find_if(bins.rbegin(), bins.rend(), is_filled).base();
  summary.bins.assign(first, last);
  summary.num_empty = bins[0].num_sequences;
  const auto middle = lengths.begin() + count / 2;
  std::nth_element(lengths.begin(), middle, lengths.end());
  summary.median = *middle;
  summary.shortest = *std::min_element(lengths.begin(), lengths.end());
  summary.longest = *std::max_element(lengths.begin(), lengths.end());
  summary.mean = static_cast<double>(dataset.num_tokens()) / static_cast<double>(count);
  return summary;
}

TokenSummary verify_tokens(const IndexedDataset& dataset, std::int64_t vocab_size, std::int64_t eod,
                           const TokenProgress& progress) {
  TokenSummary summary;
  std::vector<std::int64_t> block;
  std::int64_t num_done = 0;
  for (std::int64_t document = 0; document < dataset.num_documents(); ++document) {
    bool ends_with_eod = false;
    for (std::int64_t i = dataset.document_begin(document); i < dataset.document_begin(document + 1); ++i) {
      for (std::int64_t at = 0; at < dataset.length(i); at += kBlockTokens) {
        block.resize(static_cast<std::size_t>(std::min(kBlockTokens, dataset.length(i) - at)));
        dataset.read(i, at, block);
        const auto [low, high] = std::minmax_element(block.begin(), block.end());
        if (vocab_size > 0 && (*low < 0 || *high >= vocab_size)) {
          const auto wrong = *low < 0 ? low : high;
          throw UserError(fmt::format("{}.bin: token {} of sequence {} is {} (expected 0 to {})", dataset.name(),
                                      at + (wrong - block.begin()), i, *wrong, vocab_size - 1),
                          ExitCode::kWrongInput);
        }
        summary.smallest = num_done == 0 ? *low : std::min(summary.smallest, *low);
        summary.largest = num_done == 0 ? *high : std::max(summary.largest, *high);
        summary.num_eod += std::count(block.begin(), block.end(), eod);
        ends_with_eod = block.back() == eod;
        num_done += std::ssize(block);
        if (progress) progress(num_done, dataset.num_tokens());
      }
    }
    if (!ends_with_eod) ++summary.num_documents_open;
  }
  return summary;
}

std::vector<std::string> merge_datasets(const std::vector<std::string>& prefixes, const std::string& output_prefix,
                                        const TokenProgress& progress) {
  PRIMUS_CHECK(!prefixes.empty());
  std::int64_t num_tokens = 0;
  TokenType type{};
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    refuse_same(prefixes[i], output_prefix);
    const IndexedDataset dataset(prefixes[i]);
    refuse_modes(dataset);
    type = i == 0 ? dataset.token_type() : wider(type, dataset.token_type());
    num_tokens += dataset.num_tokens();
  }
  const auto writer = make_writer(output_prefix, type);
  std::vector<std::int64_t> buffer;
  for (const std::string& prefix : prefixes) {
    const IndexedDataset dataset(prefix);
    for (std::int64_t i = 0; i < dataset.num_documents(); ++i) {
      copy_document(dataset, i, buffer, *writer);
      if (progress) progress(writer->num_tokens(), num_tokens);
    }
  }
  writer->finish();
  return writer->paths();
}

std::vector<std::string> shuffle_documents(const std::string& prefix, const std::string& output_prefix,
                                           std::uint64_t seed, const TokenProgress& progress) {
  refuse_same(prefix, output_prefix);
  const IndexedDataset dataset(prefix);
  refuse_modes(dataset);
  const auto writer = make_writer(output_prefix, dataset.token_type());
  std::vector<std::int64_t> buffer;
  for (const std::int64_t document : cyclic_order(seed, 0, dataset.num_documents())) {
    copy_document(dataset, document, buffer, *writer);
    if (progress) progress(writer->num_tokens(), dataset.num_tokens());
  }
  writer->finish();
  return writer->paths();
}

}  // namespace primus::data
