#pragma once
// Parts of one block of scratch, for an op that works in many small arrays.
#include <span>

#include "ops/scratch.hpp"

namespace primus::ops {

/// A block of scratch that is handed out in order, to its last byte: who takes more or less than was declared is told.
class Arena {
 public:
  explicit Arena(std::int64_t num_bytes) : block_(scratch({num_bytes}, at::kByte)) {}

  /// Uninitialised. Wider types are taken first.
  template <typename T>
  std::span<T> take(std::int64_t num_elements) {
    const std::int64_t begin = taken_;
    taken_ += num_elements * static_cast<std::int64_t>(sizeof(T));
    PRIMUS_CHECK(taken_ <= block_.numel(), "an op takes more than its {} bytes of scratch", block_.numel());
    return {reinterpret_cast<T*>(block_.data_ptr<std::uint8_t>() + begin), static_cast<std::size_t>(num_elements)};
  }
  void check_used_up() const {
    PRIMUS_CHECK(taken_ == block_.numel(), "an op takes {} of its {} bytes of scratch", taken_, block_.numel());
  }

 private:
  Tensor block_;
  std::int64_t taken_ = 0;
};

}  // namespace primus::ops
