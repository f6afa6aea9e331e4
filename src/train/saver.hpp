#pragma once
// Saves a run: in the step, or from copies while training goes on.
#include <functional>
#include <future>
#include <memory>

#include "base/folder_lock.hpp"
#include "checkpoint/checkpoint_writer.hpp"
#include "train/reporter.hpp"
#include "train/save_options.hpp"

namespace primus::train {

class Saver {
 public:
  /// Makes the folder, locks it for this process and removes what an ended one left half-written there. Throws
  /// UserError. Without a folder every call does nothing.
  explicit Saver(SaveOptions options);
  ~Saver();

  const SaveOptions& options() const { return options_; }
  bool is_on() const { return options_.folder.has_value(); }
  bool is_due(std::int64_t iteration) const { return is_on() && iteration % options_.interval == 0; }

  enum class When { kAsConfigured, kNow };
  /// Save these tensors; `content` has all but them. A failure is told, and the run goes on: what was whole stays
  /// whole. A save that is still being written is waited for.
  void save(const std::vector<NamedTensor>& tensors, checkpoint::CheckpointContent content, When when,
            Reporter& reporter);
  /// Tell what became of a save beside training, if it has ended.
  void poll(Reporter& reporter);
  /// Wait for it.
  void finish(Reporter& reporter);

  /// Called with the step of each save beside training that went well.
  void when_saved_beside(std::function<void(std::int64_t)> call) { saved_beside_ = std::move(call); }

  /// Why the last save failed; nothing after one that went well, or before the first.
  const std::optional<std::string>& failure() const { return failure_; }

 private:
  struct Outcome {
    std::int64_t iteration = 0;
    std::int64_t num_bytes = 0;
    double seconds = 0.0;
    std::string error;    // empty: saved
    std::string warning;  // saved, but older ones could not be removed
  };

  /// Runs beside training, too: it reads nothing that a step changes.
  Outcome write(const checkpoint::CheckpointContent& content) const;
  void tell(const Outcome& outcome, Reporter& reporter);

  SaveOptions options_;
  std::unique_ptr<FolderLock> lock_;
  std::vector<NamedTensor> copies_;  // of the save in flight
  std::future<Outcome> in_flight_;
  std::optional<std::string> failure_;
  std::function<void(std::int64_t)> saved_beside_;
};

}  // namespace primus::train
