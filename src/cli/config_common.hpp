#pragma once
// What the `config` commands share: reading an experiment or a preset, and the words for it.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "config/resolve.hpp"

namespace primus::cli {

/// Options that several commands have.
struct ReadOptions {
  std::string config;
  std::string world_size;
  std::string format = "text";
  std::vector<std::string> overrides;
};

void add_config_option(CLI::App& app, ReadOptions& options);
void add_world_option(CLI::App& app, std::string& world_size);
/// `--format` with these names, the first of which is the default.
void add_format_option(CLI::App& app, std::string& format, const std::vector<std::string>& names);

/// Who decides the number of processes (decision 3); nothing: the smallest that is legal in a plan, one in a train.
std::optional<config::WorldSize> wanted_world(const std::string& world_size, config::Purpose purpose,
                                              const LaunchOptions& launch);

/// The environment's own variables, and those that --env and a launcher file bring. Throws ConfigError with the place
/// of each fault.
void check_environment(const LaunchOptions& launch);

/// Resolve with the world that wanted_world() finds. What is wrong with the environment, the world and the experiment
/// is told in one ConfigError.
config::Resolution resolve_here(config::ResolveRequest request, const std::string& world_size,
                                const LaunchOptions& launch);

/// Resolve as a plan. Throws ConfigError.
config::Resolution read_experiment(const std::string& file, const ReadOptions& options, const LaunchOptions& launch);

/// A model preset by itself, on the module preset pre_trainer.yaml, with the tokenizer's own vocabulary and overrides.
/// Only what a model needs is checked. Throws ConfigError.
config::Experiment read_preset(const std::string& name, std::span<const std::string> overrides);

/// Names of the model presets, without ".yaml", sorted.
std::vector<std::string> preset_names();

/// Take the first words, which stand before any override: CLI11's positionals would swallow the values of overrides.
/// Throws ConfigError with the message if there are fewer.
std::vector<std::string> first_words(std::vector<std::string>& words, std::size_t count, const std::string& message,
                                     const std::string& command);

/// Keys of an experiment's settings that a real train refuses: "a, b". Empty: there are none.
std::string planned_text(const config::Resolution& resolution);

/// A long value with its end cut off; a layout may be hundreds of letters long.
std::string shortened(const std::string& text);

}  // namespace primus::cli
