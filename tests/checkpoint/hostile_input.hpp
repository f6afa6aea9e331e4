#pragma once
// What the fuzzer and its tests give to the readers of checkpoints: any bytes as a safetensors file, as its header, as
// an index of ours and as one of Hugging Face.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "checkpoint/checkpoint_index.hpp"
#include "checkpoint/safetensors_folder.hpp"

namespace primus::checkpoint {

enum class HostileKind { kHeader, kFile, kIndex, kShardIndex };
inline constexpr int kNumHostileKinds = 4;

/// Data bytes that a hostile header may speak of.
inline constexpr std::int64_t kDataBytes = 4096;

inline void read_all(const SafetensorsFile& file) {
  std::vector<std::byte> bytes;
  for (const StoredTensor& tensor : file.tensors()) {
    bytes.resize(static_cast<std::size_t>(tensor.num_bytes));
    file.read(tensor, 0, bytes);
  }
}

/// Reads `content`; what is wrong with it must be a UserError, which is swallowed. What was accepted must hold.
inline void read_hostile(HostileKind kind, std::string_view content, const std::string& folder) {
  try {
    switch (kind) {
      case HostileKind::kHeader: {
        std::int64_t reached = 0;
        for (const StoredTensor& tensor : parse_safetensors_header(content, kDataBytes, "x.safetensors").tensors) {
          PRIMUS_CHECK(tensor.begin == reached && tensor.num_bytes == tensor_bytes(*tensor.type, tensor.shape));
          reached += tensor.num_bytes;
        }
        PRIMUS_CHECK(reached == kDataBytes, "{}", reached);
        break;
      }
      case HostileKind::kFile:
        write_file(folder + "/x.safetensors", content);
        read_all(SafetensorsFile(folder + "/x.safetensors"));
        break;
      case HostileKind::kIndex: {
        const std::string text(content);
        const CheckpointIndex index = parse_index(text, "checkpoint.json");
        // What is read is written so that it is read again.
        PRIMUS_CHECK(index_text(parse_index(index_text(index), "again")) == index_text(index));
        check_seal(text, "checkpoint.json");
        break;
      }
      case HostileKind::kShardIndex: {
        write_file(folder + "/shards/model.safetensors.index.json", content);
        const SafetensorsFolder shards(folder + "/shards");
        for (const auto& [name, place] : shards.tensors()) PRIMUS_CHECK(place.tensor->name == name);
        break;
      }
    }
  } catch (const UserError&) {
  }
}

/// A file of two tensors, which the shards of a hostile index are.
inline void write_shard(const std::string& path, const std::string& prefix) {
  std::vector<StoredTensor> tensors(2);
  tensors[0] = {.name = prefix + ".a", .type = find_element_type("F32"), .shape = {2, 3}};
  tensors[1] = {.name = prefix + ".b", .type = find_element_type("BF16"), .shape = {4}};
  SafetensorsWriter writer(path, tensors);
  writer.append(tensors[0].name, std::vector<std::byte>(24));
  writer.append(tensors[1].name, std::vector<std::byte>(8));
  writer.finish();
}

/// What a folder must hold for read_hostile().
inline void prepare_hostile(const std::string& folder) {
  make_folder(folder + "/shards");
  write_shard(folder + "/shards/model-00001-of-00002.safetensors", "one");
  write_shard(folder + "/shards/model-00002-of-00002.safetensors", "two");
}

}  // namespace primus::checkpoint
