#include "cli/run_files.hpp"

#include <fmt/format.h>

#include <array>
#include <system_error>

#include "base/error.hpp"
#include "base/files.hpp"
#include "cli/data_check.hpp"

namespace primus::cli {
namespace {

namespace fs = std::filesystem;

// Keys whose value is a file or folder that a run reads. (Data has prefixes, and lists of them.)
constexpr std::array<std::string_view, 7> kReadKeys = {
    "tokenizer_model",         "vocab_file", "merge_file", "load", "pretrained_checkpoint", "data_args_path",
    "per_split_data_args_path"};
constexpr std::array<std::string_view, 4> kWrittenKeys = {"save", "tensorboard_dir", "data_cache_path",
                                                          "wandb_save_dir"};

class Collector {
 public:
  /// A name that is no file here, such as a tokenizer of the hub, is left out.
  void add(const fs::path& path, std::string what) {
    std::error_code error;
    if (!path.empty() && fs::exists(path, error)) files_.push_back({path, std::move(what)});
  }

  std::vector<RunFile> take() { return std::move(files_); }

 private:
  std::vector<RunFile> files_;
};

}  // namespace

std::vector<RunFile> files_read(const config::Resolution& resolution, const LaunchOptions& launch,
                                std::span<const launch::Script> scripts) {
  Collector files;
  for (const std::string& file : resolution.files) files.add(file, "a file of the experiment");
  const config::Experiment& experiment = resolution.experiment;
  for (const std::string_view key : kReadKeys) {
    if (const auto path = experiment.get_optional_string(key)) files.add(*path, std::string(key));
  }
  for (const DataUse& use : look_at_data(experiment)) {
    for (const char* ending : {".bin", ".idx"}) files.add(use.prefix + ending, use.key);
  }
  for (const launch::Script& script : scripts)
    files.add(script.path, script.kind == launch::ScriptKind::kPatch ? "a patch" : "a hook");
  for (const std::string& file : launch.variable_files) files.add(file, "a file of variables");
  files.add(launch.launcher_file, "the launcher file");
  return files.take();
}

std::vector<RunFile> files_written(const config::Resolution& resolution, const LaunchOptions& launch) {
  const config::Experiment& experiment = resolution.experiment;
  std::vector<RunFile> files = {{experiment.workspace, "workspace"}};
  for (const std::string_view key : kWrittenKeys) {
    if (const auto path = experiment.get_optional_string(key); path && !path->empty())
      files.push_back({*path, std::string(key)});
  }
  if (!launch.log_file.empty()) files.push_back({launch.log_file, "--log_file"});
  return files;
}

void refuse_writing_over(const std::string& path, const std::string& key, std::span<const RunFile> read) {
  if (path.empty()) return;
  for (const RunFile& file : read) {
    std::error_code error;
    if (!fs::equivalent(path, file.path, error)) continue;
    throw ConfigError({{.file = "command line",
                        .key = key,
                        .message = fmt::format("'{}' is what is read ({}), and would be written over", path, file.what),
                        .expected = "another file"}});
  }
}

void check_export(const std::string& path, const std::string& key) {
  std::error_code error;
  if (path.empty() || !fs::exists(path, error)) return;
  const Beginning beginning = read_beginning(path, config::kResolvedHeading.size());
  if (beginning.fault.empty() && beginning.content == config::kResolvedHeading) return;
  throw ConfigError({{.file = "command line",
                      .key = key,
                      .message = fmt::format("'{}' is there already, and {} did not write it", path, key),
                      .expected = "a new file, or a resolved experiment",
                      .nearest = "remove it, or name another file"}});
}

}  // namespace primus::cli
