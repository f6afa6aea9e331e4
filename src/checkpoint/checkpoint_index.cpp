#include "checkpoint/checkpoint_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "base/files.hpp"
#include "checkpoint/refuse.hpp"
#include "checkpoint/safetensors_header.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "primus-checkpoint";
constexpr int kVersion = 1;

std::vector<std::int64_t> sizes(const Json& json) {
  std::vector<std::int64_t> list;
  for (const Json& item : json) {
    if (!item.is_number_unsigned()) throw Json::other_error::create(501, "a size is no integer from 0 on", &item);
    list.push_back(item.get<std::int64_t>());
  }
  return list;
}

std::uint32_t checksum(const std::string& text, const std::string& file, const std::string& tensor) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 8 || error != std::errc{} || end != text.data() + text.size())
    refuse({file, tensor, "crc32c is no checksum", "8 hexadecimal digits", text});
  return value;
}

Piece read_piece(const Json& json, const std::string& file, const std::string& tensor) {
  Piece piece;
  piece.file = json.at("file").get<std::string>();
  if (fs::path(piece.file).filename() != piece.file || piece.file.empty() || piece.file == "..")
    refuse({file, tensor, "names a file outside the folder", "a file name", piece.file});
  piece.tensor = json.at("tensor").get<std::string>();
  piece.begin = sizes(json.at("begin"));
  piece.shape = sizes(json.at("shape"));
  piece.crc32c = checksum(json.at("crc32c").get<std::string>(), file, tensor);
  return piece;
}

/// Do two boxes have an element in common?
bool overlap(const Piece& a, const Piece& b) {
  for (std::size_t axis = 0; axis < a.begin.size(); ++axis) {
    if (a.begin[axis] >= b.begin[axis] + b.shape[axis] || b.begin[axis] >= a.begin[axis] + a.shape[axis]) return false;
  }
  return true;
}

/// Boxes inside the tensor, none over another, and as many elements in all as the tensor has: each is there once.
void check_coverage(const GlobalTensor& tensor, const std::string& file) {
  std::int64_t covered_bytes = 0;
  for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
    const Piece& piece = tensor.pieces[i];
    bool is_inside = piece.begin.size() == tensor.shape.size() && piece.shape.size() == tensor.shape.size();
    for (std::size_t axis = 0; is_inside && axis < tensor.shape.size(); ++axis)
      is_inside =
          piece.shape[axis] <= tensor.shape[axis] && piece.begin[axis] <= tensor.shape[axis] - piece.shape[axis];
    if (!is_inside) {
      refuse({file, tensor.name, fmt::format("piece {} lies outside the tensor", i), shape_text(tensor.shape),
              fmt::format("{} from {}", shape_text(piece.shape), shape_text(piece.begin))});
    }
    for (std::size_t other = 0; other < i; ++other) {
      if (overlap(piece, tensor.pieces[other]))
        refuse({.file = file, .key = tensor.name, .message = fmt::format("pieces {} and {} overlap", other, i)});
    }
    covered_bytes += tensor_bytes(*tensor.type, piece.shape);
  }
  const std::int64_t bytes = tensor_bytes(*tensor.type, tensor.shape);
  if (covered_bytes == bytes) return;
  refuse(
      {file, tensor.name, "its pieces do not cover it", fmt::format("{} bytes", bytes), std::to_string(covered_bytes)});
}

GlobalTensor read_tensor(const Json& json, const std::string& file) {
  GlobalTensor tensor;
  tensor.name = json.at("name").get<std::string>();
  tensor.kind = json.at("kind").get<std::string>();
  const auto type = json.at("dtype").get<std::string>();
  tensor.type = find_element_type(type);
  if (tensor.type == nullptr) refuse({file, tensor.name, "unknown dtype", "one of " + element_type_names(), type});
  tensor.shape = sizes(json.at("shape"));
  if (tensor_bytes(*tensor.type, tensor.shape) < 0)
    refuse({.file = file, .key = tensor.name, .message = "its size does not fit 64 bits"});
  for (const Json& piece : json.at("pieces")) tensor.pieces.push_back(read_piece(piece, file, tensor.name));
  check_coverage(tensor, file);
  return tensor;
}

CheckpointIndex read(const Json& json, const std::string& file) {
  const std::string format = json.value("format", "");
  if (format != kFormat) refuse({file, "format", "is no checkpoint of ours", std::string(kFormat), format});
  const int version = json.value("version", 0);
  if (version != kVersion) {
    refuse({file, "version", "is of another release", std::to_string(kVersion), std::to_string(version)});
  }
  CheckpointIndex index;
  index.iteration = json.at("iteration").get<std::int64_t>();
  index.consumed_samples = json.at("consumed_samples").get<std::int64_t>();
  index.made_by = json.at("made_by").get<std::string>();
  std::set<std::string> names;
  for (const Json& tensor : json.at("tensors")) {
    index.tensors.push_back(read_tensor(tensor, file));
    if (!names.insert(index.tensors.back().name).second)
      refuse({.file = file, .key = index.tensors.back().name, .message = "comes twice"});
  }
  return index;
}

}  // namespace

const GlobalTensor* CheckpointIndex::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &GlobalTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

bool is_checkpoint(const fs::path& folder) {
  return fs::exists(folder / kIndexFile);
}

std::string index_text(const CheckpointIndex& index) {
  Json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["made_by"] = index.made_by;
  json["iteration"] = index.iteration;
  json["consumed_samples"] = index.consumed_samples;
  json["tensors"] = Json::array();
  for (const GlobalTensor& tensor : index.tensors) {
    Json entry = {{"name", tensor.name}, {"kind", tensor.kind}, {"dtype", tensor.type->name}, {"shape", tensor.shape}};
    entry["pieces"] = Json::array();
    for (const Piece& piece : tensor.pieces) {
      entry["pieces"].push_back({{"file", piece.file},
                                 {"tensor", piece.tensor},
                                 {"begin", piece.begin},
                                 {"shape", piece.shape},
                                 {"crc32c", fmt::format("{:08x}", piece.crc32c)}});
    }
    json["tensors"].push_back(std::move(entry));
  }
  return json.dump(1) + "\n";
}

CheckpointIndex parse_index(const std::string& text, const std::string& file) {
  try {
    return read(Json::parse(text), file);
  } catch (const Json::exception& error) {
    refuse({.file = file, .message = fmt::format("cannot be read: {}", error.what())});
  }
}

CheckpointIndex read_index(const fs::path& folder) {
  return parse_index(read_file(folder / kIndexFile), (folder / kIndexFile).string());
}

}  // namespace primus::checkpoint
