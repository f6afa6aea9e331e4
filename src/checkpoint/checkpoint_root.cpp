#include "checkpoint/checkpoint_root.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "base/error.hpp"
#include "checkpoint/new_folder.hpp"
#include "data/temporary_file.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "iter_";
constexpr const char* kLatest = "latest";

std::optional<std::int64_t> iteration_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t iteration = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, iteration);
  if (error != std::errc{} || stop != end || iteration < 0 || iteration_folder(iteration) != name) return std::nullopt;
  return iteration;
}

}  // namespace

std::string iteration_folder(std::int64_t iteration) {
  return fmt::format("{}{:07}", kPrefix, iteration);
}

std::vector<std::int64_t> to_remove(const std::vector<std::int64_t>& iterations, const Retention& retention) {
  if (!retention.keep_last) return {};
  const std::int64_t num_kept = std::max<std::int64_t>(*retention.keep_last, 1);
  std::vector<std::int64_t> removed;
  for (std::int64_t i = 0; i + num_kept < std::ssize(iterations); ++i) {
    const std::int64_t iteration = iterations[static_cast<std::size_t>(i)];
    const bool is_kept = retention.keep_every && iteration % *retention.keep_every == 0;
    if (!is_kept) removed.push_back(iteration);
  }
  return removed;
}

std::vector<std::int64_t> CheckpointRoot::iterations() const {
  std::vector<std::int64_t> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const auto iteration = iteration_of(entry.path());
    if (iteration && entry.is_directory(error)) found.push_back(*iteration);
  }
  std::ranges::sort(found);
  return found;
}

std::optional<std::int64_t> CheckpointRoot::latest() const {
  std::error_code error;
  const fs::path target = fs::read_symlink(path_ / kLatest, error);
  return error ? std::nullopt : iteration_of(target);
}

std::vector<std::int64_t> CheckpointRoot::candidates() const {
  std::vector<std::int64_t> steps = iterations();
  if (const auto last = latest()) std::erase_if(steps, [&](std::int64_t step) { return step > *last; });
  // A link whose folder was taken away is told by the folder's absence.
  if (const auto last = latest(); last && (steps.empty() || steps.back() != *last)) steps.push_back(*last);
  std::ranges::reverse(steps);
  return steps;
}

void CheckpointRoot::set_latest(std::int64_t iteration) const {
  const fs::path link = path_ / kLatest;
  const fs::path temporary = link.string() + fmt::format(".tmp{}", ::getpid());
  const auto fail = [&] {
    const int reason = errno;
    ::unlink(temporary.c_str());
    throw UserError(fmt::format("{}: cannot be moved on: {}", link.string(), std::strerror(reason)));
  };
  ::unlink(temporary.c_str());
  if (::symlink(iteration_folder(iteration).c_str(), temporary.c_str()) != 0) fail();
  if (std::rename(temporary.c_str(), link.c_str()) != 0) fail();
  data::sync_folder_of(link.string());
}

void CheckpointRoot::retain(const Retention& retention, std::int64_t newest) const {
  std::vector<std::int64_t> steps = iterations();
  std::erase_if(steps, [&](std::int64_t step) { return step > newest; });
  for (const std::int64_t step : to_remove(steps, retention)) remove_folder(folder(step));
}

std::vector<std::string> CheckpointRoot::left_overs() const {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (is_left_over(entry.path()) && (name.starts_with(kPrefix) || name.starts_with(kLatest))) found.push_back(name);
  }
  std::ranges::sort(found);
  return found;
}

std::vector<std::string> CheckpointRoot::remove_left_overs() const {
  const std::vector<std::string> removed = left_overs();
  std::error_code error;
  for (const std::string& name : removed) fs::remove_all(path_ / name, error);
  return removed;
}

bool is_checkpoint_root(const fs::path& folder) {
  const CheckpointRoot root(folder);
  return root.latest().has_value() || !root.iterations().empty();
}

fs::path checkpoint_within(const fs::path& folder) {
  const CheckpointRoot root(folder);
  const std::vector<std::int64_t> steps = root.candidates();
  return steps.empty() ? folder : root.folder(steps.front());
}

}  // namespace primus::checkpoint
