#pragma once
// Which of the keys in a query's sight it looks at: one bit a key, 32 keys a word.
#include <limits>

#include "ops/attention/attention.hpp"
#include "ops/attention/attention_common.hpp"

namespace primus::ops::attention {

constexpr std::int64_t kKeysPerWord = 32;

class SelectedKeys {
 public:
  SelectedKeys(const Sizes& sizes, const Tensor& selected_BSW) : SelectedKeys(sizes, selected_BSW, sizes.sequence) {}
  /// Of another number of keys than queries.
  SelectedKeys(const Sizes& sizes, const Tensor& selected_BSW, std::int64_t num_keys) {
    if (!selected_BSW.defined()) return;
    sequence_ = sizes.sequence;
    num_words_ = at::divup(num_keys, kKeysPerWord);
    PRIMUS_CHECK(selected_BSW.dim() == 3 && selected_BSW.size(0) == sizes.batch &&
                     selected_BSW.size(1) == sizes.sequence && selected_BSW.size(2) == num_words_ &&
                     selected_BSW.is_contiguous(),
                 "attention: shape of the selected keys");
    PRIMUS_CHECK(selected_BSW.scalar_type() == at::kInt, "attention: element type of the selected keys");
    words_ = selected_BSW.const_data_ptr<std::int32_t>();
  }

  bool is_on() const { return words_ != nullptr; }

  bool has(std::int64_t batch, std::int64_t query, std::int64_t key) const {
    return (word(row(batch, query), key) >> (key % kKeysPerWord) & 1U) != 0;
  }

  /// Scores of the keys first_key … first_key + count that the query has not selected become −inf.
  template <typename Acc>
  void hide(std::int64_t batch, std::int64_t query, std::int64_t first_key, std::int64_t count, Acc* scores) const {
    const std::int32_t* words = row(batch, query);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t key = first_key + i;
      const bool is_selected = (word(words, key) >> (key % kKeysPerWord) & 1U) != 0;
      scores[i] = is_selected ? scores[i] : -std::numeric_limits<Acc>::infinity();
    }
  }

 private:
  static std::uint32_t word(const std::int32_t* words, std::int64_t key) {
    return static_cast<std::uint32_t>(words[key / kKeysPerWord]);
  }
  const std::int32_t* row(std::int64_t batch, std::int64_t query) const {
    return words_ + (batch * sequence_ + query) * num_words_;
  }

  const std::int32_t* words_ = nullptr;
  std::int64_t sequence_ = 0;
  std::int64_t num_words_ = 0;
};

}  // namespace primus::ops::attention
