#pragma once
// What the `checkpoint` commands share.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/export.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"

namespace primus::cli {

/// Options of the commands that write a folder.
struct ConvertOptions {
  std::string from;
  std::string to;
  std::string dtype = "keep";
  std::string shard_size = "5GB";
  std::string format = "text";
  bool dry_run = false;  // CLI11 fills flags
};

void add_convert_options(CLI::App& app, ConvertOptions& options);
/// The same without --from.
void add_write_options(CLI::App& app, ConvertOptions& options);

/// Target, type and shard size of the words. Throws ConfigError.
checkpoint::WriteOptions write_options(const ConvertOptions& options);

/// A resolved experiment with its YAML, which a user builds on.
struct ResolvedModel {
  config::Experiment experiment;
  checkpoint::RunDescription run;
};

/// Put the model's settings on the presets and resolve them. Throws ConfigError where the rules refuse them.
ResolvedModel resolve_model(config::Experiment experiment, const std::string& name, const std::string& made_by);

/// What a conversion is about to write, or has written.
struct ConvertReport {
  std::string command;
  const ConvertOptions* options = nullptr;
  std::string architecture;
  const checkpoint::WritePlan* plan = nullptr;
  std::vector<std::string> notes;
  bool is_done = false;
};

void print_report(const ConvertReport& report, const LaunchOptions& launch);

/// The architecture of a stored model, as config.json names it; "" if it comes from none.
std::string architecture_of(const checkpoint::StoredModel& stored);

/// "F32, BF16": the types of stored tensors, those of most bytes first.
std::string types_text(const std::vector<checkpoint::StoredTensor>& tensors);

}  // namespace primus::cli
