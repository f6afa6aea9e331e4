#pragma once
// How many micro-batches an interleaved pipeline can take: the configuration's rule and the schedule's builder ask
// here.
#include <cstdint>

namespace primus::config {

/// Micro-batches are taken in groups; a last group that is smaller than the pipeline would wait for itself.
struct Interleaving {
  std::int64_t group = 1;  // at least `ranks`
  std::int64_t ranks = 1;
  std::int64_t micro_batches = 1;

  bool is_legal(std::int64_t count) const { return count >= group && (count % group == 0 || count % group >= ranks); }
  bool is_legal() const { return is_legal(micro_batches); }
  /// The legal number of micro-batches nearest to the one at hand; at least a group's multiple is.
  std::int64_t nearest() const {
    for (std::int64_t distance = 1; distance <= group; ++distance) {
      if (micro_batches > distance && is_legal(micro_batches - distance)) return micro_batches - distance;
      if (is_legal(micro_batches + distance)) return micro_batches + distance;
    }
    return group;
  }
};

}  // namespace primus::config
