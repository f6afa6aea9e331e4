#include "checkpoint/safetensors.hpp"

#include <cstring>

#include "checkpoint/safetensors_folder.hpp"
#include "config/test_folder.hpp"
#include "data/temporary_folder.hpp"

namespace primus::checkpoint {
namespace {

using data::user_error;
using test::TestFolder;

std::string file_text(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  return text + header + data;
}

std::string refusal(const std::string& content) {
  const TestFolder folder;
  const std::string path = folder.write("x.safetensors", content);
  std::string message = user_error([&] { SafetensorsFile{path}; });
  EXPECT_TRUE(message.starts_with(path + ": ")) << message;
  return message.substr(std::min(message.size(), path.size() + 2));
}

TEST(Safetensors, HeadersThatAreRefused) {
  struct Case {
    const char* header;
    std::size_t num_data_bytes;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {R"([])", 0, "the header does not begin with '{'"},
      {R"( {})", 0, "the header does not begin with '{'"},
      {R"({"a":)", 0, "the header is no JSON"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} x)", 4, "the header is no JSON"},
      {R"({"a":3})", 0, "a: is no description of a tensor"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "a: unknown dtype"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "a: unknown dtype (expected one of F64, F32"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "a: shape is no list"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "a: shape is no size"},
      {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "a: shape is no size"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4, "a: shape is no size"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "a: data_offsets is no range"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "a: data_offsets is no range"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "(expected 8 bytes, found 4 bytes)"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "fits 64 bits"},
      {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, "whole bytes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", 4, "a: has an unknown field"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "a: comes twice in the header"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "dtype: comes twice"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       6, "b: overlaps the tensor before it"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
       12, "b: leaves a gap before it"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "a: leaves a gap before it"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, "is cut short"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "bytes that belong to no tensor"},
      {R"({"__metadata__":[]})", 0, "__metadata__: is no map"},
      {R"({"__metadata__":{"a":1}})", 0, "a is no text"},
      {R"({"a":{"dtype":"F32","shape":[[[[1]]]],"data_offsets":[0,4]}})", 4, "nested too deeply"},
  };
  for (const Case& one : cases) {
    const std::string message = refusal(file_text(one.header, std::string(one.num_data_bytes, 'x')));
    EXPECT_NE(message.find(one.expected), std::string::npos) << one.header << "\n" << message;
  }
}

TEST(Safetensors, LengthsThatAreRefused) {
  EXPECT_NE(refusal("").find("at least 8 bytes"), std::string::npos);
  EXPECT_NE(refusal("1234567").find("at least 8 bytes"), std::string::npos);
  EXPECT_NE(refusal(std::string(8, '\xff')).find("the header's length cannot be right"), std::string::npos);
  const std::string whole = file_text(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234");
  for (std::size_t length = 0; length < whole.size(); ++length) EXPECT_FALSE(refusal(whole.substr(0, length)).empty());
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TestFolder folder;
  const std::string path = (folder.path() / "x.safetensors").string();
  const std::vector<float> values = {1.0F, -2.0F, 3.5F, 0.0F, 7.0F, 8.0F};
  const std::int64_t number = 42;
  {
    SafetensorsWriter writer(path, {{.name = "empty", .type = &element_type(DType::kFloat32), .shape = {0, 5}},
                                    {.name = "scalar", .type = &element_type(DType::kInt64), .shape = {}},
                                    {.name = "matrix", .type = &element_type(DType::kFloat32), .shape = {2, 3}},
                                    {.name = "last", .type = &element_type(DType::kBFloat16), .shape = {0}}});
    EXPECT_FALSE(std::filesystem::exists(path));
    writer.append("scalar", std::as_bytes(std::span(&number, 1)));
    const auto bytes = std::as_bytes(std::span(values));
    writer.append("matrix", bytes.first(5));
    writer.append("matrix", bytes.subspan(5));
    writer.finish();
  }
  const SafetensorsFile file(path);
  EXPECT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_NE(file.find("matrix"), nullptr);
  EXPECT_EQ(file.find("matrix")->shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.find("nothing"), nullptr);
  std::vector<float> back(4);
  file.read(*file.find("matrix"), 8, std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, std::vector<float>(values.begin() + 2, values.end()));
  EXPECT_EQ(file.find("empty")->num_bytes, 0);
}

TEST(Safetensors, AnUnfinishedFileLeavesNothing) {
  const TestFolder folder;
  {
    SafetensorsWriter writer((folder.path() / "x.safetensors").string(),
                             {{.name = "a", .type = &element_type(DType::kUInt8), .shape = {2}}});
    writer.append("a", std::vector<std::byte>(1));
    EXPECT_THROW(writer.finish(), InternalError);
    EXPECT_THROW(writer.append("b", std::vector<std::byte>(1)), InternalError);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

/// A safetensors file of one-element tensors.
void write_small(const std::filesystem::path& path, const std::vector<std::string>& names) {
  std::vector<StoredTensor> tensors;
  for (const std::string& name : names)
    tensors.push_back({.name = name, .type = &element_type(DType::kUInt8), .shape = {1}});
  SafetensorsWriter writer(path.string(), tensors);
  for (const std::string& name : names) writer.append(name, std::vector<std::byte>(1));
  writer.finish();
}

TEST(SafetensorsFolder, FoldersThatAreRefused) {
  const auto refused = [](const TestFolder& folder) { return user_error([&] { SafetensorsFolder{folder.path()}; }); };
  const auto expect = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const TestFolder empty;
  expect(refused(empty), "has no weights (expected model.safetensors or model.safetensors.index.json)");
  empty.write("pytorch_model-00001-of-00002.bin", "PK");
  empty.write("pytorch_model-00002-of-00002.bin", "PK");
  expect(refused(empty), "only pickled weights, which are never read");
  expect(refused(empty), "found pytorch_model-00001-of-00002.bin and 1 more");
  expect(refused(empty), "save_pretrained");
  const TestFolder loose;
  write_small(loose.path() / "other.safetensors", {"a"});
  expect(refused(loose), "no index that says which belong together");
  const TestFolder both;
  write_small(both.path() / "model.safetensors", {"a"});
  both.write("model.safetensors.index.json", R"({"weight_map":{"a":"model.safetensors"}})");
  expect(refused(both), "has both");
  const TestFolder shards;
  write_small(shards.path() / "one.safetensors", {"a", "b"});
  write_small(shards.path() / "two.safetensors", {"c"});
  const auto with_index = [&](const std::string& text) {
    shards.write("model.safetensors.index.json", text);
    return refused(shards);
  };
  expect(with_index("{"), "is no index of shards");
  expect(with_index(R"({"weight_map":{"a":"../one.safetensors"}})"), "names a file outside the folder");
  expect(with_index(R"({"weight_map":{"a":"one.bin"}})"), "lies in a pickled file, which is never read");
  expect(with_index(R"({"weight_map":{"a":"one.safetensors","c":"one.safetensors"}})"), "c: is not in the file");
  expect(with_index(R"({"weight_map":{"a":"one.safetensors"}})"), "b: is not in the index");
  expect(with_index(R"({"weight_map":{"a":"gone.safetensors"}})"), "cannot be opened");
  write_small(shards.path() / "two.safetensors", {"b", "c"});
  expect(with_index(R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"}})"),
         "b: is in two files");
}

TEST(SafetensorsFolder, ShardsAreFilledInOrder) {
  std::vector<StoredTensor> tensors;
  for (const std::int64_t size : {3, 3, 3, 20, 1, 1})
    tensors.push_back({.name = std::to_string(tensors.size()), .type = &element_type(DType::kUInt8), .shape = {size}});
  const ShardPlan plan = plan_shards(tensors, 7, "model");
  EXPECT_EQ(plan.shard_of, (std::vector<std::size_t>{0, 0, 1, 2, 3, 3}));
  EXPECT_EQ(plan.files.at(1), "model-00002-of-00004.safetensors");
  EXPECT_EQ(plan_shards(tensors, 1000, "model").files, std::vector<std::string>{"model.safetensors"});
  const TestFolder folder;
  SafetensorsFolderWriter writer(folder.path(), tensors, plan);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    writer.append(i, std::vector<std::byte>(static_cast<std::size_t>(tensors[i].shape[0])));
  writer.finish();
  folder.write("model.safetensors.index.json", shard_index_text(tensors, plan));
  EXPECT_EQ(SafetensorsFolder(folder.path()).tensors().size(), tensors.size());
}

}  // namespace
}  // namespace primus::checkpoint
