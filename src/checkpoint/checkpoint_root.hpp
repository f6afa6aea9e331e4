#pragma once
// A folder of checkpoints, one a saved step: iter_0000010, iter_0000020 and so on, and `latest`, a link to the one that
// a run goes on from.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace primus::checkpoint {

/// "iter_0000010", as Megatron spells it.
std::string iteration_folder(std::int64_t iteration);

/// Which checkpoints stay when a new one is whole.
struct Retention {
  std::optional<std::int64_t> keep_last;   // so many of the latest; absent: all
  std::optional<std::int64_t> keep_every;  // and those of steps that this divides
};

/// The numbers of `iterations` (ascending) that go; the last never does.
std::vector<std::int64_t> to_remove(const std::vector<std::int64_t>& iterations, const Retention& retention);

class CheckpointRoot {
 public:
  explicit CheckpointRoot(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path folder(std::int64_t iteration) const { return path_ / iteration_folder(iteration); }

  /// Steps with a folder of their own, ascending, whether or not it is whole.
  std::vector<std::int64_t> iterations() const;
  /// The step that `latest` names; nothing without such a link.
  std::optional<std::int64_t> latest() const;
  /// Steps to go on from, the best first: `latest` and those before it, or all where there is no link.
  std::vector<std::int64_t> candidates() const;

  /// Make `latest` name this step, in one step on the disk. Throws UserError.
  void set_latest(std::int64_t iteration) const;
  /// Remove what the retention does not keep, up to the newest step. Throws UserError.
  void retain(const Retention& retention, std::int64_t newest) const;
  /// Names of folders and links that a process which was ended left half-written.
  std::vector<std::string> left_overs() const;
  /// Remove them. Returns their names. Nobody else may write here.
  std::vector<std::string> remove_left_overs() const;

 private:
  std::filesystem::path path_;
};

/// Does the folder hold checkpoints?
bool is_checkpoint_root(const std::filesystem::path& folder);

/// The checkpoint that a folder of checkpoints stands for, its latest; any other folder is what it is.
std::filesystem::path checkpoint_within(const std::filesystem::path& folder);

}  // namespace primus::checkpoint
