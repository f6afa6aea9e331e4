#pragma once
// Taking old checkpoints out of a folder of them, by hand.
#include "checkpoint/checkpoint_root.hpp"

namespace primus::checkpoint {

/// What pruning a folder takes out and what stays.
struct PrunePlan {
  std::vector<std::int64_t> removed;
  std::vector<std::int64_t> kept;
  std::int64_t removed_bytes = 0;
  std::vector<std::string> left_overs;  // folders that an ended process left half-written
  std::optional<std::int64_t> newest_whole;
  std::vector<std::string> damaged;  // of kept checkpoints newer than that one, why
};

/// Apply the retention, and keep what `latest` names and the newest checkpoint that is whole: every checksum of the
/// newest ones is compared until one is. Throws UserError where none is.
PrunePlan plan_prune(const CheckpointRoot& root, const Retention& retention);

/// Do it; the folder must be locked by the caller.
void prune(const CheckpointRoot& root, const PrunePlan& plan);

}  // namespace primus::checkpoint
