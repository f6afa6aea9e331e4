// Devices and sizes of memory as people write them.
#include "projection/hardware.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.hpp"
#include "config/test_folder.hpp"

namespace primus::projection {
namespace {

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return to_text(error.problems().front());
  }
  return "accepted";
}

const std::filesystem::path kFolder = std::string(PRIMUS_SOURCE_DIR) + "/configs/hardware";

TEST(Hardware, EveryFileIsRead) {
  const std::vector<Hardware> all = read_hardware(kFolder);
  EXPECT_GE(all.size(), 8U);
  EXPECT_EQ(find_hardware(all, "mi355x", "--gpu").memory_bytes, std::int64_t{288} << 30);
  EXPECT_EQ(find_hardware(all, "MI300X", "--gpu").memory_bytes, std::int64_t{192} << 30);
  EXPECT_EQ(find_hardware(all, "H200", "--gpu").memory_bytes, std::int64_t{143771} << 20);
}

TEST(Hardware, AnUnknownNameIsToldTheNearest) {
  const std::vector<Hardware> all = read_hardware(kFolder);
  const std::string text = refusal([&] { find_hardware(all, "MI355", "--gpu"); });
  EXPECT_NE(text.find("unknown device"), std::string::npos) << text;
  EXPECT_NE(text.find("did you mean 'MI355X'?"), std::string::npos) << text;
}

TEST(Hardware, FaultyFilesAreToldWithTheirLine) {
  const test::TestFolder folder;
  folder.write("x.yaml", "name: X\nmemory_mib: -4\n");
  EXPECT_NE(refusal([&] { read_hardware(folder.path()); }).find("x.yaml:2: memory_mib: not a size of memory"),
            std::string::npos);
  folder.write("x.yaml", "name: X\nmemory: 4\n");
  EXPECT_NE(refusal([&] { read_hardware(folder.path()); }).find("x.yaml:2: memory: unknown key"), std::string::npos);
  folder.write("x.yaml", "name: X\n");
  EXPECT_NE(refusal([&] { read_hardware(folder.path()); }).find("memory_mib is missing"), std::string::npos);
}

TEST(MemorySize, Units) {
  EXPECT_EQ(parse_memory_size("140GiB", "--hbm"), std::int64_t{140} << 30);
  EXPECT_EQ(parse_memory_size("192 GB", "--hbm"), 192'000'000'000);
  EXPECT_EQ(parse_memory_size("1.5tib", "--hbm"), std::int64_t{3} << 39);
  EXPECT_EQ(parse_memory_size("150109880320", "--hbm"), 150'109'880'320);
}

TEST(MemorySize, WhatIsNoneIsRefused) {
  for (const char* text : {"", "GiB", "much", "12 stones", "1..2GiB", "nan", "inf GiB"}) {
    EXPECT_NE(refusal([&] { parse_memory_size(text, "--hbm"); }).find("not a size of memory"), std::string::npos)
        << text;
  }
  for (const char* text : {"-140GiB", "0", "0GB"}) {
    EXPECT_NE(refusal([&] { parse_memory_size(text, "--hbm"); }).find("a device has some memory"), std::string::npos)
        << text;
  }
  for (const char* text : {"9223372036854775808", "8388608TiB", "1e300GiB"}) {
    EXPECT_NE(refusal([&] { parse_memory_size(text, "--hbm"); }).find("beyond 2^63"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace primus::projection
