// Event files as bytes; tests/interop/logs_test.py reads them with TensorBoard's own reader.
#include "train/event_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files.hpp"
#include "data/temporary_folder.hpp"

namespace primus::train {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

// Made with TensorBoard 2.21's RecordWriter and generated protobuf classes (tools/golden/event_file.py).
TEST(EventFile, BytesAreTensorBoards) {
  EXPECT_EQ(hex(tf_record("hello")), "0500000000000000eab2043e68656c6c6fbb1f1c19");
  EXPECT_EQ(hex(scalar_value("lm loss", 5.5)), "0a076c6d206c6f7373150000b040");
  EXPECT_EQ(hex(bar_value("e", std::vector<std::int64_t>{3, 1})),
            "0a01652a4811000000000000004019000000000000104021000000000000084029000000000000084032100000"
            "00000000f03f00000000000000403a100000000000000840000000000000f03f");
}

TEST(EventFile, WhatComesAgainIsTakenOut) {
  const data::TemporaryFolder folder;
  const std::string inside = folder / "tensorboard";
  std::string path;
  {
    EventFile file(inside, 1000);
    path = file.path();
    for (std::int64_t step = 1; step <= 300; ++step) {
      file.add(step, {scalar_value("lm loss", 1.0)});
      file.add(step * 16, {scalar_value(std::string("lm loss") + kVersusSamples, 1.0)});
    }
  }
  EXPECT_EQ(read_tf_records(read_file(path)).size(), 601U);
  // The last event of a killed process is cut short.
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 3);
  EXPECT_EQ(read_tf_records(read_file(path)).size(), 600U);
  cut_event_files(inside, 200, 3200);
  EXPECT_EQ(read_tf_records(read_file(path)).size(), 401U);
}

}  // namespace
}  // namespace primus::train
