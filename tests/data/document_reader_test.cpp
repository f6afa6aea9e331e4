#include "data/document_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "data/temporary_folder.hpp"

namespace primus::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string gzipped(const std::string& text) {
  std::string result(compressBound(text.size()) + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  return result;
}

std::string zstd_compressed(const std::string& text) {
  std::string result(ZSTD_compressBound(text.size()), '\0');
  result.resize(ZSTD_compress(result.data(), result.size(), text.data(), text.size(), 3));
  return result;
}

struct Read {
  std::vector<std::string> items;
  std::vector<std::int64_t> lines;
  std::vector<ReadPosition> positions;  // behind each batch
};

Read read_from(const std::vector<std::string>& inputs, DocumentKind kind, ReadPosition from = {}) {
  const InputList list = list_inputs(inputs, kind);
  DocumentReader reader(list.files, from);
  Read result;
  while (const auto batch = reader.next()) {
    for (std::size_t i = 0; i < batch->items.size(); ++i) {
      result.items.emplace_back(batch->item(i));
      result.lines.push_back(batch->items[i].line);
    }
    result.positions.push_back(batch->next);
  }
  return result;
}

std::string many_lines(int num_lines) {
  std::string text;
  for (int i = 0; i < num_lines; ++i)
    text += fmt::format("line {} {}\n", i, std::string(static_cast<std::size_t>(i % 97), 'x'));
  return text;
}

TEST(DocumentReader, FilesAndLines) {
  TemporaryFolder folder;
  write_file(folder / "a.txt", "one\n\n two \r\nthree");
  EXPECT_THAT(read_from({folder / "a.txt"}, DocumentKind::kByEnding).items, ElementsAre("one\n\n two \r\nthree"));
  const Read lines = read_from({folder / "a.txt"}, DocumentKind::kLines);
  EXPECT_THAT(lines.items, ElementsAre("one", " two ", "three"));
  EXPECT_THAT(lines.lines, ElementsAre(1, 3, 4));
  write_file(folder / "b.jsonl", "{}\n");
  EXPECT_EQ(list_inputs({folder.path()}, DocumentKind::kByEnding).files[1].kind, DocumentKind::kJsonLines);
  write_file(folder / "empty.txt", "");
  EXPECT_THAT(read_from({folder / "empty.txt"}, DocumentKind::kWholeFile).items, ElementsAre(""));
  EXPECT_THAT(read_from({folder / "empty.txt"}, DocumentKind::kLines).items, ElementsAre());
}

TEST(DocumentReader, CompressedFilesGiveTheSame) {
  TemporaryFolder folder;
  const std::string text = many_lines(60'000);
  write_file(folder / "a.txt", text);
  write_file(folder / "a.txt.gz", gzipped(text.substr(0, 1'000'000)) + gzipped(text.substr(1'000'000)));
  write_file(folder / "a.txt.zst", zstd_compressed(text.substr(0, 777)) + zstd_compressed(text.substr(777)));
  const Read plain = read_from({folder / "a.txt"}, DocumentKind::kLines);
  EXPECT_EQ(plain.items.size(), 60'000U);
  EXPECT_GT(plain.positions.size(), 2U);
  for (const char* name : {"a.txt.gz", "a.txt.zst"}) {
    EXPECT_EQ(read_from({folder / name}, DocumentKind::kLines).items, plain.items) << name;
    EXPECT_THAT(read_from({folder / name}, DocumentKind::kWholeFile).items, ElementsAre(text)) << name;
  }
}

TEST(DocumentReader, GoesOnFromAnyBatch) {
  TemporaryFolder folder;
  write_file(folder / "1.txt", many_lines(50'000));
  write_file(folder / "2.txt.gz", gzipped(many_lines(40'000)));
  write_file(folder / "3.txt", "last\n");
  const std::vector<std::string> inputs = {folder.path()};
  const Read whole = read_from(inputs, DocumentKind::kLines);
  for (const ReadPosition& position : whole.positions) {
    const Read rest = read_from(inputs, DocumentKind::kLines, position);
    ASSERT_LE(rest.items.size(), whole.items.size());
    EXPECT_TRUE(std::equal(rest.items.rbegin(), rest.items.rend(), whole.items.rbegin()));
    EXPECT_TRUE(std::equal(rest.lines.rbegin(), rest.lines.rend(), whole.lines.rbegin()));
  }
}

TEST(DocumentReader, DamagedFilesAreNamed) {
  TemporaryFolder folder;
  const std::string text = many_lines(20'000);
  const auto fault = [&](const std::string& name, const std::string& content) {
    write_file(folder / name, content);
    return user_error([&] { read_from({folder / name}, DocumentKind::kLines); });
  };
  const std::string gz = gzipped(text);
  const std::string zst = zstd_compressed(text);
  EXPECT_THAT(fault("cut.gz", gz.substr(0, gz.size() / 2)), HasSubstr("cut off"));
  EXPECT_THAT(fault("cut.zst", zst.substr(0, zst.size() / 2)), HasSubstr("cut off"));
  EXPECT_THAT(fault("no.gz", "plain text"), HasSubstr("no.gz"));
  EXPECT_THAT(fault("no.zst", "plain text"), HasSubstr("no.zst"));
  EXPECT_THAT(user_error([&] { list_inputs({folder / "absent"}, DocumentKind::kLines); }), HasSubstr("does not exist"));
}

TEST(JsonMember, TakesTheOutermostTextOfThatName) {
  EXPECT_EQ(json_member(R"({"a": {"text": "no"}, "b": [{"text": "no"}], "text": "y\u00e9s\n\u0000\ud83d\udc4d"})",
                        "text", "f", 1),
            std::string("yés\n\0👍", 10));
  const auto fault = [](std::string_view json) { return user_error([&] { json_member(json, "text", "f.jsonl", 7); }); };
  for (const char* json :
       {"{\"text\": 3}", "{\"text\": {\"text\": \"x\"}}", "{\"text\": null}", "{\"other\": \"x\"}", "[\"text\"]",
        "\"text\"", "12", "{\"text\": \"a\"", "{\"text\": \"\\ud800\"}", "{\"text\": \"a\"} x"}) {
    EXPECT_THAT(fault(json), HasSubstr("f.jsonl:7")) << json;
  }
}

}  // namespace
}  // namespace primus::data
