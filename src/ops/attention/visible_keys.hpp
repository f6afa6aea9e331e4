#pragma once
// Which keys a query sees: a range that moves with it, from the start of its document or window to itself. Blocks of
// keys outside the range are skipped whole.
#include <vector>

#include "ops/attention/attention.hpp"
#include "ops/attention/attention_common.hpp"

namespace primus::ops::attention {

class VisibleKeys {
 public:
  VisibleKeys(const Sizes& sizes, const AttentionOptions& options)
      : sequence_(sizes.sequence), batch_stride_(options.first_key_BS.defined() ? sizes.sequence : 0) {
    const std::int64_t rows = batch_stride_ == 0 ? 1 : sizes.batch;
    const std::int32_t* documents = batch_stride_ == 0 ? nullptr : checked(sizes, options.first_key_BS);
    PRIMUS_CHECK(options.window >= 0, "attention: a window of {} keys", options.window);
    first_key_.resize(static_cast<std::size_t>(rows * sequence_));
    last_query_.resize(first_key_.size());
    for (std::int64_t row = 0; row < rows; ++row) {
      fill(documents == nullptr ? nullptr : documents + row * sequence_, options.window, row * sequence_);
    }
  }

  /// Neither falls along the sequence. A query sees first_key … itself; itself … last_query see a key.
  std::int64_t first_key(std::int64_t batch, std::int64_t query) const {
    return first_key_[static_cast<std::size_t>(batch * batch_stride_ + query)];
  }
  std::int64_t last_query(std::int64_t batch, std::int64_t key) const {
    return last_query_[static_cast<std::size_t>(batch * batch_stride_ + std::min(key, sequence_ - 1))];
  }

 private:
  static const std::int32_t* checked(const Sizes& sizes, const Tensor& first_key_BS) {
    PRIMUS_CHECK(first_key_BS.dim() == 2 && first_key_BS.size(0) == sizes.batch &&
                     first_key_BS.size(1) == sizes.sequence && first_key_BS.is_contiguous(),
                 "attention: shape of first_key");
    PRIMUS_CHECK(first_key_BS.scalar_type() == at::kInt, "attention: element type of first_key");
    return first_key_BS.data_ptr<std::int32_t>();
  }

  void fill(const std::int32_t* document, std::int64_t window, std::int64_t offset) {
    std::int32_t* const first = first_key_.data() + offset;
    std::int32_t* const last = last_query_.data() + offset;
    std::int64_t key = 0;  // keys before it are out of every later query's sight
    for (std::int64_t query = 0; query < sequence_; ++query) {
      std::int64_t begin = window == 0 ? 0 : std::max<std::int64_t>(0, query - window + 1);
      if (document != nullptr) {
        PRIMUS_CHECK(
            document[query] >= 0 && document[query] <= query && (query == 0 || document[query] >= document[query - 1]),
            "attention: query {} sees keys from {} on", query, document[query]);
        begin = std::max<std::int64_t>(begin, document[query]);
      }
      first[query] = static_cast<std::int32_t>(begin);
      for (; key < begin; ++key) last[key] = static_cast<std::int32_t>(query - 1);
    }
    std::fill(last + key, last + sequence_, static_cast<std::int32_t>(sequence_ - 1));
  }

  std::int64_t sequence_, batch_stride_;  // stride 0: all sequences alike
  std::vector<std::int32_t> first_key_, last_query_;
};

}  // namespace primus::ops::attention
