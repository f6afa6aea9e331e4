#include "data/gpt_dataset.hpp"

#include <algorithm>
#include <vector>

#include "base/error.hpp"

namespace primus::data {
namespace {

GptIndex build_index(const TokenStore& store, const GptIndexOptions& options) {
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(store.num_sequences()));
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = static_cast<std::int32_t>(store.length(static_cast<std::int64_t>(i)));
  }
  return build_gpt_index(lengths, options);
}

}  // namespace

GptDataset::GptDataset(std::shared_ptr<const TokenStore> store, const GptIndexOptions& options)
    : store_(std::move(store)), seq_length_(options.seq_length), index_(build_index(*store_, options)) {}

void GptDataset::read(std::int64_t sample, std::span<std::int64_t> out) const {
  PRIMUS_CHECK(sample >= 0 && sample < num_samples() && static_cast<std::int64_t>(out.size()) == seq_length_ + 1,
               "sample {} of {} in {}", sample, num_samples(), name());
  const auto stretch = static_cast<std::size_t>(index_.shuffle[static_cast<std::size_t>(sample)]);
  const SampleStart begin = index_.samples[stretch];
  const SampleStart end = index_.samples[stretch + 1];
  std::size_t filled = 0;
  for (std::int64_t position = begin.position; position <= end.position; ++position) {
    const std::int64_t sequence = index_.documents[static_cast<std::size_t>(position)];
    const std::int64_t first = position == begin.position ? begin.offset : 0;
    const std::int64_t stop = position == end.position ? end.offset + 1 : store_->length(sequence);
    const auto count = static_cast<std::size_t>(stop - first);
    store_->read(sequence, first, out.subspan(filled, count));
    filled += count;
  }
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(filled), out.end(), kNoToken);
}

}  // namespace primus::data
