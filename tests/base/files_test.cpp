#include "base/files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.hpp"

namespace primus {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  Files() : folder_(fs::path(testing::TempDir()) / fmt::format("primus_files_{}", ::getpid())) {
    make_folder(folder_ / "deep" / "er");
  }
  ~Files() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(Files, ADeviceOrPipeTakesTheTextAndStaysWhatItIs) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write_file(pipe, "text");
  char text[8] = {};
  EXPECT_EQ(::read(reader, text, sizeof(text)), 4);
  EXPECT_STREQ(text, "text");
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST_F(Files, GiveBackWhatWasWritten) {
  const std::string content("a\0b\nc", 5);
  write_file(folder_ / "x", content);
  EXPECT_EQ(read_file(folder_ / "x"), content);
  write_file(folder_ / "x", "");
  EXPECT_EQ(read_file(folder_ / "x"), "");
}

TEST_F(Files, BeginningsAreReadFromFilesAndPipesAndNothingElse) {
  write_file(folder_ / "x", "0123456789");
  EXPECT_EQ(read_beginning(folder_ / "x", 4).content, "0123");
  EXPECT_EQ(read_beginning(folder_ / "x", 100).content, "0123456789");
  EXPECT_EQ(read_beginning(folder_, 4).fault, "is a folder");
  EXPECT_EQ(read_beginning("/dev/zero", 4).fault, "is a device, not a file");
  EXPECT_EQ(read_beginning(folder_ / "none", 4).fault, "cannot be read: No such file or directory");
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(read_beginning(pipe, 4).fault, "is a pipe that nobody writes into");
  // A writer that takes its time, as behind a shell's <(...).
  std::thread writer([&pipe] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::ofstream(pipe) << std::string(100'000, 'y');
  });
  EXPECT_EQ(read_beginning(pipe, 1 << 20).content, std::string(100'000, 'y'));
  writer.join();
}

TEST_F(Files, LeaveNoTemporaryBehind) {
  write_file(folder_ / "x", "1");
  write_file(folder_ / "x", "2");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2);  // x and deep
}

TEST_F(Files, ErrorsNameThePath) {
  const auto message_of = [](const auto& action) {
    try {
      action();
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message_of([&] { read_file(folder_ / "none"); }).find((folder_ / "none").string()), std::string::npos);
  EXPECT_NE(message_of([&] { read_file(folder_ / "deep"); }).find("is a folder"), std::string::npos);
  EXPECT_NE(message_of([&] { write_file(folder_ / "none" / "x", "1"); }).find((folder_ / "none" / "x").string()),
            std::string::npos);
  write_file(folder_ / "file", "1");
  EXPECT_NE(message_of([&] { make_folder(folder_ / "file" / "x"); }).find((folder_ / "file" / "x").string()),
            std::string::npos);
}

}  // namespace
}  // namespace primus
