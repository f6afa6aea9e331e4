#include "data/mock_dataset.hpp"

#include "base/error.hpp"
#include "data/numpy_random.hpp"

namespace primus::data {

MockDataset::MockDataset(std::int64_t vocab_size, std::int64_t eod) : vocab_size_(vocab_size), eod_(eod) {
  if (vocab_size < 2) {
    throw UserError(fmt::format("mock data: needs a vocab_size of at least 2, found {}", vocab_size),
                    ExitCode::kWrongInput);
  }
  NumpyGenerator random(0);
  lengths_.reserve(kNumSequences);
  for (std::int64_t i = 0; i < kNumSequences; ++i) lengths_.push_back(random.integer32(1, kLengthLimit));
}

void MockDataset::read(std::int64_t sequence, std::int64_t offset, std::span<std::int64_t> out) const {
  const std::int64_t tokens = length(sequence);
  PRIMUS_CHECK(offset >= 0 && static_cast<std::int64_t>(out.size()) <= tokens - offset, "tokens {}+{} of sequence {}",
               offset, out.size(), sequence);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t position = offset + static_cast<std::int64_t>(i);
    out[i] = position == tokens - 1 ? eod_ : (position + 1) % vocab_size_;
  }
}

}  // namespace primus::data
