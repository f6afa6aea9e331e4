// Pictures of the documentation: each is what the command beside it draws.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/program.hpp"
#include "config/test_folder.hpp"

namespace primus::cli {
namespace {

/// Commands that draw without a run of their own.
bool is_drawn_from_an_experiment(const std::string& line) {
  for (const char* command : {"pipeline", "memory", "layout"}) {
    if (line.starts_with(std::string("primus-cli view ") + command)) return true;
  }
  return false;
}

TEST(Pictures, OfTheDocumentationAreCurrent) {
  const std::string root = PRIMUS_SOURCE_DIR;
  const bool updates = std::getenv("PRIMUS_UPDATE_GOLDEN") != nullptr;
  const test::TestFolder folder;
  std::set<std::string> drawn;
  for (const char* page : {"docs/schedules.md", "docs/pictures.md", "docs/projection.md"}) {
    for (const std::string& line : split(read_file(root + "/" + page), '\n')) {
      if (!is_drawn_from_an_experiment(line) || line.find("--out docs/pictures/") == std::string::npos) continue;
      std::vector<std::string> words = split(line, ' ');
      words.erase(words.begin());
      drawn.insert(words.back());
      const std::string picture = root + "/" + words.back();
      words.back() = updates ? picture : (folder.path() / "picture.svg").string();
      const ProgramResult result = run_program(words, root);
      ASSERT_EQ(result.code, 0) << result.err;
      EXPECT_TRUE(read_file(words.back()) == read_file(picture)) << line;
      EXPECT_LT(std::filesystem::file_size(picture), 250'000U) << picture;
    }
  }
  EXPECT_EQ(drawn.size(), 6U);
}

}  // namespace
}  // namespace primus::cli
