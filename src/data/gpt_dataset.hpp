#pragma once
// Samples of seq_length + 1 tokens cut from the shuffled documents of one data set.
#include <memory>

#include "data/gpt_index.hpp"
#include "data/sample_set.hpp"
#include "data/token_store.hpp"

namespace primus::data {

/// Megatron's GPT samples over a token store.
class GptDataset final : public SampleSet {
 public:
  GptDataset(std::shared_ptr<const TokenStore> store, const GptIndexOptions& options);

  const std::string& name() const override { return store_->name(); }
  std::int64_t num_samples() const override { return index_.num_samples(); }
  void read(std::int64_t sample, std::span<std::int64_t> out) const override;

  const GptIndex& index() const { return index_; }

 private:
  std::shared_ptr<const TokenStore> store_;
  std::int64_t seq_length_;
  GptIndex index_;
};

}  // namespace primus::data
