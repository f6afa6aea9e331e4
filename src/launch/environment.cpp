#include "launch/environment.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "config/parse.hpp"

namespace primus::launch {
namespace {

struct Derived {
  std::string_view trigger;  // a variable that is 1
  std::string_view name;
  std::string_view value;
};

constexpr Derived kDerived[] = {
    {"USING_UEP", "PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND", "DEEP_EP"},
    {"USING_AINIC", "NCCL_IB_TC", "104"},
    {"USING_AINIC", "NCCL_IB_FIFO_TC", "192"},
    {"USING_AINIC", "NCCL_IB_GID_INDEX", "1"},
    {"USING_AINIC", "NCCL_MAX_P2P_CHANNELS", "56"},
    {"USING_AINIC", "NCCL_IB_QPS_PER_CONNECTION", "1"},
    {"PRIMUS_DETERMINISTIC", "NCCL_ALGO", "Ring"},
    {"PRIMUS_DETERMINISTIC", "ROCBLAS_DEFAULT_ATOMICS_MODE", "0"},
};

// Slurm's own variables, and those that they stand in for.
constexpr std::pair<const char*, const char*> kSlurm[] = {
    {"SLURM_NNODES", "NNODES"}, {"SLURM_NODEID", "NODE_RANK"}, {"SLURM_NODELIST", "MASTER_ADDR"}};

constexpr std::int64_t kMostDevices = 72;
constexpr std::int64_t kMostNodes = 1'000'000;

[[noreturn]] void refuse_variable(const std::string& text, const std::string& source, int line) {
  std::error_code error;
  const bool is_no_file = line == 0 && text.find('=') == std::string::npos && std::filesystem::exists(text, error);
  throw ConfigError(
      {{.file = source,
        .line = line,
        .key = line > 0 ? "" : "--env",
        .message = is_no_file ? "neither a variable nor a file: a folder, a pipe or a device" : "not a variable",
        .expected = "NAME=value, a NAME, or a file of such lines",
        .found = fmt::format("'{}'", text)}});
}

Added add_one(std::string_view text, const std::string& source, int line, Variables& variables) {
  const std::size_t equals = text.find('=');
  const std::string name(text.substr(0, equals));
  if (!config::is_variable_name(name)) refuse_variable(std::string(text), source, line);
  if (equals == std::string_view::npos) {
    const char* value = std::getenv(name.c_str());
    if (value) variables[name] = value;
    return value ? Added::kYes : Added::kNotSet;
  }
  std::string_view value = text.substr(equals + 1);
  const bool is_quoted =
      line > 0 && value.size() >= 2 && (value.front() == '"' || value.front() == '\'') && value.back() == value.front();
  variables[name] = is_quoted ? value.substr(1, value.size() - 2) : value;
  return Added::kYes;
}

void add_file(const std::string& path, Variables& variables) {
  int number = 0;
  for (const std::string& raw : split(read_file(path), '\n')) {
    ++number;
    std::string_view line = trim(raw);
    if (line.empty() || line.front() == '#') continue;
    if (line.starts_with("export ")) line = trim(line.substr(7));
    add_one(line, path, number, variables);
  }
}

class VariableCheck {
 public:
  explicit VariableCheck(const Variables& environment) : environment_(environment) {}

  std::vector<Problem> run() {
    const auto nodes = integer("NNODES", 1, kMostNodes);
    const auto rank = integer("NODE_RANK", 0, kMostNodes);
    const auto devices = integer("GPUS_PER_NODE", 1, kMostDevices);
    check_world(nodes, devices);
    integer("MASTER_PORT", 1024, 65535);
    // Without a word there is one node.
    const std::int64_t num_nodes = nodes.value_or(is_set("NNODES") || is_set("WORLD_SIZE") ? kMostNodes : 1);
    if (rank && *rank >= num_nodes)
      add("NODE_RANK", "no node of this run has that number",
          num_nodes == 1 ? "0, or NNODES beside it" : fmt::format("0 to {}", num_nodes - 1));
    const auto address = environment_.find("MASTER_ADDR");
    if (is_set("MASTER_ADDR") && !is_host(address->second)) add("MASTER_ADDR", "not the name of a host", "");
    for (const auto& [name, value] : environment_) {
      if (std::string expected = expected_value(name, value); !expected.empty())
        add(name, "not an allowed value", std::move(expected));
    }
    return std::move(problems_);
  }

 private:
  // WORLD_SIZE stands over the others, so what they contradict would go unseen.
  void check_world(std::optional<std::int64_t> nodes, std::optional<std::int64_t> devices) {
    const auto found = environment_.find("WORLD_SIZE");
    const auto world = found == environment_.end() ? std::nullopt : config::parse_int(found->second);
    if (!world || *world < 1 || !nodes) return;
    if (devices && *world != *nodes * *devices) {
      add("WORLD_SIZE", fmt::format("contradicts NNODES {} x GPUS_PER_NODE {}", *nodes, *devices),
          std::to_string(*nodes * *devices));
    } else if (*world % *nodes != 0) {
      add("WORLD_SIZE", fmt::format("contradicts NNODES {}: every node has equally many processes", *nodes),
          fmt::format("a multiple of {}", *nodes));
    }
  }

  bool is_set(const std::string& name) const {
    const auto found = environment_.find(name);
    return found != environment_.end() && !found->second.empty();
  }

  static bool is_host(std::string_view text) {
    return std::all_of(text.begin(), text.end(),
                       [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-' || c == ':'; });
  }

  void add(const std::string& name, std::string message, std::string expected) {
    problems_.push_back({.key = name,
                         .message = std::move(message),
                         .expected = std::move(expected),
                         .found = fmt::format("'{}'", environment_.at(name))});
  }

  std::optional<std::int64_t> integer(const std::string& name, std::int64_t low, std::int64_t high) {
    const auto found = environment_.find(name);
    if (found == environment_.end() || found->second.empty()) return std::nullopt;
    const auto value = config::parse_int(found->second);
    if (value && *value >= low && *value <= high) return value;
    const bool has_bound = high < kMostNodes;
    add(name, value ? "out of range" : "not a number",
        has_bound ? fmt::format("integer from {} to {}", low, high) : fmt::format("integer >= {}", low));
    return std::nullopt;
  }

  const Variables& environment_;
  std::vector<Problem> problems_;
};

bool is_check_skipped(const Variables& environment) {
  const auto skip = environment.find("PRIMUS_SKIP_VALIDATION");
  return skip != environment.end() && skip->second == "1";
}

}  // namespace

Variables current_environment() {
  Variables variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

Variables derived_variables(const Variables& environment) {
  Variables derived;
  for (const Derived& row : kDerived) {
    const auto trigger = environment.find(std::string(row.trigger));
    if (trigger == environment.end() || trigger->second != "1" || environment.contains(std::string(row.name))) continue;
    derived.emplace(row.name, row.value);
  }
  return derived;
}

Added add_variables(const std::string& text, const std::string& source, Variables& variables) {
  std::error_code error;
  // A file beats a bare NAME: whoever has a file of that name means it.
  if (text.find('=') == std::string::npos && std::filesystem::is_regular_file(text, error)) {
    add_file(text, variables);
    return Added::kYes;
  }
  return add_one(text, source, 0, variables);
}

std::vector<Problem> problems_of_variables(const Variables& variables) {
  if (is_check_skipped(variables) || is_check_skipped(current_environment())) return {};
  return VariableCheck(variables).run();
}

Variables slurm_variables(const Variables& environment) {
  Variables variables;
  const auto text_of = [&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  };
  if (text_of("SLURM_JOB_ID").empty()) return variables;
  for (const auto& [from, to] : kSlurm) {
    const std::string text = text_of(from);
    if (!text.empty() && text_of(to).empty())
      variables[to] = to == std::string_view("MASTER_ADDR") ? first_host(text) : text;
  }
  return variables;
}

std::string slurm_name(std::string_view name) {
  for (const auto& [from, to] : kSlurm) {
    if (name == to) return from;
  }
  return std::string(name);
}

std::string first_host(std::string_view node_list) {
  const std::size_t bracket = node_list.find('[');
  const std::size_t comma = node_list.find(',');
  if (bracket == std::string_view::npos || comma < bracket) return std::string(node_list.substr(0, comma));
  const std::size_t end = node_list.find_first_of(",-]", bracket + 1);
  if (end == std::string_view::npos) return std::string(node_list.substr(0, bracket));
  const std::size_t close = node_list.find(']', end);
  const std::size_t stop = node_list.find(',', close);
  std::string host(node_list.substr(0, bracket));
  host += node_list.substr(bracket + 1, end - bracket - 1);
  if (close != std::string_view::npos)
    host += node_list.substr(close + 1, stop == std::string_view::npos ? stop : stop - close - 1);
  return host;
}

}  // namespace primus::launch
