#pragma once
// Whole-file reads and writes that fail with the path and the system's reason.
#include <filesystem>
#include <string>
#include <string_view>

namespace primus {

/// Content of a file. Throws UserError with path and reason.
std::string read_file(const std::filesystem::path& path);

/// Write a file through a temporary beside it and a rename, so that readers see the old or the new one, never half.
void write_file(const std::filesystem::path& path, std::string_view content);

/// Create a folder and its parents. Throws UserError with path and reason.
void make_folder(const std::filesystem::path& path);

}  // namespace primus
