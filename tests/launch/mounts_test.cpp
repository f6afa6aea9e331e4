#include "launch/mounts.hpp"

#include <gtest/gtest.h>

#include "config/test_folder.hpp"

namespace primus::launch {
namespace {

namespace fs = std::filesystem;
using test::ScopedVariable;
using test::TestFolder;

class Mounts : public testing::Test {
 protected:
  Mounts() {
    folder_.write("data/a.bin", "");
    folder_.write("data/deep/b.bin", "");
    folder_.write("exp.yaml", "");
  }

  fs::path at(const std::string& name) const { return folder_.path() / name; }

  /// The mounts, without the test's folder in front.
  std::vector<std::string> of(const std::vector<fs::path>& paths, const std::vector<Flag>& options = {}) const {
    std::vector<std::string> names;
    for (const fs::path& path : mounts_for(paths, options)) names.push_back(path.lexically_relative(folder_.path()));
    return names;
  }

  TestFolder folder_;
  using Names = std::vector<std::string>;
};

TEST_F(Mounts, OfAFileItsFolderAndOfWhatLiesInAnotherNothing) {
  EXPECT_EQ(of({at("data/a.bin")}), Names{"data"});
  EXPECT_EQ(of({at("data/deep/b.bin"), at("data/a.bin"), at("data/")}), Names{"data"});
  EXPECT_EQ(of({at("data/deep/../a.bin"), at("data")}), Names{"data"});
  EXPECT_EQ(of({""}), Names{});
  make_folder(at("database"));
  EXPECT_EQ(of({at("data"), at("database")}), (Names{"data", "database"})) << "a longer name is no folder within";
}

TEST_F(Mounts, OfWhatIsNotThereYetTheFolderAbove) {
  EXPECT_EQ(of({at("data/new/run/log.txt")}), Names{"data"});
  EXPECT_EQ(mounts_for(std::vector<fs::path>{"/nowhere_at_all/run"}, {}).at(0), "/nowhere_at_all/run")
      << "the whole disk is no mount";
}

TEST_F(Mounts, AFileInAHomeStandsForItself) {
  const ScopedVariable home("HOME", folder_.path().string());
  EXPECT_EQ(of({at("exp.yaml"), at("data/a.bin"), at("new/run")}), (Names{"data", "exp.yaml", "new/run"}));
}

TEST_F(Mounts, ALinkNeedsItsTargetToo) {
  fs::create_symlink(at("data/a.bin"), at("link.bin"));
  const ScopedVariable home("HOME", folder_.path().string());
  EXPECT_EQ(of({at("link.bin")}), (Names{"data", "link.bin"}));
}

TEST_F(Mounts, WhatTheUserMountsIsLeftOut) {
  const std::string data = at("data").string();
  EXPECT_EQ(of({at("data/deep/b.bin")}, {{"volume", {data + ":" + data + ":ro"}}}), Names{});
  EXPECT_EQ(of({at("data/a.bin")}, {{"volume", {"/scratch:" + data}}}), Names{}) << "one mount point, one mount";
  EXPECT_EQ(of({at("data/a.bin")}, {{"volume", {data}}}), Names{});
  EXPECT_EQ(of({at("data/a.bin")}, {{"mount", {"type=bind,source=/x,target=" + data}}}), Names{});
  EXPECT_EQ(of({at("data/a.bin")}, {{"volume", {"/x:/y"}}, {"device", {data}}}), Names{"data"});
}

TEST_F(Mounts, Spelling) {
  EXPECT_EQ(mount_option("/a b/c"), "--volume=/a b/c:/a b/c");
  EXPECT_EQ(mount_option("/a:b"), "--mount=type=bind,\"source=/a:b\",\"target=/a:b\"");
  EXPECT_EQ(mount_option("/a\"b"), "--mount=type=bind,\"source=/a\"\"b\",\"target=/a\"\"b\"");
}

}  // namespace
}  // namespace primus::launch
