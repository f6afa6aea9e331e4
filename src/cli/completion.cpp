#include "cli/completion.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/commands.hpp"
#include "cli/config_common.hpp"
#include "cli/front_options.hpp"
#include "config/key_table.hpp"

namespace primus::cli {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr std::array<std::string_view, 3> kModes = {"direct", "slurm", "container"};

/// Entries of a folder that begin like `typed`: folders, and files with the suffix ("": all).
void add_files(const std::string& typed, std::string_view suffix, Words& candidates) {
  const std::size_t slash = typed.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : typed.substr(0, slash + 1);
  const std::string beginning = slash == std::string::npos ? typed : typed.substr(slash + 1);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(beginning) || (name.starts_with('.') && beginning.empty())) continue;
    if (entry.is_directory(error)) {
      candidates.push_back(folder + name + "/");
    } else if (suffix.empty() || name.ends_with(suffix)) {
      candidates.push_back(folder + name);
    }
  }
}

bool names_a_path(std::string_view key) {
  constexpr std::array<std::string_view, 6> kEnds = {"_path", "_dir", "_file", "_model", "load", "save"};
  return std::any_of(kEnds.begin(), kEnds.end(), [key](std::string_view end) { return key.ends_with(end); });
}

class Completer {
 public:
  explicit Completer(std::span<const std::string> words)
      : before_(words.begin(), words.empty() ? words.end() : words.end() - 1),
        typed_(words.empty() ? "" : words.back()) {}

  Words run() {
    if (front()) {
      std::erase_if(candidates_, [this](const std::string& candidate) { return !candidate.starts_with(typed_); });
    } else {
      command();
    }
    std::sort(candidates_.begin(), candidates_.end());
    candidates_.erase(std::unique(candidates_.begin(), candidates_.end()), candidates_.end());
    return std::move(candidates_);
  }

 private:
  void add(std::string_view candidate) {
    if (candidate.starts_with(typed_)) candidates_.emplace_back(candidate);
  }

  void add_options(std::span<const FrontOption> options) {
    for (const FrontOption& option : options) add(option.name);
  }

  void add_groups() {
    for (const Command& command : commands()) add(command.group);
  }

  /// Global options, modes and their options; false once a command begins.
  bool front() {
    std::span<const FrontOption> options = global_options();
    bool is_outer = false;
    std::string mode;
    while (position_ < before_.size()) {
      const std::string& word = before_[position_];
      const FrontOption* option = find_option(options, word);
      if (option) {
        const bool has_value = !option->value.empty() && word.find('=') == std::string::npos;
        if (has_value && position_ + 1 == before_.size()) return option_value(*option);
        position_ += has_value ? 2 : 1;
      } else if (std::find(kModes.begin(), kModes.end(), word) != kModes.end()) {
        mode = word;
        is_outer = word != "direct";
        options = is_outer ? outer_options() : direct_options();
        ++position_;
      } else if (word == "--") {
        is_outer = false;
        ++position_;
      } else if (is_outer) {
        ++position_;  // an option of srun's or docker's
      } else {
        return false;
      }
    }
    if (is_outer) {
      if (mode == "slurm") {
        add("srun");
        add("sbatch");
      }
      add_options(options);
      add("--");
      return true;
    }
    if (typed_.starts_with('-')) add_options(options);
    add_groups();
    if (mode.empty() || mode == "slurm") {
      for (const std::string_view name : kModes) add(name);
    }
    return true;
  }

  bool option_value(const FrontOption& option) {
    if (option.id == FrontId::kDevice) add("cpu");
    if (option.id == FrontId::kFormat) add("json");
    if (option.value == "FILE") add_files(typed_, option.id == FrontId::kConfig ? ".yaml" : "", candidates_);
    return true;
  }

  // --- behind a command ----------------------------------------------------------------------------------------------

  void command() {
    const std::string group = before_[position_++];
    const Command* found = find_command(group, "");
    if (!found && position_ == before_.size()) {
      for (const Command& command : commands()) {
        if (command.group == group) add(command.name);
      }
      return;
    }
    if (!found) found = find_command(group, before_[position_++]);
    if (found) arguments(*found);
  }

  void arguments(const Command& command) {
    CLI::App app;
    command.add_options(app);
    const std::size_t equals = typed_.find('=');
    if (equals != std::string::npos)
      return add_value(app, command, typed_.substr(0, equals), typed_.substr(0, equals + 1));
    if (position_ < before_.size() && add_next_value(app, command, before_.back())) return;
    if (typed_.starts_with('-')) {
      for (const CLI::Option* option : app.get_options()) {
        for (const std::string& name : option->get_lnames()) add("--" + name);
      }
    }
    if (command.rest == Rest::kReturn)
      add_keys(typed_.starts_with('-') ? "--" : "", typed_.starts_with('-') ? "" : "=");
    if (typed_.starts_with('-')) return;
    if (command.positionals == "experiment") add_files(typed_, ".yaml", candidates_);
    if (command.positionals == "folder") add_files(typed_, "/", candidates_);
    if (command.positionals == "key") {
      candidates_.clear();
      add_keys("", "");
    }
    if (command.positionals == "shell") {
      add("bash");
      add("zsh");
    }
  }

  /// The word behind an option or key that wants one.
  bool add_next_value(const CLI::App& app, const Command& command, const std::string& name) {
    if (!name.starts_with("--") || name.find('=') != std::string::npos) return false;
    const std::size_t num_before = candidates_.size();
    add_value(app, command, name, "");
    if (candidates_.size() > num_before) return true;
    const CLI::Option* option = app.get_option_no_throw(name);
    return option && option->get_type_size() > 0;
  }

  /// Values of an option or key, each behind `prefix`.
  void add_value(const CLI::App& app, const Command& command, const std::string& name, const std::string& prefix) {
    if (name.starts_with("--")) {
      const CLI::Option* option = app.get_option_no_throw(name);
      if (option) return option_values(*option, name, prefix);
    }
    if (command.rest != Rest::kReturn) return;
    std::string key_name =
        name.substr(name.find_first_not_of('-') == std::string::npos ? 0 : name.find_first_not_of('-'));
    std::replace(key_name.begin(), key_name.end(), '-', '_');
    if (const config::Key* key = config::find_key(key_name)) key_values(*key, prefix);
  }

  void option_values(const CLI::Option& option, const std::string& name, const std::string& prefix) {
    const auto offer = [&](std::string_view value) { add(prefix + std::string(value)); };
    const std::string type = option.get_type_name();
    if (name == "--area") {
      for (const config::KeySection& section : config::key_sections()) {
        std::string area(section.area);
        std::replace(area.begin(), area.end(), ' ', '-');
        offer(area);
      }
    } else if (name == "--state") {
      for (const char* state : {"works", "planned", "no-effect"}) offer(state);
    } else if (name == "--preset") {
      for (const std::string& preset : preset_names()) offer(preset);
    } else if (name == "--tokenizer-type") {
      for (const char* tokenizer :
           {"ByteTokenizer", "GPT2BPETokenizer", "HuggingFaceTokenizer", "NullTokenizer", "SentencePieceTokenizer"}) {
        offer(tokenizer);
      }
    } else if (name == "--device") {
      offer("cpu");
    } else if (type.find('|') != std::string::npos) {
      for (const std::string& value : split(type, '|')) offer(value);
    } else if (type.starts_with("FILE") || type == "DIR" || type == "PATH") {
      files(type == "FILE.yaml" ? ".yaml" : "", prefix);
    }
  }

  void files(std::string_view suffix, const std::string& prefix) {
    Words found;
    add_files(typed_.substr(prefix.size()), suffix, found);
    for (const std::string& file : found) add(prefix + file);
  }

  void key_values(const config::Key& key, const std::string& prefix) {
    if (key.type == config::KeyType::kBool) {
      add(prefix + "true");
      add(prefix + "false");
    }
    const bool is_range = key.allowed.find("..") != std::string_view::npos || key.allowed.starts_with('>');
    if (!key.allowed.empty() && !is_range) {
      for (const std::string& value : split(key.allowed, '|')) add(prefix + value);
    }
    if (config::allows_null(key) && !candidates_.empty()) add(prefix + "null");
    if (names_a_path(key.name)) files("", prefix);
  }

  void add_keys(const std::string& before, const std::string& after) {
    // `--micro-batch` is the same key as `--micro_batch`: what was typed stays as it is.
    std::string typed = typed_.substr(std::min(before.size(), typed_.size()));
    const std::string written = typed;
    std::replace(typed.begin(), typed.end(), '-', '_');
    for (const config::KeySection& section : config::key_sections()) {
      for (const config::Key& key : section.keys) {
        if (key.name.starts_with(typed))
          candidates_.push_back(before + written + in_style_of(written, key.name.substr(typed.size())) + after);
        if (!before.empty() && key.type == config::KeyType::kBool) add_negation(key, typed, written);
      }
    }
  }

  // Who typed dashes between words goes on with them.
  static std::string in_style_of(const std::string& written, std::string_view rest) {
    std::string text(rest);
    if (written.find('-') != std::string::npos && written.find('_') == std::string::npos)
      std::replace(text.begin(), text.end(), '_', '-');
    return text;
  }

  // `--no-bf16`, once its beginning stands there: nobody wants a second list of all switches.
  void add_negation(const config::Key& key, const std::string& typed, const std::string& written) {
    constexpr std::string_view kNo = "no_";
    if (!typed.starts_with(kNo) || config::find_key(typed)) return;
    const std::string_view beginning = std::string_view(typed).substr(kNo.size());
    if (!beginning.empty() && key.name.starts_with(beginning))
      candidates_.push_back("--" + written + in_style_of(written, key.name.substr(beginning.size())));
  }

  Words before_;
  std::string typed_;
  std::size_t position_ = 0;
  Words candidates_;
};

}  // namespace

std::vector<std::string> complete(std::span<const std::string> words) {
  return Completer(words).run();
}

std::vector<std::string> words_of_line(std::string_view line) {
  Words words;
  std::string word;
  char quote = 0;
  bool is_open = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      is_open = true;
    } else if (c == '\\' && i + 1 < line.size()) {
      word += line[++i];
      is_open = true;
    } else if (c == ' ' || c == '\t') {
      if (is_open) words.push_back(std::exchange(word, ""));
      is_open = false;
    } else {
      word += c;
      is_open = true;
    }
  }
  words.push_back(word);
  return words;
}

}  // namespace primus::cli
