#pragma once
// Data made by rule, for runs without files: same lengths and contents as Megatron's mock set.
#include <vector>

#include "data/token_store.hpp"

namespace primus::data {

/// 100,000 sequences; one of length n counts 1, 2, … n - 1 and ends its document.
class MockDataset final : public TokenStore {
 public:
  static constexpr std::int64_t kNumSequences = 100000;
  static constexpr std::int32_t kLengthLimit = 4096;

  /// Counted tokens are taken modulo `vocab_size`.
  MockDataset(std::int64_t vocab_size, std::int64_t eod);

  const std::string& name() const override { return name_; }
  std::int64_t num_sequences() const override { return kNumSequences; }
  std::int64_t length(std::int64_t sequence) const override { return lengths_[static_cast<std::size_t>(sequence)]; }
  void read(std::int64_t sequence, std::int64_t offset, std::span<std::int64_t> out) const override;

 private:
  std::string name_ = "mock data";
  std::int64_t vocab_size_;
  std::int64_t eod_;
  std::vector<std::int32_t> lengths_;
};

}  // namespace primus::data
