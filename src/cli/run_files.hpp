#pragma once
// The files of a run by name: what it reads, so that nothing writes over it, and what a container must see.
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "config/resolve.hpp"
#include "launch/hooks.hpp"

namespace primus::cli {

/// A file or folder that is there, and the part it plays.
struct RunFile {
  std::filesystem::path path;
  std::string what;  // "tokenizer_model", "a patch"
};

/// What the run reads: experiment, presets, data, tokenizer, checkpoints, scripts, the launcher file.
std::vector<RunFile> files_read(const config::Resolution& resolution, const LaunchOptions& launch,
                                std::span<const launch::Script> scripts);

/// Folders and files that the run writes; they need not be there.
std::vector<RunFile> files_written(const config::Resolution& resolution, const LaunchOptions& launch);

/// Throws ConfigError if writing `path`, of the option `key`, would change a file of `read`.
void refuse_writing_over(const std::string& path, const std::string& key, std::span<const RunFile> read);

/// --export_config may make a file, or replace one that it has made before. Throws ConfigError for any other.
void check_export(const std::string& path, const std::string& key);

}  // namespace primus::cli
