#include "cli/front.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "cli/commands.hpp"
#include "cli/front_options.hpp"
#include "cli/gathered.hpp"
#include "cli/outer_modes.hpp"
#include "cli/terminal.hpp"
#include "config/parse.hpp"
#include "launch/environment.hpp"

namespace primus::cli {
namespace {

constexpr std::array<std::string_view, 3> kModes = {"direct", "slurm", "container"};
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kPlannedWords = {{
    {"deps", "nothing has to be fetched here; it"},
    {"performance", "projecting time"},
    {"both", "projecting time"},
    {"preflight", "checking machines before a run"},
    {"node_smoke", "a quick check of one node"},
    {"posttrain", "fine-tuning"},
}};

enum class Front { kRun, kDone };

std::vector<std::string_view> group_names() {
  std::vector<std::string_view> names;
  for (const Command& command : commands()) {
    if (std::find(names.begin(), names.end(), command.group) == names.end()) names.push_back(command.group);
  }
  return names;
}

std::vector<std::string_view> names_in(std::string_view group) {
  std::vector<std::string_view> names;
  for (const Command& command : commands()) {
    if (command.group == group) names.push_back(command.name);
  }
  return names;
}

bool is_help(std::string_view word) {
  return word == "-h" || word == "--help";
}

class FrontParser {
 public:
  FrontParser(std::span<const std::string> words, launch::OutputCopy& output) : words_(words) {
    front_.words = words;
    launch_.output = &output;
    launch_.format = error_format(words);
  }

  int run() {
    try {
      return parse_and_run();
    } catch (const ConfigError& error) {
      // What was found before stands first; a command that ran has taken it along.
      if (faults_.is_empty()) throw;
      faults_.step([&] { throw error; });
      faults_.raise();
    }
    return 0;
  }

 private:
  int parse_and_run() {
    if (words_.empty()) return print(main_help());
    if (read_options(global_options(), main_help()) == Front::kDone) return 0;
    if (at_end()) refuse_first_word();
    if (read_mode() == Front::kDone) return 0;
    return dispatch();
  }

  static int print(const std::string& text) {
    fmt::print("{}", text);
    return 0;
  }

  void print_version() const {
    if (launch_.format == Format::kJson) return print_json({{"ok", true}, {"version", PRIMUS_VERSION}});
    print("primus-cli " PRIMUS_VERSION "\n");
  }

  bool at_end() const { return position_ >= words_.size(); }
  const std::string& current() const { return words_[position_]; }

  [[noreturn]] static void refuse_first_word() {
    std::vector<std::string_view> names(kModes.begin(), kModes.end());
    for (const std::string_view group : group_names()) names.push_back(group);
    refuse_word("command", "", names);
  }

  /// Options of a table, up to the first word that is none; a word that looks like one is refused.
  Front read_options(std::span<const FrontOption> options, const std::string& help) {
    while (!at_end() && current() != "--" && current().starts_with("-")) {
      const FrontOption* option = find_option(options, current());
      if (!option) refuse_option(options);
      if (option->id == FrontId::kHelp) {
        print(help);
        return Front::kDone;
      }
      if (option->id == FrontId::kVersion) {
        print_version();
        return Front::kDone;
      }
      take_gathered(*option);
    }
    return Front::kRun;
  }

  [[noreturn]] void refuse_option(std::span<const FrontOption> options) const {
    std::vector<std::string_view> names;
    for (const FrontOption& option : options) names.push_back(option.name);
    refuse_word(options.data() == direct_options().data() ? "option of direct" : "option", current(), names);
  }

  // Value of an option: behind '=' or the next word.
  std::string value_of(const FrontOption& option) {
    const std::string word = current();
    ++position_;
    if (option.value.empty()) return "";
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos && equals + 1 < word.size()) return word.substr(equals + 1);
    if (equals == std::string::npos && !at_end() && !current().starts_with("--")) return words_[position_++];
    throw ConfigError({{.file = "command line", .key = std::string(option.name), .message = "needs a value"}});
  }

  /// A wrong value does not hide what else is wrong; a missing one does, as what follows it is guesswork.
  void take_gathered(const FrontOption& option) {
    const std::string value = value_of(option);
    faults_.step([&] { take(option, value); });
  }

  void take(const FrontOption& option, const std::string& value) {
    constexpr std::array<std::string_view, 2> kFormats = {"text", "json"};
    switch (option.id) {
      case FrontId::kConfig:
        front_.launcher_file = value;
        break;
      case FrontId::kDebug:
        launch_.detail = Detail::kDebug;
        break;
      case FrontId::kDryRun:
        launch_.action = Action::kDryRun;
        break;
      case FrontId::kFormat:  // error_format() has read it
        if (value != "json" && value != "text") refuse_word("format", value, kFormats);
        break;
      default:
        take_direct(option, value);
    }
  }

  void take_direct(const FrontOption& option, const std::string& value) {
    const auto no_effect = [&](const char* why) { launch_.no_effect.push_back({std::string(option.name), why}); };
    switch (option.id) {
      case FrontId::kNproc:
        take_count("--nproc", process_count(value));
        break;
      case FrontId::kSingle:
        take_count("--single", 1);
        break;
      case FrontId::kDevice:
        launch_.device = value;
        break;
      case FrontId::kEnv:
        take_variables(value);
        break;
      case FrontId::kPatch:
        launch_.patches.push_back(value);
        break;
      case FrontId::kLogFile:
        launch_.log_file = value;
        break;
      case FrontId::kSilent:
        launch_.show = launch::Show::kErrorsOnly;
        break;
      case FrontId::kNuma:
        set_variable("ENABLE_NUMA_BINDING", "1", std::string(option.name));
        break;
      case FrontId::kNoNuma:
        set_variable("ENABLE_NUMA_BINDING", "0", std::string(option.name));
        break;
      case FrontId::kScript:
        no_effect("there is no Python entry; PRIMUS_WORKER names another worker");
        break;
      default:
        break;
    }
  }

  /// `key`: how the user said it.
  void set_variable(const std::string& name, const std::string& value, std::string key) {
    launch_.environment[name] = value;
    launch_.places[name] = {.file = "command line", .key = std::move(key)};
  }

  void take_variables(const std::string& value) {
    std::error_code error;
    if (std::filesystem::is_regular_file(value, error)) launch_.variable_files.push_back(value);
    launch::Variables added;
    if (launch::add_variables(value, "command line", added) == launch::Added::kNotSet)
      launch_.no_effect.push_back({"--env " + value, "the variable is not set here, so there is nothing to pass on"});
    for (const auto& [name, text] : added) set_variable(name, text, "--env " + name);
  }

  // Said twice in one way, the later one stands; --single beside --nproc is a contradiction.
  void take_count(std::string_view option, int count) {
    if (!count_option_.empty() && count_option_ != option && launch_.num_processes != count) {
      throw ConfigError({{.file = "command line",
                          .key = std::string(option),
                          .message = fmt::format("contradicts {}", count_option_),
                          .expected = "one of the two"}});
    }
    count_option_ = option;
    launch_.num_processes = count;
  }

  static int process_count(const std::string& text) {
    const auto count = config::parse_int(text);
    if (count && *count >= 1 && *count <= 1'000'000) return static_cast<int>(*count);
    throw ConfigError({{.file = "command line",
                        .key = "--nproc",
                        .message = "not a number of processes",
                        .expected = "integer >= 1",
                        .found = fmt::format("'{}'", text)}});
  }

  // --- modes -------------------------------------------------------------------------------------------------------

  Front read_mode() {
    if (current() == "slurm" && read_outer("slurm", slurm_help()) == Front::kDone) return Front::kDone;
    const bool is_in_slurm = !front_.outers.empty();
    // Behind slurm the default is a container, as its image has what the workers need.
    const bool has_inner_mode = !at_end() && (current() == "container" || current() == "direct");
    if (is_in_slurm && !has_inner_mode) {
      front_.outers.push_back({"container", {}, position_});
    } else if (!at_end() && current() == "container") {
      if (read_outer("container", container_help()) == Front::kDone) return Front::kDone;
    }
    const bool is_direct = !at_end() && current() == "direct";
    if (is_direct) ++position_;
    if (is_direct || !front_.outers.empty()) {
      if (read_options(direct_options(), direct_help()) == Front::kDone) return Front::kDone;
      if (!at_end() && current() == "--") ++position_;
    }
    return Front::kRun;
  }

  Front read_outer(const std::string& mode, const std::string& help) {
    OuterMode outer{mode, {}, 0};
    for (++position_; !at_end() && current() != "--";) {
      const FrontOption* option = find_option(outer_options(), current());
      if (option && option->id == FrontId::kHelp) {
        print(help);
        return Front::kDone;
      }
      if (option) {
        take_gathered(*option);
      } else {
        outer.words.push_back(words_[position_++]);
      }
    }
    if (at_end() || position_ + 1 == words_.size()) {
      throw ConfigError({{.file = "command line",
                          .message = fmt::format("{}: there is no command behind `--`", mode),
                          .nearest = fmt::format("see primus-cli {} --help", mode)}});
    }
    outer.inner = ++position_;
    front_.outers.push_back(std::move(outer));
    return Front::kRun;
  }

  // --- the command -------------------------------------------------------------------------------------------------

  // Options that say how workers start mean nothing to a command that starts none.
  void note_unused_launch_options(const Command& command) const {
    const std::string_view word = command.group;
    const auto note = [word](std::string_view option) {
      tell(fmt::format("{} {} has no effect: {} starts no worker\n", coloured("note:", Colour::kYellow, stderr), option,
                       word));
    };
    for (const OuterMode& outer : front_.outers) {
      // The container that stands for itself behind slurm was not written, so there is nothing to say of it.
      const bool is_written = &outer == &front_.outers.front() || outer.inner != front_.outers.front().inner;
      if (is_written) note(outer.mode);
    }
    // A projection or a picture takes the number of processes for its world.
    const bool has_world = word == "projection" || (word == "view" && command.name != "loss") ||
                           (word == "config" && command.name != "keys");
    if (launch_.num_processes && !has_world) note("--nproc");
    if (!launch_.device.empty()) note("--device");
    if (!launch_.environment.empty()) note("--env");
    if (!launch_.patches.empty()) note("--patch");
    if (!launch_.log_file.empty()) note("--log_file");
    if (launch_.show == launch::Show::kErrorsOnly) note("--silent");
    if (launch_.detail == Detail::kDebug) note("--debug");
  }

  const Command& read_command() {
    const std::vector<std::string_view> groups = group_names();
    if (at_end()) refuse_word("command", "", groups);
    const std::string group = current();
    refuse_misplaced(group);
    if (const auto planned = planned_word(group)) refuse_planned(group, *planned);
    if (group == "help") {
      throw ConfigError({{.file = "command line",
                          .message = "unknown command 'help'",
                          .nearest = "see primus-cli --help, or COMMAND --help"}});
    }
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) {
      std::vector<std::string_view> names(kModes.begin(), kModes.end());
      names.insert(names.end(), groups.begin(), groups.end());
      refuse_group(group, names);
    }
    ++position_;
    const std::vector<std::string_view> names = names_in(group);
    if (names.front().empty()) return *find_command(group, "");
    // A group of one command needs no name to be asked for help.
    if (names.size() == 1 && !at_end() && is_help(current())) return *find_command(group, names.front());
    const std::string name = at_end() ? "" : current();
    if (const auto planned = planned_word(name)) refuse_planned(fmt::format("{} {}", group, name), *planned);
    const Command* command = find_command(group, name);
    if (!command) refuse_word(fmt::format("command of {}", group), name, names);
    ++position_;
    return *command;
  }

  /// The name of a command whose group was left out is told with it.
  [[noreturn]] static void refuse_group(const std::string& word, std::span<const std::string_view> names) {
    std::string whole;
    for (const Command& command : commands()) {
      if (command.name == word) whole += fmt::format("{}'{} {}'", whole.empty() ? "" : " or ", command.group, word);
    }
    if (whole.empty()) refuse_word("command", word, names);
    throw ConfigError({{.file = "command line",
                        .message = fmt::format("unknown command '{}'", word),
                        .nearest = fmt::format("did you mean {}?", whole)}});
  }

  // A mode or an option where the command should stand.
  void refuse_misplaced(const std::string& word) const {
    const auto refuse = [](std::string message, std::string nearest) {
      throw ConfigError({{.file = "command line", .message = std::move(message), .nearest = std::move(nearest)}});
    };
    if (std::find(kModes.begin(), kModes.end(), word) != kModes.end()) {
      refuse(fmt::format("mode '{}' behind another mode", word),
             "modes are: direct; slurm; container; slurm ... -- container; slurm ... -- direct");
    }
    if (word == "--") refuse("a second '--' where a command should stand", "leave it out");
    if (!word.starts_with("-") || (!find_option(direct_options(), word) && !find_option(global_options(), word)))
      return;
    refuse(fmt::format("option '{}' where a command should stand", word), "options stand before the `--`");
  }

  static std::optional<std::string_view> planned_word(std::string_view word) {
    for (const auto& [name, what] : kPlannedWords) {
      if (word == name) return what;
    }
    return std::nullopt;
  }

  int dispatch() {
    const bool asks_group =
        !at_end() && names_in(current()).size() > 1 && position_ + 1 < words_.size() && is_help(words_[position_ + 1]);
    if (asks_group) return print(group_help(current()));
    const std::size_t first = position_;
    const Command& command = read_command();
    launch_.words.assign(words_.begin() + static_cast<std::ptrdiff_t>(first), words_.end());
    if (command.starts == Starts::kNothing) note_unused_launch_options(command);
    // Commands that only look at a configuration do their work whatever a launcher file says, unless it is named.
    const bool is_free = command.group == "config" || command.group == "completion";
    const bool reads_file = !is_free || !front_.launcher_file.empty();
    launch::LauncherFile file;
    if (reads_file) {
      file.state = launch::LauncherFile::State::kFaulty;
      faults_.step([&] { file = launch::load_launcher_file(front_.launcher_file); });
    }
    // An experiment in the launcher file's place is what is wrong where the command has none.
    const std::span<const std::string> own = words_.subspan(position_);
    const bool has_experiment = std::any_of(own.begin(), own.end(), [](const std::string& word) {
      return word.starts_with("--config") || word.starts_with("--exp");
    });
    if (!front_.launcher_file.empty() && !has_experiment) faults_.raise();
    apply_switches(file, front_, launch_);
    if (command.starts == Starts::kNothing) {
      faults_.raise();
    } else {
      faults_.step([&] { apply_direct_defaults(file, launch_); });
      faults_.step([&] { read_outer_modes(file, front_, launch_); });
      launch_.problems = faults_.take();
    }
    return command.run(words_.subspan(position_), launch_);
  }

  std::span<const std::string> words_;
  std::size_t position_ = 0;
  FrontWords front_;
  LaunchOptions launch_;
  std::string count_option_;  // --nproc or --single, whichever was read
  Gathered faults_;
};

}  // namespace

int run_front(std::span<const std::string> words, launch::OutputCopy& output) {
  return FrontParser(words, output).run();
}

}  // namespace primus::cli
