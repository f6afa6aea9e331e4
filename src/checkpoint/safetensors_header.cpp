#include "checkpoint/safetensors_header.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "checkpoint/refuse.hpp"

namespace primus::checkpoint {
namespace {

using Json = nlohmann::json;  // finds a name among many quickly, which ordered_json does not

constexpr const char* kMetadata = "__metadata__";
constexpr int kDeepest = 3;  // tensors, a tensor's fields, the numbers of a list

/// JSON in which no name comes twice and nothing is nested deeper than a header is; the parser alone lets both pass.
Json parse_strictly(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> names(kDeepest + 1);
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepest) refuse({.file = file, .message = "the header is nested too deeply"});
    if (event == Json::parse_event_t::object_start) names[static_cast<std::size_t>(depth)].clear();
    if (event != Json::parse_event_t::key) return true;
    // A key is reported one level deeper than the object that it belongs to.
    auto& seen = names[static_cast<std::size_t>(depth) - 1];
    const auto& name = parsed.get_ref<const std::string&>();
    if (!seen.insert(name).second) refuse({.file = file, .key = name, .message = "comes twice in the header"});
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    refuse({.file = file, .message = fmt::format("the header is no JSON: {}", error.what())});
  }
}

std::int64_t unsigned_number(const Json& json, const std::string& file, const std::string& tensor, const char* field) {
  const bool fits = json.is_number_unsigned() &&
                    json.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!fits) refuse({file, tensor, fmt::format("{} is no size", field), "integers from 0 on", json.dump()});
  return json.get<std::int64_t>();
}

std::vector<std::int64_t> numbers(const Json& entry, const std::string& file, const std::string& tensor,
                                  const char* field) {
  if (!entry.contains(field) || !entry[field].is_array())
    refuse({file, tensor, fmt::format("{} is no list", field), "a list of integers", ""});
  std::vector<std::int64_t> list;
  for (const Json& item : entry[field]) list.push_back(unsigned_number(item, file, tensor, field));
  return list;
}

StoredTensor read_tensor(const std::string& name, const Json& entry, const std::string& file) {
  if (!entry.is_object()) refuse({file, name, "is no description of a tensor", "dtype, shape and data_offsets", ""});
  for (const auto& [field, value] : entry.items()) {
    if (field != "dtype" && field != "shape" && field != "data_offsets")
      refuse({file, name, "has an unknown field", "dtype, shape and data_offsets", field});
  }
  StoredTensor tensor;
  tensor.name = name;
  const std::string type =
      entry.contains("dtype") && entry["dtype"].is_string() ? entry["dtype"].get<std::string>() : "";
  tensor.type = find_element_type(type);
  if (tensor.type == nullptr) refuse({file, name, "unknown dtype", "one of " + element_type_names(), type});
  tensor.shape = numbers(entry, file, name, "shape");
  const std::vector<std::int64_t> offsets = numbers(entry, file, name, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    refuse({file, name, "data_offsets is no range", "[begin, end]", shape_text(offsets)});
  tensor.begin = offsets[0];
  tensor.num_bytes = offsets[1] - offsets[0];
  const std::int64_t expected = tensor_bytes(*tensor.type, tensor.shape);
  if (expected != tensor.num_bytes) {
    refuse({file, name,
            fmt::format("{} {} and its range of bytes disagree", tensor.type->name, shape_text(tensor.shape)),
            expected < 0 ? "a shape that fits 64 bits and whole bytes" : fmt::format("{} bytes", expected),
            fmt::format("{} bytes", tensor.num_bytes)});
  }
  return tensor;
}

void check_coverage(const std::vector<StoredTensor>& tensors, std::int64_t num_data_bytes, const std::string& file) {
  std::int64_t reached = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin != reached) {
      refuse({file, tensor.name, tensor.begin < reached ? "overlaps the tensor before it" : "leaves a gap before it",
              fmt::format("first byte {}", reached), std::to_string(tensor.begin)});
    }
    reached += tensor.num_bytes;  // within 64 bits: begin + num_bytes was read as one number
  }
  if (reached == num_data_bytes) return;
  refuse({.file = file,
          .message = reached > num_data_bytes ? "is cut short" : "holds bytes that belong to no tensor",
          .expected = fmt::format("{} bytes behind the header", reached),
          .found = std::to_string(num_data_bytes)});
}

}  // namespace

std::int64_t tensor_bytes(const ElementType& type, const std::vector<std::int64_t>& shape) {
  std::int64_t bits = type.num_bits;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bits, size, &bits)) return std::ranges::count(shape, 0) > 0 ? 0 : -1;
  }
  return bits % 8 == 0 ? bits / 8 : -1;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t num_data_bytes,
                                           const std::string& file) {
  if (!json.starts_with('{')) refuse({.file = file, .message = "the header does not begin with '{'"});
  const Json parsed = parse_strictly(json, file);
  SafetensorsHeader header;
  for (const auto& [name, entry] : parsed.items()) {
    if (name != kMetadata) {
      header.tensors.push_back(read_tensor(name, entry, file));
      continue;
    }
    if (!entry.is_object()) refuse({file, name, "is no map", "texts by name", entry.dump()});
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) refuse({file, name, fmt::format("{} is no text", key), "a text", value.dump()});
      header.metadata[key] = value.get<std::string>();
    }
  }
  // Tensors without elements take no bytes and may share a place with the next one.
  std::ranges::stable_sort(header.tensors, {}, [](const StoredTensor& tensor) {
    return std::pair{tensor.begin, tensor.num_bytes};
  });
  check_coverage(header.tensors, num_data_bytes, file);
  return header;
}

std::string safetensors_header_text(const std::vector<StoredTensor>& tensors,
                                    const std::map<std::string, std::string>& metadata) {
  Json json = Json::object();
  if (!metadata.empty()) json[kMetadata] = metadata;
  std::int64_t begin = 0;
  for (const StoredTensor& tensor : tensors) {
    PRIMUS_CHECK(!json.contains(tensor.name), "two tensors are called {}", tensor.name);
    json[tensor.name] = {
        {"dtype", tensor.type->name}, {"shape", tensor.shape}, {"data_offsets", {begin, begin + tensor.num_bytes}}};
    begin += tensor.num_bytes;
  }
  std::string text = json.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // tensors begin aligned
  return text;
}

}  // namespace primus::checkpoint
