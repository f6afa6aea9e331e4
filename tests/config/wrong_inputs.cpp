#include "config/wrong_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/files.hpp"
#include "base/text.hpp"
#include "config/resolve_fixture.hpp"

namespace primus::config {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests/config/data/wrong_inputs";

// "\x0a" is one byte, "\\" a backslash.
std::string decoded(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "\\x") == 0 && i + 3 < text.size()) {
      result += static_cast<char>(std::stoi(text.substr(i + 2, 2), nullptr, 16));
      i += 3;
    } else if (text.compare(i, 2, "\\\\") == 0) {
      result += '\\';
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

/// The parts of a case as the fixture takes them.
struct Input {
  std::vector<std::string> words;
  std::string overrides;
  std::string head;
  std::string tail;
  std::optional<std::string> file;
  std::map<std::string, std::string> others;
  std::vector<std::pair<std::string, std::string>> variables;
  Purpose purpose = Purpose::kPlan;
  std::int64_t world_size = 0;
};

void add_line(Input& input, const std::string& line) {
  const std::size_t space = line.find(' ');
  const std::string field = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : decoded(line.substr(space + 1));
  if (field == "word") input.words.push_back(rest);
  if (field == "words") {
    for (const std::string& word : split(rest, ' ')) input.words.push_back(word);
  }
  if (field == "set") input.overrides += rest + "\n";
  if (field == "head") input.head += rest + "\n";
  if (field == "tail") input.tail += rest + "\n";
  if (field == "file") input.file = input.file.value_or("") + rest + "\n";
  if (field == "also") input.others[rest.substr(0, rest.find(' '))] += rest.substr(rest.find(' ') + 1) + "\n";
  if (field == "env") input.variables.emplace_back(rest.substr(0, rest.find('=')), rest.substr(rest.find('=') + 1));
  if (field == "train") input.purpose = Purpose::kTrain;
  if (field == "train" || field == "world") input.world_size = std::stoll(rest);
}

}  // namespace

std::map<std::string, std::vector<WrongInput>> read_wrong_inputs() {
  std::map<std::string, std::vector<WrongInput>> files;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    std::vector<WrongInput>& inputs = files[entry.path().filename().string()];
    for (const std::string& line : split(read_file(entry.path()), '\n')) {
      if (line.starts_with('[')) {
        inputs.push_back({.name = line.substr(1, line.size() - 2)});
      } else if (line.starts_with("rule ") || line.starts_with("fault ")) {
        inputs.back().subject = line;
      } else if (line.starts_with('>')) {
        inputs.back().text += line.substr(std::min<std::size_t>(2, line.size())) + "\n";
      } else if (!line.empty()) {
        inputs.back().lines.push_back(line);
      }
    }
  }
  return files;
}

void write_wrong_inputs(const std::string& file, const std::vector<WrongInput>& inputs) {
  std::string text;
  for (const WrongInput& input : inputs) {
    text += (text.empty() ? "[" : "\n[") + input.name + "]\n" + input.subject + "\n";
    for (const std::string& line : input.lines) text += line + "\n";
    for (const std::string& line : split(std::string(trim(input.text)), '\n')) text += "> " + line + "\n";
  }
  write_file(kFolder / file, text);
}

std::string outcome_of(const WrongInput& wrong) {
  Input input;
  for (const std::string& line : wrong.lines) add_line(input, line);
  ResolveFixture fixture;
  std::vector<std::unique_ptr<test::ScopedVariable>> variables;
  for (const auto& [name, value] : input.variables) {
    variables.push_back(std::make_unique<test::ScopedVariable>(name, value));
  }
  for (const auto& [name, text] : input.others) fixture.folder().write(name, text);
  const std::string overrides = input.overrides.empty() ? "mock_data: true\n" : input.overrides;
  fixture.write_experiment(input.file.value_or(input.head + ResolveFixture::experiment_with(overrides) + input.tail));
  std::string text = fixture.problems(input.words, input.purpose, input.world_size);
  if (!text.empty()) return text;
  const Resolution resolution = fixture.resolve(input.words, input.purpose, input.world_size);
  for (const Note& note : resolution.notes) text += fmt::format("note: {}: {}\n", note.key, note.text);
  for (const Note& note : resolution.no_effect) text += fmt::format("no effect: {}: {}\n", note.key, note.text);
  const std::string folder = fixture.folder().path().string() + "/";
  for (std::size_t at = text.find(folder); at != std::string::npos; at = text.find(folder)) {
    text.erase(at, folder.size());
  }
  return text;
}

bool is_updating_goldens() {
  const char* value = std::getenv("PRIMUS_UPDATE_GOLDEN");
  return value && std::string_view(value) == "1";
}

}  // namespace primus::config
