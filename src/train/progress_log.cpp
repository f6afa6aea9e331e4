#include "train/progress_log.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "train/log_lines.hpp"

namespace primus::train {
namespace {

constexpr const char* kStarting = "Starting job";
constexpr const char* kSaved = "Saved checkpoint";

std::time_t time_of(const std::string& text) {
  std::tm local{};
  if (::strptime(text.c_str(), kTimeFormat, &local) == nullptr) return 0;
  local.tm_isdst = -1;
  return std::mktime(&local);
}

/// The number behind "NAME: ".
double number_in(const std::string& field) {
  const std::size_t at = field.find(": ");
  return at == std::string::npos ? 0.0 : std::strtod(field.c_str() + at + 2, nullptr);
}

double tera_per_second(double num_flops, double seconds, int num_devices) {
  constexpr double kTera = 1e12;
  return seconds > 0.0 ? num_flops / seconds / kTera / num_devices : 0.0;
}

}  // namespace

ProgressLog::ProgressLog(std::filesystem::path folder, int num_devices, const ProgressPoint& start, std::time_t now)
    : path_(folder / "progress.txt"), num_devices_(num_devices), start_(start), job_began_(now) {
  make_folder(folder);
  add(kStarting, now);
  find_first_job();
}

// Megatron's reading: another number of devices begins the count anew.
void ProgressLog::find_first_job() {
  constexpr std::size_t kDevices = 2, kText = 3, kFlops = 7;
  double latest_flops = 0.0;
  for (const std::string& line : split(read_file(path_), '\n')) {
    const std::vector<std::string> fields = split(line, '\t');
    if (fields.size() <= kText) continue;
    if (fields[kText] == kSaved && fields.size() > kFlops) latest_flops = number_in(fields[kFlops]);
    if (static_cast<int>(number_in(fields[kDevices])) != num_devices_) {
      first_job_began_ = 0;
    } else if (fields[kText] == kStarting && first_job_began_ == 0) {
      first_job_began_ = time_of(fields[0]);
      flops_before_ = latest_flops;
    }
  }
}

void ProgressLog::saved(const ProgressPoint& point, Writing writing, std::time_t now) const {
  constexpr double kBillion = 1e9;
  const double job = tera_per_second(point.num_flops - start_.num_flops, std::difftime(now, job_began_), num_devices_);
  const double cumulative =
      tera_per_second(point.num_flops - flops_before_, std::difftime(now, first_job_began_), num_devices_);
  add(fmt::format("{}\tIteration: {}\tJob throughput: {:.1f} TFLOP/s/GPU\tCumulative throughput: {:.1f} TFLOP/s/GPU\t"
                  "Floating-point operations: {:.2e}\tTokens (in billions): {:.2f}",
                  writing == Writing::kInStep ? kSaved : "Saving async checkpoint", point.iteration, job, cumulative,
                  point.num_flops, point.num_tokens / kBillion),
      now);
}

void ProgressLog::saved_beside(std::int64_t iteration, std::time_t now) const {
  add(fmt::format("Saved async checkpoint\tIteration: {}", iteration), now);
}

void ProgressLog::add(const std::string& text, std::time_t now) const {
  const char* job = std::getenv("SLURM_JOB_ID");
  append_to_file(path_, fmt::format("{}\tJob ID: {}\t# GPUs: {}\t{}\n", time_text(now), job != nullptr ? job : "",
                                    num_devices_, text));
}

}  // namespace primus::train
