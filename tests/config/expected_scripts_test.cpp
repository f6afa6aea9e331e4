// Every run script against a table of what its original means: the program is a stand-in that prints its arguments and
// its environment, and what it was given must resolve.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include "base/text.hpp"
#include "config/expected_table.hpp"
#include "config/resolve.hpp"
#include "config/test_folder.hpp"

namespace primus::config {
namespace {

using test::TableRow;

const std::filesystem::path kSource = PRIMUS_SOURCE_DIR;

/// What a script gave to the program.
struct Call {
  std::map<std::string, std::string> environment;
  std::string experiment;
  std::vector<std::string> overrides;
  Experiment resolved;
};

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return text;
  std::array<char, 4096> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), count);
  EXPECT_EQ(pclose(pipe), 0) << command << '\n' << text;
  return text;
}

/// Stands for the table's N: it divides the layers of a rank in every script that takes it.
constexpr const char* kAnyNumber = "3";

/// A variant of the table as assignments for the shell. "TP=2,VPP=N>1" sets both variables, a bare number is the one
/// feature that is on, "stages=16" is a pipeline of four ranks cut further, and node counts say for whom ids are meant.
std::string assignments(const std::string& variant, const std::vector<TableRow>& rows) {
  if (variant == "default") return "";
  if (variant.find_first_not_of("0123456789") == std::string::npos) return "MoE_Features=" + variant + " ";
  if (variant == "stages=8") return "PP=4 VPP=2 ";
  if (variant == "stages=16") return "PP=8 VPP=2 ";
  if (variant == "stages=32") return "PP=16 VPP=2 ";
  if (variant == "DUMP_PP_DATA") return "DUMP_PP_DATA=1 ";
  if (variant.starts_with("RECOMP_IDS,")) {
    for (const TableRow& row : rows) {
      if (row.at("name") == "recompute_layer_ids") return "RECOMP_IDS='" + row.at("value") + "' ";
    }
  }
  const std::string& script = rows.front().at("script");
  std::string text;
  for (const std::string& part : split(variant, ',')) {
    const std::size_t equals = part.find('=');
    std::string name = part.substr(0, equals);
    std::string value = part.substr(equals + 1);
    if (name == "MTP") name = "ENABLE_MTP";
    if (value.starts_with("N>")) value = kAnyNumber;
    // Virtual stages need pipeline ranks, and V2-Lite's script has one: three of them hold nine layers each,
    // and take turns in groups of three micro-batches.
    if (name == "VPP" && script.find("v2_lite") != std::string::npos) text += "PP=3 GBS=1008 ";
    if (value == "IDS") value = "0,1";
    text += name + "='" + value + "' ";
  }
  return text;
}

const std::string& stand_in() {
  static const test::TestFolder folder;
  static const std::string program = [] {
    std::string path = folder.write("program",
                                    "#!/bin/sh\nfor argument in \"$@\"; do echo \"argument $argument\"; done\n"
                                    "env | sed 's/^/variable /'\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }();
  return program;
}

Call call_of(const std::string& script, const std::string& settings) {
  Call call;
  std::vector<std::string> arguments;
  const std::string command = "env -i PATH=\"$PATH\" HOME=/nonexistent DRY_RUN=1 PRIMUS_CLI='" + stand_in() + "' " +
                              settings + "bash '" + (kSource / script).string() + "' 2>&1";
  for (const std::string& line : split(output_of(command), '\n')) {
    const std::size_t equals = line.find('=');
    if (line.starts_with("argument ")) {
      arguments.push_back(line.substr(9));
    } else if (line.starts_with("variable ") && equals != std::string::npos) {
      call.environment[line.substr(9, equals - 9)] = line.substr(equals + 1);
    }
  }
  const auto config = std::find(arguments.begin(), arguments.end(), "--config");
  if (arguments.end() - config < 2) {
    ADD_FAILURE() << script << ' ' << settings << "calls the program without an experiment";
    return call;
  }
  call.experiment = *(config + 1);
  call.overrides.assign(config + 2, arguments.end());
  return call;
}

/// The one cell that cannot be compared: the original's layers do not add up, any layout that holds them all is right,
/// and resolving says whether ours does.
bool is_exception(const TableRow& row) {
  return row.at("name") == "pipeline_model_parallel_layout" && row.at("value").empty();
}

void compare(const Call& call, const TableRow& row) {
  const std::string& name = row.at("name");
  std::string value = row.at("value");
  if (value == "N") value = kAnyNumber;
  if (value == "IDS") value = "0,1";
  if (row.at("kind") == "env") {
    const auto found = call.environment.find(name);
    EXPECT_EQ(found == call.environment.end() ? "(unset)" : found->second, value) << name;
  } else if (row.at("kind") == "experiment") {
    EXPECT_EQ(call.experiment, value);
  } else if (row.at("kind") == "flag") {
    const Key* key = find_key(name);
    ASSERT_NE(key, nullptr) << name;
    const Value& found = call.resolved.setting(key->name).value;
    const Value wanted = value == "None" ? Value{} : test::expected_value(*key, value);
    EXPECT_TRUE(test::means_the_same(*key, found, wanted))
        << name << ": expected " << value << ", found " << to_text(found) << " (" << row.at("note") << ")";
  }
}

class RunScript : public testing::TestWithParam<std::string> {};

TEST_P(RunScript, PassesWhatItsOriginalMeans) {
  const std::string& script = GetParam();
  const auto by_script = test::group_by(test::read_table("expected_scripts.tsv"), "script");
  for (const auto& [variant, rows] : test::group_by(by_script.at(script), "variant")) {
    SCOPED_TRACE(script + " " + variant);
    Call call = call_of(script, assignments(variant, rows));
    if (call.experiment.empty()) continue;
    try {
      call.resolved = resolve({kSource / call.experiment, call.overrides, Purpose::kPlan, {}}).experiment;
    } catch (const ConfigError& error) {
      for (const Problem& problem : error.problems()) ADD_FAILURE() << to_text(problem);
      continue;
    }
    for (const TableRow& row : rows) {
      if (!is_exception(row)) compare(call, row);
    }
  }
}

std::vector<std::string> scripts() {
  std::vector<std::string> names;
  for (const auto& [script, rows] : test::group_by(test::read_table("expected_scripts.tsv"), "script")) {
    names.push_back(script);
  }
  return names;
}

std::string script_name(const testing::TestParamInfo<std::string>& info) {
  return test::test_name(info.param);
}

INSTANTIATE_TEST_SUITE_P(All, RunScript, testing::ValuesIn(scripts()), script_name);

// Nobody typed the number of compute units, which between nodes may not be what one node takes.
TEST(RunScripts, ResolveWithExpertsOnSeveralNodes) {
  for (const char* model : {"deepseek_v3", "glm5", "minimax_m2.5", "qwen3_235B_A22B", "qwen3_30B_A3B"}) {
    const std::string script = std::string("examples/moe_package/run_") + model + "_pretrain_mi355x.sh";
    SCOPED_TRACE(script);
    const Call call = call_of(script, "EP=16 ");
    try {
      EXPECT_EQ(resolve({kSource / call.experiment, call.overrides, Purpose::kPlan, {}})
                    .experiment.get_int("turbo_deepep_num_cu"),
                32);
    } catch (const ConfigError& error) {
      for (const Problem& problem : error.problems()) ADD_FAILURE() << to_text(problem);
    }
  }
}

TEST(RunScripts, MentionVariablesThatTheyDoNotRead) {
  const auto told = [](const std::string& script, const std::string& settings) {
    return output_of("env -i PATH=\"$PATH\" HOME=/nonexistent DRY_RUN=1 PRIMUS_CLI='" + stand_in() + "' " + settings +
                     "bash '" + (kSource / script).string() + "' 2>&1 >/dev/null");
  };
  const std::string lite = "examples/moe_package/run_deepseek_v2_lite_pretrain_mi355x.sh";
  EXPECT_EQ(told(lite, "LAYOUT=x ENABLE_MTP=True "),
            "run_deepseek_v2_lite_pretrain_mi355x.sh: note: LAYOUT is set, but this script does not read it\n");
  EXPECT_EQ(told(lite, ""), "");
  EXPECT_EQ(told("examples/deepseek-v4/run_deepseek_v4.sh", "COMPRESS_RATIOS=[0] "), "");
  EXPECT_EQ(told("examples/moe_package/run_glm5_pretrain_mi355x.sh", "LAYOUT=None TURBO_GG=True "), "");
}

TEST(RunScripts, OfOurOwnResolve) {
  for (const char* model : {"1T", "2T", "4T", "515B"}) {
    const std::string script = std::string("examples/moe_package/run_moe_") + model + "_pretrain.sh";
    SCOPED_TRACE(script);
    const Call call = call_of(script, "");
    EXPECT_NO_THROW(resolve({kSource / call.experiment, call.overrides, Purpose::kPlan, {}}));
  }
}

}  // namespace
}  // namespace primus::config
