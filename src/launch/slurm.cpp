#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.hpp"
#include "config/parse.hpp"
#include "launch/outer_command.hpp"
#include "launch/worker_process.hpp"

namespace primus::launch {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

// Slurm's short names, so that `-N 2` on the command line beats `nodes` of the file.
constexpr std::array<Pair, 11> kShort = {{{"p", "partition"},
                                          {"N", "nodes"},
                                          {"n", "ntasks"},
                                          {"c", "cpus-per-task"},
                                          {"t", "time"},
                                          {"o", "output"},
                                          {"e", "error"},
                                          {"J", "job-name"},
                                          {"A", "account"},
                                          {"w", "nodelist"},
                                          {"x", "exclude"}}};

std::string long_name(std::string_view name) {
  for (const auto& [brief, full] : kShort) {
    if (brief == name) return std::string(full);
  }
  std::string result(name);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

const Flag* find_flag(const std::vector<Flag>& flags, std::string_view name) {
  const auto found = std::find_if(flags.begin(), flags.end(), [&](const Flag& flag) { return flag.name == name; });
  return found == flags.end() ? nullptr : &*found;
}

/// Counts of a request; what is wrong with one is kept, so that all of them are told.
class CountReader {
 public:
  explicit CountReader(std::vector<Problem>& problems) : problems_(problems) {}

  int read(const std::string& text, Problem place, std::int64_t most) {
    // `--nodes 2-4`: at least two.
    const std::size_t dash = text.find('-', 1);
    const auto count = config::parse_int(text.substr(0, dash));
    const auto last = dash == std::string::npos ? count : config::parse_int(text.substr(dash + 1));
    if (count && last && *last < *count) {
      place.message = "a range that runs backwards";
      place.expected = "the smaller number first";
      place.found = fmt::format("'{}'", text);
      problems_.push_back(std::move(place));
      return 1;
    }
    if (count && *count >= 1 && *count <= most) return static_cast<int>(*count);
    place.message = text.empty() ? "needs a value" : count ? "out of range" : "not a number";
    place.expected = fmt::format("integer from 1 to {}", most);
    if (!text.empty()) place.found = fmt::format("'{}'", text);
    problems_.push_back(std::move(place));
    return 1;
  }

 private:
  std::vector<Problem>& problems_;
};

void add_flag_words(const Flag& flag, std::vector<std::string>& words) {
  const std::string dashes = flag.name.size() == 1 ? "-" : "--";
  if (flag.values.empty()) words.push_back(dashes + flag.name);
  for (const std::string& value : flag.values) {
    if (flag.name.size() == 1) {
      words.insert(words.end(), {dashes + flag.name, value});
    } else {
      words.push_back(fmt::format("{}{}={}", dashes, flag.name, value));
    }
  }
}

}  // namespace

std::vector<Flag> read_flags(std::span<const std::string> words, std::string_view mode,
                             std::vector<Problem>& problems) {
  std::vector<Flag> flags;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.size() < 2 || word.front() != '-') {
      problems.push_back({.file = "command line",
                          .message = fmt::format("unexpected '{}' among the options of {}", word, mode),
                          .nearest = "the command stands behind `--`"});
      continue;
    }
    const bool is_long = word.starts_with("--");
    const std::size_t equals = word.find('=');
    Flag flag;
    if (is_long) {
      flag.name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
      if (equals != std::string::npos) flag.values.push_back(word.substr(equals + 1));
    } else {
      flag.name = word.substr(1, 1);
      if (word.size() > 2) flag.values.push_back(word.substr(word[2] == '=' ? 3 : 2));
    }
    const bool takes_next = flag.values.empty() && i + 1 < words.size() && !words[i + 1].starts_with("-");
    if (takes_next) flag.values.push_back(words[++i]);
    flags.push_back(std::move(flag));
  }
  return flags;
}

SlurmRequest read_slurm(std::span<const std::string> words, const LauncherFile& file, const Variables& environment) {
  SlurmRequest request;
  std::vector<Problem> problems;
  if (!words.empty() && (words.front() == "srun" || words.front() == "sbatch")) {
    request.starter = words.front();
    words = words.subspan(1);
  }
  for (Flag& flag : read_flags(words, "slurm", problems)) {
    flag.name = long_name(flag.name);
    request.flags.push_back(std::move(flag));
  }
  const std::size_t num_written = request.flags.size();
  for (const Flag& flag : file.slurm) {
    const std::string name = long_name(flag.name);
    const auto written_end = request.flags.begin() + static_cast<std::ptrdiff_t>(num_written);
    const bool is_written =
        std::any_of(request.flags.begin(), written_end, [&](const Flag& written) { return written.name == name; });
    if (!is_written) request.flags.push_back({name, flag.values, flag.line});
  }
  CountReader counts(problems);
  if (const Flag* nodes = find_flag(request.flags, "nodes")) {
    const bool is_typed = static_cast<std::size_t>(nodes - request.flags.data()) < num_written;
    const Problem place{.file = is_typed ? "command line" : file.path,
                        .line = nodes->line,
                        .key = is_typed ? "--nodes" : "slurm.nodes"};
    request.num_nodes = counts.read(nodes->values.empty() ? "" : nodes->values.back(), place, 1'000'000);
  } else {
    request.flags.push_back({"nodes", {"1"}});
  }
  // The file's own number was checked when the file was read.
  const auto devices = environment.find("GPUS_PER_NODE");
  if (devices != environment.end() && !devices->second.empty()) {
    request.devices_per_node = counts.read(devices->second, {.file = "environment", .key = "GPUS_PER_NODE"}, 72);
  } else if (!file.slurm_gpus_per_node.empty()) {
    request.devices_per_node =
        counts.read(file.slurm_gpus_per_node, {.file = file.path, .key = "slurm.gpus_per_node"}, 72);
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return request;
}

OuterCommand slurm_command(const SlurmRequest& request, const std::vector<std::string>& inner) {
  OuterCommand command{{request.starter}, {}};
  for (const Flag& flag : request.flags) add_flag_words(flag, command.words);
  // One launcher a node: it starts the node's workers.
  const bool says_tasks = find_flag(request.flags, "ntasks") || find_flag(request.flags, "ntasks-per-node");
  if (!says_tasks) command.words.push_back("--ntasks-per-node=1");
  if (request.starter == "sbatch") {
    const WorkerCommand step{"srun", inner, {}};
    command.words.push_back("--wrap=" + shell_text(step));
  } else {
    command.words.insert(command.words.end(), inner.begin(), inner.end());
  }
  std::string remark = "on every node:";
  for (const std::string& variable : node_variables(request)) remark += " " + variable;
  command.remarks.push_back(std::move(remark));
  return command;
}

std::vector<std::string> node_variables(const SlurmRequest& request) {
  return {fmt::format("NNODES={}", request.num_nodes), "NODE_RANK=$SLURM_NODEID",
          fmt::format("GPUS_PER_NODE={}", request.devices_per_node), "MASTER_ADDR=<first node>", "MASTER_PORT=1234"};
}

}  // namespace primus::launch
