// Every value of every shipped preset and experiment against a table that was written apart from them.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "config/expected_table.hpp"
#include "config/loader.hpp"
#include "config/merge.hpp"
#include "config/resolve.hpp"
#include "config/test_folder.hpp"
#include "model/model_spec.hpp"
#include "model/parameters.hpp"

namespace primus::config {
namespace {

using test::TableRow;

const std::filesystem::path kSource = PRIMUS_SOURCE_DIR;

const std::map<std::string, std::vector<TableRow>>& expected() {
  static const auto table = test::group_by(test::read_table("expected_settings.tsv"), "file");
  return table;
}

/// Where the shipped files differ from the table on purpose.
struct Exception {
  std::string_view file;  // part of the name
  std::string_view key;
  std::string_view value;  // what stands here
  std::string_view reason;
};

constexpr Exception kExceptions[] = {
    {"gpt_oss", "@work_group", "amd", "the original has somebody's name"},
    {"gpt_oss", "@user_name", "root", "the original has somebody's name"},
    {"qwen3_235B_A22B-", "sequence_parallel", "false", "1 in the original; one tensor rank switches it off"},
};

const Exception* exception_for(const std::string& file, const std::string& key) {
  for (const Exception& exception : kExceptions) {
    if (exception.key == key && file.find(exception.file) != std::string::npos) return &exception;
  }
  return nullptr;
}

/// Settings of a preset by itself, with what it extends.
Experiment preset_alone(const std::filesystem::path& file) {
  std::vector<Problem> problems;
  const Node node = load_file(file, problems);
  Experiment experiment;
  SettingMerger merger(problems);
  merger.add_layer(node, Layer::kModelPreset, "");
  merger.apply_to(experiment);
  for (const Problem& problem : problems) ADD_FAILURE() << to_text(problem);
  return experiment;
}

/// The text of a setting of the file's head, such as @exp_name, or an entry of its environment.
std::string head_text(const Experiment& experiment, const std::string& name) {
  if (name == "work_group") return experiment.work_group;
  if (name == "user_name") return experiment.user_name;
  if (name == "exp_name") return experiment.exp_name;
  if (name == "workspace") return experiment.workspace;
  if (name == "module") return experiment.module;
  if (name == "framework") return experiment.framework;
  if (name == "config") return experiment.module_preset;
  if (name == "model") return experiment.model_preset;
  if (name.starts_with("env.")) {
    const auto found = experiment.env.find(name.substr(4));
    return found == experiment.env.end() ? "" : found->second;
  }
  ADD_FAILURE() << "the table asks for @" << name;
  return "";
}

/// `lora.dim`: an entry of a map.
const Value* entry_of(const Value& value, std::string_view path) {
  const auto* map = std::get_if<Value::Map>(&value.data);
  if (!map) return nullptr;
  const std::size_t dot = path.find('.');
  const auto found = map->find(std::string(path.substr(0, dot)));
  if (found == map->end()) return nullptr;
  return dot == std::string_view::npos ? &found->second : entry_of(found->second, path.substr(dot + 1));
}

void compare(const Experiment& experiment, const std::string& file, const TableRow& row) {
  const std::string& name = row.at("key");
  const Exception* exception = exception_for(file, name);
  const std::string text = exception ? std::string(exception->value) : row.at("value");
  if (exception) {
    EXPECT_NE(text, row.at("value")) << name << " is no exception any more: " << exception->reason;
  }
  if (name.starts_with('@')) {
    EXPECT_EQ(head_text(experiment, name.substr(1)), text) << name;
    return;
  }
  const std::size_t dot = name.find('.');
  const Key* key = find_key(name.substr(0, dot));
  ASSERT_NE(key, nullptr) << name;
  const Value& found = experiment.setting(key->name).value;
  if (dot != std::string::npos) {
    const Value* entry = entry_of(found, std::string_view(name).substr(dot + 1));
    ASSERT_NE(entry, nullptr) << name;
    EXPECT_EQ(to_text(*entry), text) << name;
    return;
  }
  EXPECT_TRUE(test::means_the_same(*key, found, test::expected_value(*key, text)))
      << name << ": expected " << text << ", found " << to_text(found) << " (" << row.at("note") << ")";
}

std::vector<std::string> expected_files() {
  std::vector<std::string> files;
  for (const auto& [file, rows] : expected()) files.push_back(file);
  return files;
}

std::string name_of(const testing::TestParamInfo<std::string>& info) {
  return test::test_name(info.param);
}

class ExpectedSettings : public testing::TestWithParam<std::string> {};

TEST_P(ExpectedSettings, AreWhatTheFileMeans) {
  const std::string& file = GetParam();
  const Experiment experiment = file.starts_with("configs/")
                                    ? preset_alone(kSource / file)
                                    : resolve({kSource / file, {}, Purpose::kPlan, {}}).experiment;
  for (const TableRow& row : expected().at(file)) compare(experiment, file, row);
}

INSTANTIATE_TEST_SUITE_P(Files, ExpectedSettings, testing::ValuesIn(expected_files()), name_of);

TEST(ExpectedSettingsTable, HasTheWholeFamily) {
  std::size_t num_rows = 0;
  for (const auto& [file, rows] : expected()) num_rows += rows.size();
  EXPECT_EQ(num_rows, 8891U);
  EXPECT_EQ(expected().size(), 78U);
}

std::vector<std::string> yaml_files(const std::filesystem::path& folder) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kSource / folder)) {
    if (entry.path().extension() == ".yaml") files.insert(std::filesystem::relative(entry.path(), kSource).string());
  }
  return {files.begin(), files.end()};
}

/// Presets that stand for a model by themselves: what others only extend has no sizes of its own.
std::vector<std::string> model_presets() {
  std::vector<std::string> files;
  for (const std::string& file : yaml_files("configs/models")) {
    if (!file.ends_with("_base.yaml") && !file.ends_with("language_model.yaml")) files.push_back(file);
  }
  return files;
}

class EveryPreset : public testing::TestWithParam<std::string> {};

TEST_P(EveryPreset, ResolvesAndCounts) {
  const test::TestFolder folder;
  const std::string file =
      folder.write("exp.yaml",
                   "work_group: a\nuser_name: b\nexp_name: c\nworkspace: d\nmodules:\n  pre_trainer:\n"
                   "    framework: megatron\n    config: pre_trainer\n    model: " +
                       std::filesystem::path(GetParam()).filename().string() + "\n");
  const Resolution resolution = resolve({file, {}, Purpose::kPlan, {}});
  EXPECT_GT(model::count_parameters(model::build_model_spec(resolution.experiment)).total, 0);
}

INSTANTIATE_TEST_SUITE_P(Files, EveryPreset, testing::ValuesIn(model_presets()), name_of);

class EveryExperiment : public testing::TestWithParam<std::string> {};

TEST_P(EveryExperiment, ResolvesAndFitsItsDevices) {
  const Resolution resolution = resolve({kSource / GetParam(), {}, Purpose::kPlan, {}});
  EXPECT_GT(model::count_parameters(model::build_model_spec(resolution.experiment)).total, 0);
  EXPECT_TRUE(batch_plan(resolution.experiment, resolution.world.size));
}

INSTANTIATE_TEST_SUITE_P(Files, EveryExperiment, testing::ValuesIn(yaml_files("examples")), name_of);

}  // namespace
}  // namespace primus::config
