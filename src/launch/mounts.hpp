#pragma once
// What of this machine a container has to see, under the same names.
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "launch/launcher_file.hpp"

namespace primus::launch {

/// The fewest folders and files whose mounts show all of `paths`, beside what `options` (volume, mount) show already.
/// A file is shown by its folder, unless that is the root or a home; what is not there yet by the folder above it.
std::vector<std::filesystem::path> mounts_for(std::span<const std::filesystem::path> paths,
                                              std::span<const Flag> options);

/// The option that mounts a path in the same place.
std::string mount_option(const std::filesystem::path& path);

}  // namespace primus::launch
