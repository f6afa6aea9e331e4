#include "cli/outer_modes.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "cli/gathered.hpp"
#include "config/loader.hpp"
#include "config/parse.hpp"
#include "launch/environment.hpp"
#include "launch/outer_command.hpp"
#include "launch/worker_process.hpp"

namespace primus::cli {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::string this_program() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? "primus-cli" : program.string();
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value && *value;
}

/// What is set already stands, except against --env.
void export_variables(const launch::LauncherFile& file, LaunchOptions& launch) {
  for (const auto& [name, value] : launch.environment) setenv(name.c_str(), value.c_str(), 1);
  for (const auto& [name, value] : launch::slurm_variables(launch::current_environment())) {
    setenv(name.c_str(), value.c_str(), 1);
    launch.places[name] = {.file = "environment", .key = launch::slurm_name(name)};
  }
  const std::array<std::pair<const char*, std::string>, 4> defaults = {{{"NNODES", file.direct.nnodes},
                                                                        {"GPUS_PER_NODE", file.direct.gpus_per_node},
                                                                        {"MASTER_ADDR", file.direct.master_addr},
                                                                        {"MASTER_PORT", file.direct.master_port}}};
  for (const auto& [name, value] : defaults) {
    if (!value.empty() && !is_set(name)) setenv(name, value.c_str(), 1);
  }
}

class OuterBuilder {
 public:
  OuterBuilder(const launch::LauncherFile& file, const FrontWords& front, LaunchOptions& launch)
      : file_(file), front_(front), launch_(launch), environment_(launch::current_environment()) {}

  void build(const OuterMode& outer) { outer.mode == "slurm" ? add_slurm(outer) : add_container(outer); }

 private:
  /// This program as it would be started in there, with the words of the command line from `position` on.
  Words inner_words(std::size_t position, const Words& mode) const {
    Words inner = {this_program()};
    if (launch_.detail == Detail::kDebug) inner.push_back("--debug");
    if (!front_.launcher_file.empty()) inner.insert(inner.end(), {"--config", front_.launcher_file});
    inner.insert(inner.end(), mode.begin(), mode.end());
    inner.insert(inner.end(), front_.words.begin() + static_cast<std::ptrdiff_t>(position), front_.words.end());
    return inner;
  }

  void add_slurm(const OuterMode& outer) {
    OuterPlan plan{.mode = "slurm", .slurm = launch::read_slurm(outer.words, file_, environment_)};
    launch_.world =
        config::WorldSize{std::int64_t{plan.slurm.num_nodes} * plan.slurm.devices_per_node, "nodes of slurm x devices"};
    const std::string& first = front_.words[outer.inner];
    const bool has_mode = first == "container" || first == "direct";
    plan.inner = inner_words(outer.inner, has_mode ? Words{} : Words{"container", "--"});
    launch_.outer.push_back(std::move(plan));
  }

  void add_container(const OuterMode& outer) {
    OuterPlan plan{.mode = "container", .container = launch::read_container(outer.words, file_, environment_)};
    for (const std::string& remark : plan.container.no_effect) {
      const std::size_t colon = remark.find(": ");
      launch_.no_effect.push_back({remark.substr(0, colon), remark.substr(colon + 2)});
    }
    Words mode = {"direct"};
    for (const std::string& variable : plan.container.environment) {
      const std::string name = variable.substr(0, variable.find('='));
      mode.insert(mode.end(), {"--env", launch::is_secret(name) ? name + "=(hidden)" : variable});
    }
    // Inside a job the nodes' own variables go along as well.
    if (!launch_.outer.empty()) {
      for (const std::string& variable : launch::node_variables(launch_.outer.back().slurm)) {
        const std::string name = variable.substr(0, variable.find('=') + 1);
        const bool is_known =
            std::any_of(mode.begin(), mode.end(), [&](const std::string& word) { return word.starts_with(name); });
        if (!is_known) mode.insert(mode.end(), {"--env", variable});
      }
    }
    const std::size_t first = outer.inner + (front_.words[outer.inner] == "direct" ? 1 : 0);
    plan.inner = inner_words(first, mode);
    launch_.outer.push_back(std::move(plan));
  }

  const launch::LauncherFile& file_;
  const FrontWords& front_;
  LaunchOptions& launch_;
  launch::Variables environment_;
};

}  // namespace

void apply_switches(const launch::LauncherFile& file, const FrontWords& front, LaunchOptions& launch) {
  const bool is_in_slurm = !front.outers.empty() && front.outers.front().mode == "slurm";
  const auto is_on = [is_in_slurm](launch::Switch main, launch::Switch slurm) {
    return main == launch::Switch::kOn || (is_in_slurm && slurm == launch::Switch::kOn);
  };
  launch.launcher_file = file.path;
  if (is_on(file.debug, file.slurm_debug)) launch.detail = Detail::kDebug;
  if (is_on(file.dry_run, file.slurm_dry_run)) launch.action = Action::kDryRun;
}

void apply_direct_defaults(const launch::LauncherFile& file, LaunchOptions& launch) {
  const launch::DirectDefaults& direct = file.direct;
  launch::Variables variables;
  const auto place_of = [&](const std::string& key) {
    const auto line = direct.lines.find(key);
    return Problem{.file = file.path, .line = line == direct.lines.end() ? 0 : line->second, .key = "direct." + key};
  };
  for (const std::string& entry : direct.environment) launch::add_variables(entry, file.path, variables);
  // What the command line says stands.
  launch.environment.insert(variables.begin(), variables.end());
  for (const auto& [name, value] : variables) {
    Problem place = place_of("env");
    place.key += " " + name;
    launch.places.emplace(name, std::move(place));
  }
  constexpr std::array<std::pair<const char*, const char*>, 4> kNames = {{{"NNODES", "nnodes"},
                                                                          {"GPUS_PER_NODE", "gpus_per_node"},
                                                                          {"MASTER_ADDR", "master_addr"},
                                                                          {"MASTER_PORT", "master_port"}}};
  for (const auto& [name, key] : kNames) {
    if (!is_set(name) && direct.lines.contains(key)) launch.places.emplace(name, place_of(key));
  }
  for (const std::string& patch : direct.patches) launch.places.emplace(patch, place_of("patch"));
  launch.patches.insert(launch.patches.begin(), direct.patches.begin(), direct.patches.end());
  if (launch.log_file.empty()) launch.log_file = direct.log_file;
  if (!direct.script.empty() && direct.script != "primus/cli/main.py")
    launch.no_effect.push_back({"direct.script", "there is no Python entry; PRIMUS_WORKER names another worker"});
  if (const auto numa = config::parse_bool(direct.numa); numa && !is_set("ENABLE_NUMA_BINDING")) {
    const bool is_new = launch.environment.emplace("ENABLE_NUMA_BINDING", *numa ? "1" : "0").second;
    if (is_new) launch.places.emplace("ENABLE_NUMA_BINDING", place_of("numa"));
  }
  export_variables(file, launch);
}

void read_outer_modes(const launch::LauncherFile& file, const FrontWords& front, LaunchOptions& launch) {
  OuterBuilder builder(file, front, launch);
  Gathered gathered;
  for (const OuterMode& outer : front.outers) gathered.step([&] { builder.build(outer); });
  gathered.raise();
}

std::vector<OuterText> outer_texts(std::span<const OuterPlan> plans, std::span<const RunFile> files) {
  std::vector<fs::path> needed = {fs::path(this_program()).parent_path(),
                                  fs::absolute(config::preset_folder()).parent_path(), launch::runner_folder()};
  if (const char* worker = std::getenv("PRIMUS_WORKER"); worker && *worker) needed.emplace_back(worker);
  for (const RunFile& file : files) needed.push_back(file.path);
  std::vector<OuterText> texts;
  for (const OuterPlan& plan : plans) {
    const launch::OuterCommand command = plan.mode == "slurm"
                                             ? launch::slurm_command(plan.slurm, plan.inner)
                                             : launch::container_command(plan.container, plan.inner, needed);
    const Words arguments(command.words.begin() + 1, command.words.end());
    texts.push_back({plan.mode, launch::shell_text({command.words.front(), arguments, {}}), command.remarks});
  }
  return texts;
}

}  // namespace primus::cli
