#pragma once
// Dropout of attention's weights, keyed by their global numbers: forward and backward ask for the same ones.
#include "base/philox.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/attention_common.hpp"
#include "ops/dropout/dropout.hpp"

namespace primus::ops::attention {

class WeightDropout {
 public:
  WeightDropout(const Sizes& sizes, const AttentionDropout& options)
      : philox_(options.seed, options.stream),
        threshold_(dropout_threshold(options.probability)),
        factor_(1.0 / (1.0 - options.probability)),
        first_sequence_(options.first_sequence),
        heads_(sizes.heads),
        sequence_(sizes.sequence) {}

  bool is_on() const { return threshold_ > 0; }

  /// Weights of `count` keys from `key` on, of one query.
  template <typename Acc>
  void multiply_keys(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key, std::int64_t count,
                     Acc* weight) const {
    std::uint64_t number = row(batch, head, query) + static_cast<std::uint64_t>(key);
    std::array<std::uint32_t, kWordsPerBlock> words{};
    for (std::int64_t i = 0; i < count; ++i, ++number) {
      if (i == 0 || number % kWordsPerBlock == 0) words = philox_.words(number / kWordsPerBlock);
      weight[i] *= factor_of<Acc>(words[number % kWordsPerBlock]);
    }
  }

  /// What the weight of one key is multiplied with.
  template <typename Acc>
  Acc factor(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) const {
    const std::uint64_t number = row(batch, head, query) + static_cast<std::uint64_t>(key);
    return factor_of<Acc>(philox_.words(number / kWordsPerBlock)[number % kWordsPerBlock]);
  }

 private:
  static constexpr std::uint64_t kWordsPerBlock = 4;

  std::uint64_t row(std::int64_t batch, std::int64_t head, std::int64_t query) const {
    return static_cast<std::uint64_t>((((first_sequence_ + batch) * heads_ + head) * sequence_ + query) * sequence_);
  }
  template <typename Acc>
  Acc factor_of(std::uint32_t word) const {
    return word >= threshold_ ? static_cast<Acc>(factor_) : Acc(0);
  }

  Philox philox_;
  std::uint64_t threshold_;
  double factor_;
  std::int64_t first_sequence_, heads_, sequence_;
};

}  // namespace primus::ops::attention
