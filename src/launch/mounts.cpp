#include "launch/mounts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "base/text.hpp"

namespace primus::launch {
namespace {

namespace fs = std::filesystem;

bool is_within(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

fs::path plain(const fs::path& path) {
  fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() || normal == normal.root_path() ? normal : normal.parent_path();
}

/// Folders that hold much more than what a run needs of them.
bool is_too_large(const fs::path& folder) {
  const char* home = std::getenv("HOME");
  return folder == folder.root_path() || (home && *home && folder == plain(home));
}

fs::path shown_by(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return path;
  if (fs::exists(path, error)) return is_too_large(path.parent_path()) ? path : path.parent_path();
  fs::path above = path.parent_path();
  while (!fs::exists(above, error) && above.has_relative_path()) above = above.parent_path();
  return is_too_large(above) ? path : above;
}

/// Where the user's own options put something: SOURCE:TARGET[:options] or type=bind,source=S,target=T.
std::vector<fs::path> targets_of(std::span<const Flag> options) {
  std::vector<fs::path> targets;
  for (const Flag& option : options) {
    for (const std::string& value : option.values) {
      if (option.name == "volume") {
        const std::vector<std::string> parts = split(value, ':');
        targets.push_back(plain(parts.size() > 1 ? parts[1] : parts[0]));
      } else if (option.name == "mount") {
        for (const std::string& part : split(value, ',')) {
          for (const std::string_view name : {"target=", "dst=", "destination="}) {
            if (part.starts_with(name)) targets.push_back(plain(part.substr(name.size())));
          }
        }
      }
    }
  }
  return targets;
}

}  // namespace

std::vector<fs::path> mounts_for(std::span<const fs::path> paths, std::span<const Flag> options) {
  std::vector<fs::path> wanted;
  for (const fs::path& path : paths) {
    if (path.empty()) continue;
    wanted.push_back(shown_by(plain(path)));
    // A link shows nothing where its target is missing.
    std::error_code error;
    const fs::path target = fs::weakly_canonical(path, error);
    if (!error && target != plain(path)) wanted.push_back(shown_by(target));
  }
  // What is above comes first, so that what it holds is left out.
  std::stable_sort(wanted.begin(), wanted.end(), [](const fs::path& a, const fs::path& b) {
    return std::distance(a.begin(), a.end()) < std::distance(b.begin(), b.end());
  });
  std::vector<fs::path> shown = targets_of(options);
  std::vector<fs::path> mounts;
  for (const fs::path& path : wanted) {
    if (std::any_of(shown.begin(), shown.end(), [&](const fs::path& folder) { return is_within(path, folder); }))
      continue;
    shown.push_back(path);
    mounts.push_back(path);
  }
  std::sort(mounts.begin(), mounts.end());
  return mounts;
}

std::string mount_option(const fs::path& path) {
  const std::string text = path.string();
  if (text.find_first_of(":,\"") == std::string::npos) return fmt::format("--volume={0}:{0}", text);
  // --volume cuts at colons; --mount reads fields of comma-separated values, which may be quoted.
  return fmt::format("--mount=type=bind,{},{}", csv_quoted("source=" + text), csv_quoted("target=" + text));
}

}  // namespace primus::launch
