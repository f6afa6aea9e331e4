#include "checkpoint/checkpoint_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/files.hpp"
#include "checkpoint/crc32c.hpp"
#include "checkpoint/damage.hpp"
#include "checkpoint/refuse.hpp"
#include "checkpoint/safetensors_header.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "primus-checkpoint";
constexpr int kVersion = 2;
// The first field. The checksum is that of the text with zeros in its place.
constexpr std::string_view kSeal = "{\n \"crc32c\": \"";
constexpr std::string_view kNoSum = "00000000";

std::vector<std::int64_t> sizes(const Json& json) {
  std::vector<std::int64_t> list;
  for (const Json& item : json) {
    const bool fits = item.is_number_unsigned() && std::in_range<std::int64_t>(item.get<std::uint64_t>());
    if (!fits) throw Json::other_error::create(501, "a size is no integer from 0 on", &item);
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

StoredFile read_file_entry(const Json& json, const std::string& index) {
  StoredFile file;
  file.name = json.at("name").get<std::string>();
  const fs::path path(file.name);
  const bool leads_out = std::ranges::any_of(path, [](const fs::path& part) { return part == ".."; });
  if (path.empty() || path.is_absolute() || leads_out)
    refuse({index, "files", "names a file outside the folder", "a file name", file.name});
  file.num_bytes = json.at("bytes").get<std::int64_t>();
  file.head_bytes = json.at("head_bytes").get<std::int64_t>();
  file.crc32c = checksum(json.at("crc32c").get<std::string>(), index, file.name);
  return file;
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
  if (json.contains("training")) index.training = training_state_from_json(json.at("training"));
  for (const Json& entry : json.at("files")) index.files.push_back(read_file_entry(entry, file));
  std::set<std::pair<std::string, std::string>> names;
  for (const Json& tensor : json.at("tensors")) {
    index.tensors.push_back(read_tensor(tensor, file));
    const GlobalTensor& last = index.tensors.back();
    if (!names.insert({last.kind, last.name}).second)
      refuse({.file = file, .key = last.name, .message = "comes twice"});
  }
  return index;
}

}  // namespace

const GlobalTensor* CheckpointIndex::find(std::string_view name, std::string_view kind) const {
  const auto found = std::ranges::find_if(
      tensors, [&](const GlobalTensor& tensor) { return tensor.name == name && tensor.kind == kind; });
  return found == tensors.end() ? nullptr : &*found;
}

bool is_checkpoint(const fs::path& folder) {
  return fs::exists(folder / kIndexFile);
}

std::string index_text(const CheckpointIndex& index) {
  Json json;
  json["crc32c"] = kNoSum;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["made_by"] = index.made_by;
  json["iteration"] = index.iteration;
  json["consumed_samples"] = index.consumed_samples;
  if (index.training) json["training"] = to_json(*index.training);
  json["files"] = Json::array();
  for (const StoredFile& file : index.files) {
    json["files"].push_back({{"name", file.name},
                             {"bytes", file.num_bytes},
                             {"head_bytes", file.head_bytes},
                             {"crc32c", fmt::format("{:08x}", file.crc32c)}});
  }
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
  std::string text = json.dump(1) + "\n";
  PRIMUS_CHECK(text.starts_with(kSeal), "{}", text.substr(0, kSeal.size()));
  text.replace(kSeal.size(), kNoSum.size(), fmt::format("{:08x}", crc32c(std::as_bytes(std::span(text)))));
  return text;
}

namespace {

/// An index of another release need not have a checksum in our place: it is not damaged.
void refuse_other_release(const std::string& text, const std::string& file) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("version") || !json["version"].is_number_integer()) return;
  const int version = json["version"].get<int>();
  if (version == kVersion) return;
  refuse({file, "version", "is of another release", std::to_string(kVersion), std::to_string(version)});
}

}  // namespace

void check_seal(const std::string& text, const std::string& file) {
  const auto damaged = [&](const std::string& why) { throw DamagedError(fmt::format("{}: {}", file, why)); };
  if (!text.starts_with(kSeal) || text.size() < kSeal.size() + kNoSum.size()) {
    refuse_other_release(text, file);
    damaged("does not begin with its checksum: the file is damaged");
  }
  std::string blank = text;
  blank.replace(kSeal.size(), kNoSum.size(), kNoSum);
  const std::string sum = fmt::format("{:08x}", crc32c(std::as_bytes(std::span(blank))));
  const std::string stored = text.substr(kSeal.size(), kNoSum.size());
  if (sum != stored)
    damaged(fmt::format("the checksum does not fit: the file is damaged (expected {}, found {})", stored, sum));
}

CheckpointIndex parse_index(const std::string& text, const std::string& file) {
  try {
    return read(Json::parse(text), file);
  } catch (const Json::exception& error) {
    refuse({.file = file, .message = fmt::format("cannot be read: {}", error.what())});
  }
}

CheckpointIndex read_index(const fs::path& folder) {
  const fs::path path = folder / kIndexFile;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) throw DamagedError(fmt::format("{}: is missing", path.string()));
  const std::string text = read_file(path);
  check_seal(text, path.string());
  return parse_index(text, path.string());
}

}  // namespace primus::checkpoint
