#pragma once
// Whole-file reads and writes that fail with the path and the system's reason.
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace primus {

/// Content of a file. Throws UserError with path and reason.
std::string read_file(const std::filesystem::path& path);

/// The first bytes of an input, or why there are none.
struct Beginning {
  std::string content;
  std::string fault;  // "is a folder"; empty: read
};

/// At most `max_bytes` of a file, or of a pipe that somebody writes into. Devices may never end, so none is read.
Beginning read_beginning(const std::filesystem::path& path, std::size_t max_bytes);

/// Write a file through a temporary beside it and a rename, so that readers see the old or the new one, never half.
void write_file(const std::filesystem::path& path, std::string_view content);

/// Create a folder and its parents. Throws UserError with path and reason.
void make_folder(const std::filesystem::path& path);

}  // namespace primus
