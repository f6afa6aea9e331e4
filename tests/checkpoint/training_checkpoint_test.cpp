// Training checkpoints as bytes: what is written is read, and no damage goes unseen.
#include <fmt/format.h>

#include <cstring>
#include <fstream>

#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/damage.hpp"
#include "data/temporary_folder.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> pattern(std::int64_t num_bytes, int seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(num_bytes));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 131 + static_cast<std::size_t>(seed) * 17 + i / 256) & 0xFFU);
  return bytes;
}

TensorSource source(const std::string& name, const std::string& kind, const char* type, std::vector<std::int64_t> shape,
                    int seed) {
  const ElementType* element = find_element_type(type);
  const std::vector<std::byte> bytes = pattern(tensor_bytes(*element, shape), seed);
  return {name, kind, element, std::move(shape), [bytes](const Sink& sink) {
            // In parts, as a device gives them.
            const std::size_t half = bytes.size() / 2;
            sink(std::span(bytes).first(half));
            sink(std::span(bytes).subspan(half));
          }};
}

CheckpointContent example() {
  CheckpointContent content{.iteration = 12, .consumed_samples = 192, .experiment_json = "{}\n"};
  content.training = {.schedule_samples = 176,
                      .optimizer_steps = 11,
                      .loss_scale = {65536.0, 3, 2},
                      .generator_seed = 0xFFFFFFFFFFFFFFFFULL,
                      .schedule = {{"lr", "0.001"}},
                      .log_interval = {0.1, 2.0 / 3.0, {1.0 / 7.0}, 2, 1, 0}};
  content.tensors = {source("a.weight", kWeight, "BF16", {64, 96}, 1), source("b.bias", kWeight, "F32", {5}, 2),
                     source("a.weight", kMaster, "F32", {64, 96}, 3),
                     source("a.weight", kFirstMoment, "F8_E4M3", {64, 96}, 4),
                     source("a.weight", std::string(kFirstMoment) + kScaleEnding, "F32", {24}, 5)};
  return content;
}

class TrainingCheckpoint : public testing::Test {
 protected:
  void SetUp() override { write_training_checkpoint(path_, example()); }

  std::vector<std::byte> read(const CheckpointReader& reader, const GlobalTensor& tensor) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor_bytes(*tensor.type, tensor.shape)));
    reader.read(tensor, bytes);
    return bytes;
  }

  /// The first word about damage that reading all of it gives; empty: none.
  std::string damage() const {
    try {
      const CheckpointReader reader(path_);
      const auto found = find_damage(reader, [](std::int64_t, std::int64_t) {});
      return found.empty() ? "" : found.front();
    } catch (const DamagedError& error) {
      return error.what();
    }
  }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) found.push_back(entry.path());
    return found;
  }

  data::TemporaryFolder folder_;
  fs::path path_ = fs::path(folder_.path()) / "iter_0000012";
};

TEST_F(TrainingCheckpoint, WhatIsWrittenIsRead) {
  const CheckpointReader reader(path_);
  EXPECT_EQ(reader.index().iteration, 12);
  EXPECT_EQ(reader.index().consumed_samples, 192);
  ASSERT_TRUE(reader.index().training.has_value());
  EXPECT_EQ(to_json(*reader.index().training).dump(), to_json(example().training).dump());
  EXPECT_EQ(reader.index().training->generator_seed, 0xFFFFFFFFFFFFFFFFULL);
  const CheckpointContent written = example();
  for (const TensorSource& tensor : written.tensors) {
    const GlobalTensor* stored = reader.index().find(tensor.name, tensor.kind);
    ASSERT_NE(stored, nullptr) << tensor.kind;
    std::vector<std::byte> expected;
    tensor.stream([&](std::span<const std::byte> part) { expected.insert(expected.end(), part.begin(), part.end()); });
    EXPECT_EQ(read(reader, *stored), expected) << tensor.kind << " " << tensor.name;
  }
  EXPECT_EQ(damage(), "");
  EXPECT_EQ(folder_.names(),
            (std::vector<std::string>{"iter_0000012", "iter_0000012/checkpoint.json", "iter_0000012/experiment.json",
                                      "iter_0000012/optimizer.safetensors", "iter_0000012/weights.safetensors"}));
}

TEST_F(TrainingCheckpoint, CutAtEveryBlockItIsRefusedByName) {
  constexpr std::uintmax_t kBlock = 4096;
  for (const fs::path& file : files()) {
    const std::string whole = read_file(file);
    for (std::uintmax_t length = 0; length < whole.size(); length += kBlock) {
      fs::resize_file(file, length);
      EXPECT_NE(damage().find(file.filename().string()), std::string::npos) << file << " at " << length;
      write_file(file, whole);
    }
    fs::resize_file(file, whole.size() + 1);
    EXPECT_NE(damage().find(file.filename().string()), std::string::npos) << file << " longer";
    fs::remove(file);
    EXPECT_NE(damage().find(file.filename().string()), std::string::npos) << file << " away";
    write_file(file, whole);
  }
  EXPECT_EQ(damage(), "");
}

void flip_bit(const fs::path& path, std::size_t bit) {
  std::string text = read_file(path);
  text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
  write_file(path, text);
}

TEST_F(TrainingCheckpoint, OneFlippedBitInAnyTensorIsNamed) {
  const CheckpointIndex index = read_index(path_);
  std::uint64_t random = 1;
  for (const GlobalTensor& tensor : index.tensors) {
    const Piece& piece = tensor.pieces.front();
    std::int64_t begin = 0;
    {
      const SafetensorsFile file((path_ / piece.file).string());
      const StoredTensor& stored = *file.find(piece.tensor);
      std::int64_t data_bytes = 0;
      for (const StoredTensor& each : file.tensors()) data_bytes += each.num_bytes;
      begin = static_cast<std::int64_t>(fs::file_size(path_ / piece.file)) - data_bytes + stored.begin;
    }
    for (int i = 0; i < 4; ++i) {
      random = random * 6364136223846793005ULL + 1442695040888963407ULL;
      const std::uint64_t num_bits = static_cast<std::uint64_t>(tensor_bytes(*tensor.type, tensor.shape)) * 8;
      const std::size_t bit = static_cast<std::size_t>(begin) * 8 + (random >> 33) % num_bits;
      flip_bit(path_ / piece.file, bit);
      const std::string message = damage();
      EXPECT_NE(message.find(piece.tensor), std::string::npos) << message;
      EXPECT_NE(message.find("the checksum does not fit"), std::string::npos) << message;
      flip_bit(path_ / piece.file, bit);
    }
  }
  EXPECT_EQ(damage(), "");
}

TEST_F(TrainingCheckpoint, OneFlippedBitAnywhereElseIsSeen) {
  for (const fs::path& file : files()) {
    const std::size_t num_bits = std::min<std::size_t>(read_file(file).size(), 1000) * 8;
    for (std::size_t bit = 0; bit < num_bits; bit += 37) {
      flip_bit(file, bit);
      EXPECT_NE(damage().find(file.filename().string()), std::string::npos) << file << " bit " << bit;
      flip_bit(file, bit);
    }
  }
}

TEST_F(TrainingCheckpoint, AnotherReleaseIsNotCalledDamaged) {
  const std::string text = read_file(path_ / kIndexFile);
  for (const char* version : {"1", "3"}) {
    std::string other =
        "{\"format\": \"primus-checkpoint\", \"version\": " + std::string(version) + ", \"tensors\": []}";
    write_file(path_ / kIndexFile, other);
    EXPECT_THROW(read_index(path_), ConfigError);
    EXPECT_NE(data::user_error([&] { read_index(path_); }).find("version: is of another release"), std::string::npos);
  }
  write_file(path_ / kIndexFile, text);
}

TEST_F(TrainingCheckpoint, PiecesArePutTogetherByTheirOffsets) {
  // The master copy of 64 x 96 cut into four boxes, as four ranks would write it.
  CheckpointIndex index = read_index(path_);
  const CheckpointReader whole(path_);
  const GlobalTensor original = *index.find("a.weight", kMaster);
  const std::vector<std::byte> expected = read(whole, original);
  CheckpointContent content = example();
  content.tensors.clear();
  const std::vector<std::array<std::int64_t, 4>> boxes = {
      {0, 0, 64, 10}, {0, 10, 30, 86}, {30, 10, 34, 85}, {30, 95, 34, 1}};
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const auto [row, column, rows, columns] = boxes[i];
    std::vector<std::byte> bytes;
    for (std::int64_t r = row; r < row + rows; ++r) {
      const auto begin = expected.begin() + (r * 96 + column) * 4;
      bytes.insert(bytes.end(), begin, begin + columns * 4);
    }
    content.tensors.push_back(
        {fmt::format("part{}", i), kWeight, original.type, {rows, columns}, [bytes](const Sink& sink) {
           sink(bytes);
         }});
  }
  const fs::path cut = fs::path(folder_.path()) / "iter_0000013";
  write_training_checkpoint(cut, content);
  CheckpointIndex pieces = read_index(cut);
  GlobalTensor tensor = original;
  tensor.pieces.clear();
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    Piece piece = pieces.tensors[i].pieces.front();
    piece.begin = {boxes[i][0], boxes[i][1]};
    tensor.pieces.push_back(piece);
  }
  pieces.tensors = {tensor};
  write_file(cut / kIndexFile, index_text(pieces));
  const CheckpointReader reader(cut);
  EXPECT_EQ(read(reader, reader.index().tensors.front()), expected);
  // A box that is left out, or comes twice, is found when the index is read.
  pieces.tensors.front().pieces.pop_back();
  write_file(cut / kIndexFile, index_text(pieces));
  EXPECT_NE(data::user_error([&] { CheckpointReader{cut}; }).find("do not cover it"), std::string::npos);
}

TEST_F(TrainingCheckpoint, TokenizerFilesGoAlong) {
  CheckpointContent content = example();
  content.tokenizer = folder_ / "own.model";
  write_file(content.tokenizer, "pieces");
  write_training_checkpoint(path_, content);
  EXPECT_EQ(read_file(path_ / "tokenizer/own.model"), "pieces");
  content.tokenizer = folder_ / "hub";
  make_folder(content.tokenizer);
  write_file(content.tokenizer / "tokenizer.json", "{}");
  write_file(content.tokenizer / "model.safetensors", "not this");
  write_training_checkpoint(path_, content);
  EXPECT_TRUE(fs::exists(path_ / "tokenizer/tokenizer.json"));
  EXPECT_FALSE(fs::exists(path_ / "tokenizer/model.safetensors"));
  EXPECT_EQ(damage(), "");
  content.tokenizer = "some/name-of-the-hub";
  write_training_checkpoint(path_, content);
  EXPECT_FALSE(fs::exists(path_ / "tokenizer"));
}

TEST_F(TrainingCheckpoint, AFailedWriteLeavesTheOldOneWhole) {
  CheckpointContent content = example();
  content.iteration = 13;
  content.tensors.back().stream = [](const Sink&) { throw UserError("the device is lost"); };
  EXPECT_EQ(data::user_error([&] { write_training_checkpoint(path_, content); }), "the device is lost");
  EXPECT_EQ(damage(), "");
  EXPECT_EQ(read_index(path_).iteration, 12);
  EXPECT_EQ(folder_.names().size(), 5U);  // nothing half-written stays
}

}  // namespace
}  // namespace primus::checkpoint
