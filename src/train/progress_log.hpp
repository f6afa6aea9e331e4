#pragma once
// log_progress: progress.txt beside the checkpoints, in Megatron's form, one line a job and a saved checkpoint.
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <string>

namespace primus::train {

/// Where the training stands, in the units that the file has.
struct ProgressPoint {
  std::int64_t iteration = 0;
  double num_flops = 0.0;  // of all steps so far
  double num_tokens = 0.0;
};

class ProgressLog {
 public:
  enum class Writing { kInStep, kBesideTraining };

  /// Begins with a line about the job, which begins at `start`. Jobs before it with as many devices count for the
  /// cumulative throughput. Throws UserError if the file cannot be written.
  ProgressLog(std::filesystem::path folder, int num_devices, const ProgressPoint& start, std::time_t now);

  /// A checkpoint was saved, or is being written beside training.
  void saved(const ProgressPoint& point, Writing writing, std::time_t now) const;
  /// One that was written beside training is there.
  void saved_beside(std::int64_t iteration, std::time_t now) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  void add(const std::string& text, std::time_t now) const;
  void find_first_job();

  std::filesystem::path path_;
  int num_devices_;
  ProgressPoint start_;
  std::time_t job_began_;
  std::time_t first_job_began_ = 0;
  double flops_before_ = 0.0;  // of the checkpoint before the first of those jobs
};

}  // namespace primus::train
