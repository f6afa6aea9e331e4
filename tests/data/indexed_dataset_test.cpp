#include "data/indexed_dataset.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include <cstring>
#include <random>

#include "data/golden_file.hpp"
#include "data/indexed_writer.hpp"
#include "data/temporary_folder.hpp"

namespace primus::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::vector<std::int64_t> sequence_of(const IndexedDataset& dataset, std::int64_t sequence) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(dataset.length(sequence)));
  dataset.read(sequence, 0, tokens);
  return tokens;
}

TEST(IndexedDataset, IsByteEqualToTheIndependentVersion) {
  for (const GoldenCase& golden : golden_cases("indexed_dataset.txt", "type")) {
    SCOPED_TRACE(golden.name);
    const TemporaryFolder folder;
    const auto type = TokenType{static_cast<std::uint8_t>(golden.integer("code"))};
    EXPECT_EQ("type " + std::string(to_text(type)), golden.name);
    IndexedWriter writer(folder / "x", type);
    std::vector<std::vector<std::int64_t>> sequences;
    for (const std::string& key : golden.order()) {
      if (key == "sequence") {
        sequences.emplace_back();
        for (const std::string& word : golden.lines(key)[sequences.size() - 1])
          sequences.back().push_back(std::stoll(word));
        writer.add_sequence(sequences.back());
      }
      if (key == "end_document") writer.end_document();
    }
    writer.finish();
    EXPECT_EQ(hex(read_file(folder / "x.idx")), golden.words("idx").front());
    EXPECT_EQ(hex(read_file(folder / "x.bin")), golden.words("bin").front());
    EXPECT_THAT(folder.names(), ElementsAre("x.bin", "x.idx"));

    const IndexedDataset dataset(folder / "x");
    EXPECT_EQ(dataset.token_type(), type);
    EXPECT_EQ(dataset.num_documents(), 4);
    ASSERT_EQ(dataset.num_sequences(), static_cast<std::int64_t>(sequences.size()));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      EXPECT_EQ(sequence_of(dataset, static_cast<std::int64_t>(i)), sequences[i]);
    }
  }
}

TEST(IndexedDataset, ReadsPartsAndNegativeIds) {
  const TemporaryFolder folder;
  IndexedWriter writer(folder / "x", TokenType::kInt8);
  const std::vector<std::int64_t> tokens = {-128, -1, 0, 127};
  writer.add_sequence(tokens);
  writer.end_document();
  writer.finish();
  const IndexedDataset dataset(folder / "x");
  std::vector<std::int64_t> part(2);
  dataset.read(0, 1, part);
  EXPECT_THAT(part, ElementsAre(-1, 0));
  dataset.read(0, 4, {});
  EXPECT_THROW(dataset.read(0, 3, part), InternalError);
  EXPECT_THROW(dataset.read(1, 0, part), InternalError);
}

TEST(IndexedDataset, MayBeEmpty) {
  const TemporaryFolder folder;
  IndexedWriter(folder / "x", TokenType::kInt32).finish();
  const IndexedDataset dataset(folder / "x");
  EXPECT_EQ(dataset.num_sequences(), 0);
  EXPECT_EQ(dataset.num_documents(), 0);
  EXPECT_EQ(dataset.num_tokens(), 0);
}

TEST(IndexedDataset, ReadsModes) {
  const TemporaryFolder folder;
  write_counting(folder / "x", {1, 2, 3});
  write_file(folder / "x.idx", read_file(folder / "x.idx") + std::string("\0\1\2", 3));
  const IndexedDataset dataset(folder / "x");
  EXPECT_EQ(dataset.modes(), IndexedDataset::Modes::kPresent);
  EXPECT_EQ(dataset.mode(2), 2);
}

TEST(IndexedDataset, TakesTwoBytesWhereTheyHoldTheVocabulary) {
  EXPECT_EQ(token_type_for(257), TokenType::kUint16);
  EXPECT_EQ(token_type_for(65499), TokenType::kUint16);
  EXPECT_EQ(token_type_for(65500), TokenType::kInt32);
}

TEST(IndexedDataset, ManySequencesCrossTheWritersBlocks) {
  const TemporaryFolder folder;
  IndexedWriter writer(folder / "x", TokenType::kUint16);
  std::mt19937 random(1);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 30000; ++i) {
    std::vector<std::int64_t> tokens(random() % 40, i % 1000);
    lengths.push_back(static_cast<std::int64_t>(tokens.size()));
    writer.add_sequence(tokens);
    if (i % 3 == 2) writer.end_document();
  }
  const std::vector<std::int64_t> long_one(300000, 7);
  writer.add_sequence(long_one);
  writer.end_document();
  writer.finish();
  const IndexedDataset dataset(folder / "x");
  ASSERT_EQ(dataset.num_sequences(), 30001);
  EXPECT_EQ(dataset.num_documents(), 10001);
  for (std::int64_t i = 0; i < 30000; ++i) {
    ASSERT_EQ(sequence_of(dataset, i),
              std::vector<std::int64_t>(static_cast<std::size_t>(lengths[static_cast<std::size_t>(i)]), i % 1000));
  }
  EXPECT_EQ(sequence_of(dataset, 30000), long_one);
}

/// Processor time of this thread, which others on the machine do not lengthen.
double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// 10^9 tokens in 10^6 documents: the .bin is a hole in the disk and is not read, the .idx (20 MB) is checked in full.
TEST(IndexedDataset, OpensAThousandMillionTokensInMilliseconds) {
  constexpr std::int64_t kDocuments = 1'000'000;
  constexpr std::int64_t kLength = 1000;
  const TemporaryFolder folder;
  {
    std::string index("MMIDIDX\0\0", 9);
    const auto put = [&index](auto value) { index.append(reinterpret_cast<const char*>(&value), sizeof value); };
    put(std::uint64_t{1});
    put(std::uint8_t{8});
    put(static_cast<std::uint64_t>(kDocuments));
    put(static_cast<std::uint64_t>(kDocuments + 1));
    for (std::int64_t i = 0; i < kDocuments; ++i) put(static_cast<std::int32_t>(kLength));
    for (std::int64_t i = 0; i < kDocuments; ++i) put(i * kLength * 2);
    for (std::int64_t i = 0; i <= kDocuments; ++i) put(i);
    std::ofstream(folder / "x.idx", std::ios::binary) << index;
    std::ofstream(folder / "x.bin", std::ios::binary).put(0);
    std::filesystem::resize_file(folder / "x.bin", static_cast<std::uintmax_t>(kDocuments * kLength * 2));
  }
  const double start = thread_seconds();
  const IndexedDataset dataset(folder / "x");
  const double seconds = thread_seconds() - start;
  RecordProperty("milliseconds", std::to_string(seconds * 1e3));
  std::printf("opened in %.2f ms\n", seconds * 1e3);
  EXPECT_EQ(dataset.num_tokens(), kDocuments * kLength);
  constexpr double kMost = 0.1;  // optimised: about 2 ms; sanitizers take longer
  EXPECT_LT(seconds, kMost);
  std::vector<std::int64_t> tokens(3, 7);
  dataset.read(kDocuments - 1, kLength - 3, tokens);
  EXPECT_THAT(tokens, ElementsAre(0, 0, 0));
}

// ---- damage ------------------------------------------------------------------------------------------------------

class Damaged : public testing::Test {
 protected:
  Damaged() { write_counting(folder_ / "x", {3, 5, 2}); }

  template <typename T>
  void overwrite(std::size_t offset, T value) {
    std::string bytes = read_file(folder_ / "x.idx");
    std::memcpy(bytes.data() + offset, &value, sizeof(T));
    write_file(folder_ / "x.idx", bytes);
  }
  void expect(const std::string& fault, const char* file = "x.idx") {
    const std::string message = user_error([this] { IndexedDataset dataset(folder_ / "x"); });
    EXPECT_THAT(message, HasSubstr((folder_ / file) + ": "));
    EXPECT_THAT(message, HasSubstr(fault));
  }

  static constexpr std::size_t kLengths = 34;
  static constexpr std::size_t kPointers = kLengths + 3 * 4;
  static constexpr std::size_t kDocuments = kPointers + 3 * 8;
  static constexpr std::size_t kEnd = kDocuments + 4 * 8;
  TemporaryFolder folder_;
};

TEST_F(Damaged, Magic) {
  overwrite(0, 'X');
  expect("does not begin with MMIDIDX");
}

TEST_F(Damaged, Version) {
  overwrite(9, std::uint64_t{2});
  expect("has version 2 (expected 1)");
}

TEST_F(Damaged, TypeCode) {
  overwrite(17, std::uint8_t{9});
  expect("has type code 9");
  overwrite(17, std::uint8_t{0});
  expect("has type code 0");
}

TEST_F(Damaged, Counts) {
  overwrite(18, std::uint64_t{4});
  expect("has 102 bytes");
  overwrite(18, ~std::uint64_t{0});
  expect("too few for 18446744073709551615 sequences");
  overwrite(18, std::uint64_t{3});
  overwrite(26, std::uint64_t{1} << 61);
  expect("too few for 3 sequences");
  overwrite(26, std::uint64_t{0});
  expect("no document boundaries");
}

TEST_F(Damaged, Lengths) {
  overwrite(kLengths + 4, std::int32_t{-5});
  expect("length of sequence 1 is -5");
  overwrite(kLengths + 4, std::int32_t{6});
  expect("sequence 2 begins at byte 32 (expected 36)");
}

TEST_F(Damaged, Pointers) {
  overwrite(kPointers, std::int64_t{4});
  expect("sequence 0 begins at byte 4 (expected 0)");
  overwrite(kPointers, std::int64_t{0});
  overwrite(kPointers + 16, std::int64_t{1} << 60);
  expect("sequence 2 begins at byte");
}

TEST_F(Damaged, Documents) {
  overwrite(kDocuments, std::int64_t{1});
  expect("the first document begins at sequence 1");
  overwrite(kDocuments, std::int64_t{0});
  overwrite(kDocuments + 8, std::int64_t{3});
  expect("document boundary 2 is sequence 2 (expected 3 to 3)");
  overwrite(kDocuments + 8, std::int64_t{-1});
  expect("document boundary 1 is sequence -1");
  overwrite(kDocuments + 8, std::int64_t{1});
  overwrite(kDocuments + 24, std::int64_t{2});
  expect("the last document ends at sequence 2 (expected 3)");
}

TEST_F(Damaged, EveryTruncationOfTheIndex) {
  const std::string whole = read_file(folder_ / "x.idx");
  ASSERT_EQ(whole.size(), kEnd);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_file(folder_ / "x.idx", whole.substr(0, size));
    expect("bytes");
  }
  write_file(folder_ / "x.idx", whole + "ab");
  expect("has 104 bytes (expected 102");
}

TEST_F(Damaged, TokensOfTheWrongSize) {
  const std::string whole = read_file(folder_ / "x.bin");
  for (const std::string& bytes : {whole.substr(0, 39), whole + "x", std::string()}) {
    write_file(folder_ / "x.bin", bytes);
    expect(fmt::format("has {} bytes, but its index tells of 40 (10 tokens of int32)", bytes.size()), "x.bin");
  }
}

TEST_F(Damaged, RandomBytesNeverCrash) {
  const std::string whole = read_file(folder_ / "x.idx");
  std::mt19937 random(1);
  for (int i = 0; i < 1500; ++i) {
    std::string bytes = whole;
    for (unsigned change = 0; change <= random() % 3; ++change)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    {
      // Straight into the file: a rename for each of the changes would take most of the time.
      std::ofstream(folder_ / "x.idx", std::ios::binary | std::ios::trunc) << bytes;
    }
    try {
      const IndexedDataset dataset(folder_ / "x");
      for (std::int64_t s = 0; s < dataset.num_sequences(); ++s) sequence_of(dataset, s);
    } catch (const UserError&) {
    }
  }
}

TEST(MissingDataset, SuggestsThePrefix) {
  const TemporaryFolder folder;
  write_counting(folder / "x_text_document", {3});
  const auto message = [&](const std::string& prefix) { return user_error([&] { IndexedDataset dataset(prefix); }); };
  EXPECT_THAT(message(folder / "x"), HasSubstr("did you mean '" + (folder / "x_text_document") + "'"));
  EXPECT_THAT(message(folder / "x_text_document.bin"),
              HasSubstr("without its extension: '" + (folder / "x_text_document")));
  EXPECT_THAT(message(folder / "y"), HasSubstr((folder / "y.idx") + ": does not exist"));
  std::filesystem::remove(folder / "x_text_document.bin");
  EXPECT_THAT(message(folder / "x_text_document"), HasSubstr("x_text_document.bin: does not exist"));
  std::filesystem::create_directory(folder / "x_text_document.bin");
  EXPECT_THAT(message(folder / "x_text_document"), HasSubstr("x_text_document.bin: is not a file"));
}

// ---- a writer that fails -----------------------------------------------------------------------------------------

/// Lets no file grow beyond a size, as a full disk would.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t num_bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{num_bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  sighandler_t handler_ = nullptr;
};

void write_much(const std::string& prefix, int num_sequences) {
  IndexedWriter writer(prefix, TokenType::kInt32);
  const std::vector<std::int64_t> tokens(1000, 1);
  for (int i = 0; i < num_sequences; ++i) {
    writer.add_sequence(tokens);
    writer.end_document();
  }
  writer.finish();
}

TEST(FailingWriter, LeavesNothingWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  for (const rlim_t limit : {100, 4096, 100000, 1000000}) {
    std::string message;
    {
      const FileSizeLimit full(limit);
      message = user_error([&] { write_much(folder / "x", 300); });
    }
    EXPECT_THAT(message, HasSubstr(folder / "x."));
    EXPECT_THAT(message, HasSubstr("failed: "));
    EXPECT_TRUE(folder.names().empty());
  }
}

TEST(FailingWriter, LeavesTheOldFilesWhenTheNewCannotBeCompleted) {
  const TemporaryFolder folder;
  write_counting(folder / "x", {3, 5});
  {
    const FileSizeLimit full(100000);
    user_error([&] { write_much(folder / "x", 300); });
  }
  EXPECT_THAT(folder.names(), ElementsAre("x.bin", "x.idx"));
  EXPECT_EQ(IndexedDataset(folder / "x").num_tokens(), 8);
}

TEST(FailingWriter, LeavesNothingWhenAbandonedOrGivenABadId) {
  const TemporaryFolder folder;
  {
    IndexedWriter writer(folder / "x", TokenType::kUint16);
    const std::vector<std::int64_t> good = {65535}, high = {65536}, low = {-1};
    writer.add_sequence(good);
    EXPECT_THAT(user_error([&] { writer.add_sequence(high); }), HasSubstr("token 65536 does not fit into uint16"));
    EXPECT_THAT(user_error([&] { writer.add_sequence(low); }), HasSubstr("token -1"));
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(FailingWriter, NamesAFolderThatIsNotThere) {
  const TemporaryFolder folder;
  EXPECT_THAT(user_error([&] { IndexedWriter(folder / "no/x", TokenType::kInt32); }),
              HasSubstr((folder / "no/x.bin") + ": cannot be written: No such file"));
}

TEST(FailingWriter, LeavesNoTokensWithoutTheirIndex) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "x.idx/occupied");
  EXPECT_THAT(user_error([&] { write_counting(folder / "x", {3}); }), HasSubstr("x.idx: cannot be put in place"));
  EXPECT_THAT(folder.names(), ElementsAre("x.idx", "x.idx/occupied"));
}

}  // namespace
}  // namespace primus::data
