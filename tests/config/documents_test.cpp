// The tests that documents name are there: a table of cases with a test that was renamed shows nothing.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "base/files.hpp"

namespace primus::config {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = PRIMUS_SOURCE_DIR;

/// "Suite.Name" of every TEST, TEST_F and TEST_P.
std::set<std::string> all_tests() {
  std::set<std::string> names;
  const std::regex test(R"(\bTEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\))");
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    const std::string ending = entry.path().extension();
    if (ending != ".cpp" && ending != ".hpp") continue;
    const std::string text = read_file(entry.path());
    for (std::sregex_iterator match(text.begin(), text.end(), test), end; match != end; ++match)
      names.insert((*match)[1].str() + "." + (*match)[2].str());
  }
  return names;
}

TEST(Documents, NameTestsThatExist) {
  const std::set<std::string> tests = all_tests();
  const std::regex name(R"(`([A-Z]\w*\.[A-Z]\w*)`)");
  for (const char* page : {"docs/configuration.md", "docs/numerics.md"}) {
    const std::string text = read_file(kRoot / page);
    const std::string cases = text.substr(text.find("## Faults found in the field"));
    int num_named = 0;
    for (std::sregex_iterator match(cases.begin(), cases.end(), name), end; match != end; ++match, ++num_named)
      EXPECT_TRUE(tests.contains((*match)[1].str())) << page << ": " << (*match)[1];
    EXPECT_GE(num_named, 10) << page;
  }
}

}  // namespace
}  // namespace primus::config
