#include "base/folder_lock.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>

#include "base/error.hpp"

namespace primus {
namespace {

namespace fs = std::filesystem;

TEST(FolderLock, OneHolderAtATime) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("primus_lock_{}", ::getpid());
  fs::create_directories(folder);
  auto first = std::make_unique<FolderLock>(folder);
  try {
    const FolderLock second(folder);
    ADD_FAILURE() << "two holders";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(folder.string() + ": another run writes to this folder now"),
              std::string::npos)
        << error.what();
  }
  first.reset();
  EXPECT_NO_THROW(FolderLock third(folder));
  fs::remove_all(folder);
  EXPECT_THROW(FolderLock nowhere(folder), UserError);
}

}  // namespace
}  // namespace primus
