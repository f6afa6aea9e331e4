#include "checkpoint/safetensors_folder.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "base/files.hpp"
#include "checkpoint/refuse.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// Files that torch.load or pickle would read, and that can run any code.
bool is_pickled(const fs::path& path) {
  constexpr std::array<std::string_view, 6> kEnds = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".distcp"};
  return std::ranges::find(kEnds, path.extension().string()) != kEnds.end();
}

[[noreturn]] void refuse_folder(const fs::path& folder) {
  std::vector<std::string> pickled;
  std::vector<std::string> loose;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_pickled(entry.path())) pickled.push_back(entry.path().filename().string());
    if (entry.path().extension() == ".safetensors") loose.push_back(entry.path().filename().string());
  }
  std::ranges::sort(pickled);
  std::ranges::sort(loose);
  const std::string expected = fmt::format("{} or {}", kWhole, kIndex);
  if (error) refuse({.file = folder.string(), .message = "cannot be read: " + error.message()});
  if (!pickled.empty()) {
    refuse({.file = folder.string(),
            .message = "has only pickled weights, which are never read: a pickle runs any code that its writer put in",
            .expected = expected,
            .found = pickled.front() + (pickled.size() > 1 ? fmt::format(" and {} more", pickled.size() - 1) : ""),
            .nearest = "save the model again where it is trusted: model.save_pretrained(FOLDER)"});
  }
  if (!loose.empty()) {
    refuse({.file = folder.string(),
            .message = "has safetensors files but no index that says which belong together",
            .expected = expected,
            .found = loose.front()});
  }
  refuse({.file = folder.string(), .message = "has no weights", .expected = expected});
}

/// File name by tensor. A name that leads out of the folder is refused.
std::map<std::string, std::string> read_weight_map(const fs::path& index) {
  std::map<std::string, std::string> files;
  try {
    const Json json = Json::parse(read_file(index));
    for (const auto& [tensor, file] : json.at("weight_map").items()) files[tensor] = file.get<std::string>();
  } catch (const Json::exception& error) {
    refuse({.file = index.string(), .message = fmt::format("is no index of shards: {}", error.what())});
  }
  for (const auto& [tensor, file] : files) {
    if (fs::path(file).filename() != file || file.empty() || file == "..") {
      refuse({index.string(), tensor, "names a file outside the folder", "a file name", file});
    }
    if (is_pickled(file)) {
      refuse({index.string(), tensor, "lies in a pickled file, which is never read", "a .safetensors file", file});
    }
  }
  return files;
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const fs::path& folder) : folder_(folder) {
  const fs::path index = folder / kIndex;
  std::map<std::string, std::string> weight_map;
  std::set<std::string> names;
  const bool has_whole = fs::exists(folder / kWhole);
  if (fs::exists(index)) {
    if (has_whole) {
      refuse({.file = folder.string(),
              .message = fmt::format("has both {} and {}: which of them holds is not clear", kWhole, kIndex),
              .expected = "one of them"});
    }
    weight_map = read_weight_map(index);
    for (const auto& [tensor, file] : weight_map) names.insert(file);
  } else if (has_whole) {
    names.insert(kWhole);
  } else {
    refuse_folder(folder);
  }
  std::vector<Problem> problems;
  for (const std::string& name : names) {
    files_.push_back(std::make_unique<SafetensorsFile>((folder / name).string()));
    const SafetensorsFile* file = files_.back().get();
    for (const StoredTensor& tensor : file->tensors()) {
      const auto [place, is_new] = tensors_.emplace(tensor.name, Place{file, &tensor});
      if (is_new) continue;
      problems.push_back(
          problem_of({file->path(), tensor.name, "is in two files", "one of them", place->second.file->path()}));
    }
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  if (!weight_map.empty()) check_index(index, weight_map);
}

void SafetensorsFolder::check_index(const fs::path& index, const std::map<std::string, std::string>& weight_map) const {
  std::vector<Problem> problems;
  for (const auto& [tensor, file] : weight_map) {
    const Place* place = find(tensor);
    if (place != nullptr && fs::path(place->file->path()).filename() == file) continue;
    problems.push_back(
        problem_of({index.string(), tensor, "is not in the file that the index names", file,
                    place == nullptr ? "no file with it" : fs::path(place->file->path()).filename().string()}));
  }
  for (const auto& [tensor, place] : tensors_) {
    if (!weight_map.contains(tensor))
      problems.push_back(problem_of({place.file->path(), tensor, "is not in the index", index.filename().string()}));
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

const SafetensorsFolder::Place* SafetensorsFolder::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

ShardPlan plan_shards(const std::vector<StoredTensor>& tensors, std::int64_t most_bytes, const std::string& stem) {
  ShardPlan plan;
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t bytes = tensor_bytes(*tensors[i].type, tensors[i].shape);
    if (plan.tensors.empty() || (filled > 0 && filled + bytes > most_bytes)) {
      plan.tensors.emplace_back();
      filled = 0;
    }
    filled += bytes;
    plan.tensors.back().push_back(i);
    plan.shard_of.push_back(plan.tensors.size() - 1);
  }
  const std::size_t count = plan.tensors.size();
  for (std::size_t shard = 1; shard <= count; ++shard) {
    plan.files.push_back(count == 1 ? stem + ".safetensors"
                                    : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, shard, count));
  }
  return plan;
}

std::string shard_index_text(const std::vector<StoredTensor>& tensors, const ShardPlan& plan) {
  Json json;
  std::int64_t total = 0;
  json["weight_map"] = Json::object();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    total += tensor_bytes(*tensors[i].type, tensors[i].shape);
    json["weight_map"][tensors[i].name] = plan.files[plan.shard_of[i]];
  }
  json["metadata"] = {{"total_size", total}};
  return json.dump(2) + "\n";
}

SafetensorsFolderWriter::SafetensorsFolderWriter(fs::path folder, std::vector<StoredTensor> tensors,
                                                 const ShardPlan& plan)
    : folder_(std::move(folder)), tensors_(std::move(tensors)), plan_(plan) {
  open(0);
}

void SafetensorsFolderWriter::open(std::size_t shard) {
  std::vector<StoredTensor> part;
  for (const std::size_t i : plan_.tensors.at(shard)) part.push_back(tensors_[i]);
  writer_ = std::make_unique<SafetensorsWriter>((folder_ / plan_.files[shard]).string(), std::move(part));
  shard_ = shard;
}

void SafetensorsFolderWriter::append(std::size_t tensor, std::span<const std::byte> bytes) {
  if (plan_.shard_of.at(tensor) != shard_) {
    writer_->finish();
    open(shard_ + 1);
  }
  writer_->append(tensors_[tensor].name, bytes);
}

void SafetensorsFolderWriter::finish() {
  writer_->finish();
  PRIMUS_CHECK(shard_ + 1 == plan_.files.size(), "shard {} of {}", shard_ + 1, plan_.files.size());
}

}  // namespace primus::checkpoint
