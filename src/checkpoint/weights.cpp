#include "checkpoint/weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/files.hpp"
#include "base/text.hpp"
#include "checkpoint/checkpoint_root.hpp"
#include "checkpoint/convert.hpp"
#include "checkpoint/crc32c.hpp"
#include "checkpoint/damage.hpp"
#include "checkpoint/refuse.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;
using model::ParameterDescriptor;

void refuse_overflow(const Converted& converted, const std::string& file, const std::string& tensor, DType dtype) {
  if (converted.num_overflowed == 0) return;
  throw UserError(fmt::format("{}: {}: {} values are too large for {}", file, tensor,
                              format_count(converted.num_overflowed), primus::name(dtype)));
}

/// A message a tensor, but not thousands: the first ones, and how many more.
class Problems {
 public:
  explicit Problems(std::string what) : what_(std::move(what)) {}

  void add(Fault fault) {
    if (++count_ <= kMostShown) problems_.push_back(problem_of(std::move(fault)));
  }
  void finish(const std::string& file) {
    if (count_ == 0) return;
    if (count_ > kMostShown) {
      problems_.push_back(problem_of({.file = file, .message = fmt::format("{} more {}", count_ - kMostShown, what_)}));
    }
    throw ConfigError(std::move(problems_));
  }

 private:
  static constexpr std::size_t kMostShown = 1000;
  std::string what_;
  std::size_t count_ = 0;
  std::vector<Problem> problems_;
};

// ---- Hugging Face ----

class HuggingFaceWeights final : public Weights {
 public:
  HuggingFaceWeights(std::vector<ParameterDescriptor> parameters, TensorMapping mapping, SafetensorsFolder folder)
      : Weights(std::move(parameters)), mapping_(std::move(mapping)), folder_(std::move(folder)) {
    blocks_ = blocks_by_parameter(mapping_, Weights::parameters().size());
    for (const HuggingFaceTensor& tensor : mapping_.tensors) places_.push_back(*folder_.find(tensor.name));
  }

  DType dtype(std::size_t parameter) const override {
    DType widest = *places_[blocks_[parameter].front().tensor].tensor->type->dtype;
    for (const Block& block : blocks_[parameter]) {
      const DType found = *places_[block.tensor].tensor->type->dtype;
      if (found == widest) continue;
      // Neither 16-bit type holds the other's values.
      widest = size_bytes(found) == size_bytes(widest)  ? DType::kFloat32
               : size_bytes(found) > size_bytes(widest) ? found
                                                        : widest;
    }
    return widest;
  }

  bool has_mixed_types(std::size_t parameter) const override {
    const auto type = [this](const Block& block) { return places_[block.tensor].tensor->type; };
    return std::ranges::any_of(blocks_[parameter],
                               [&](const Block& block) { return type(block) != type(blocks_[parameter].front()); });
  }

  void stream(std::size_t parameter, DType dtype, const Sink& sink) const override {
    const auto read = [&](std::size_t tensor, std::int64_t begin, std::span<std::byte> out) {
      read_converted(*places_[tensor].file, *places_[tensor].tensor, begin, dtype, out);
    };
    stream_parameter(blocks_[parameter], parameters()[parameter].num_elements(), size_bytes(dtype), read, sink);
  }

  void read(std::size_t parameter, std::int64_t begin, DType dtype, std::span<std::byte> out) const override {
    const std::int64_t bytes = size_bytes(dtype);
    const std::int64_t end = begin + std::ssize(out) / bytes;
    for (const Block& block : blocks_[parameter]) {
      const std::int64_t first = std::max(begin, block.parameter_begin);
      const std::int64_t last = std::min(end, block.parameter_begin + block.count);
      if (first >= last) continue;
      const auto part = out.subspan(static_cast<std::size_t>((first - begin) * bytes),
                                    static_cast<std::size_t>((last - first) * bytes));
      const std::int64_t within = first - block.parameter_begin;
      if (block.rows == 0) {
        read_converted(*places_[block.tensor].file, *places_[block.tensor].tensor, block.tensor_begin + within, dtype,
                       part);
      } else {
        read_transposed(block, within, dtype, part);
      }
    }
  }

 private:
  /// A part of a block that has to be turned as a whole.
  void read_transposed(const Block& block, std::int64_t within, DType dtype, std::span<std::byte> out) const {
    Block alone = block;
    alone.parameter_begin = 0;
    const auto read = [&](std::size_t tensor, std::int64_t at, std::span<std::byte> to) {
      read_converted(*places_[tensor].file, *places_[tensor].tensor, at, dtype, to);
    };
    stream_parameter({&alone, 1}, block.count, size_bytes(dtype), read, [&](std::span<const std::byte> bytes) {
      std::ranges::copy(bytes.subspan(static_cast<std::size_t>(within * size_bytes(dtype)), out.size()), out.begin());
    });
  }

  TensorMapping mapping_;
  SafetensorsFolder folder_;
  std::vector<SafetensorsFolder::Place> places_;  // of the mapping's tensors
  std::vector<std::vector<Block>> blocks_;
};

/// The number of the layer that a tensor belongs to; -1: none.
std::int64_t layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return -1;
  std::int64_t layer = -1;
  const std::string_view rest = name.substr(kLayers.size());
  std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  return layer;
}

bool holds_mtp(const SafetensorsFolder& folder, std::int64_t num_layers) {
  return std::ranges::any_of(folder.tensors(), [&](const auto& entry) { return layer_of(entry.first) >= num_layers; });
}

/// Bytes of two stored tensors are the same.
bool same_bytes(const SafetensorsFolder::Place& a, const SafetensorsFolder::Place& b) {
  if (a.tensor->type != b.tensor->type || a.tensor->shape != b.tensor->shape) return false;
  std::vector<std::byte> left;
  std::vector<std::byte> right;
  constexpr std::int64_t kChunk = std::int64_t{1} << 22;
  for (std::int64_t at = 0; at < a.tensor->num_bytes; at += kChunk) {
    left.resize(static_cast<std::size_t>(std::min(kChunk, a.tensor->num_bytes - at)));
    right.resize(left.size());
    a.file->read(*a.tensor, at, left);
    b.file->read(*b.tensor, at, right);
    if (left != right) return false;
  }
  return true;
}

/// Tensors of the folder that the model does without, and why that is right.
class Leftovers {
 public:
  Leftovers(const SafetensorsFolder& folder, const model::ModelSpec& spec) : folder_(folder), spec_(spec) {}

  /// False: the tensor has no place in this model.
  bool accept(const std::string& name) {
    if (name.ends_with(".rotary_emb.inv_freq")) {
      ++num_tables_;
      return true;
    }
    const bool is_tied = spec_.output_weight == model::OutputWeight::kTiedToEmbedding;
    if (is_tied && name == "lm_head.weight") return is_copy(name, "model.embed_tokens.weight");
    if (layer_of(name) < spec_.num_layers()) return false;
    if (spec_.num_mtp_layers > 0) {
      // A depth shares embedding and output with the model; files hold them once more.
      return (name.ends_with(".embed_tokens.weight") && is_copy(name, "model.embed_tokens.weight")) ||
             (name.ends_with(".shared_head.head.weight") && is_copy(name, "lm_head.weight"));
    }
    mtp_.push_back(name);
    return true;
  }

  void tell(std::vector<std::string>& notes) const {
    if (num_tables_ > 0)
      notes.push_back(fmt::format("left out: {} tables of rotary frequencies, made anew", num_tables_));
    if (mtp_.empty()) return;
    std::string names;
    for (const std::string& name : mtp_) names += (names.empty() ? "" : ", ") + name;
    notes.push_back(fmt::format("left out: {} tensors of multi-token prediction, which this release does not build: {}",
                                mtp_.size(), names));
  }

 private:
  bool is_copy(const std::string& name, std::string_view original) const {
    const auto* place = folder_.find(original);
    return place != nullptr && same_bytes(*place, *folder_.find(name));
  }

  const SafetensorsFolder& folder_;
  const model::ModelSpec& spec_;
  std::int64_t num_tables_ = 0;
  std::vector<std::string> mtp_;
};

void check_tensors(const SafetensorsFolder& folder, const TensorMapping& mapping, const model::ModelSpec& spec,
                   std::vector<std::string>& notes) {
  Problems problems("tensors");
  const std::string where = folder.path().string();
  std::set<std::string_view> mapped;
  for (const HuggingFaceTensor& tensor : mapping.tensors) {
    if (!mapped.insert(tensor.name).second)
      problems.add({.file = where, .key = tensor.name, .message = "is mapped twice"});
    const auto* place = folder.find(tensor.name);
    if (place == nullptr) {
      problems.add({.file = where, .key = tensor.name, .message = "is missing", .expected = shape_text(tensor.shape)});
      continue;
    }
    if (place->tensor->shape != tensor.shape) {
      problems.add({place->file->path(), tensor.name, "has another shape", shape_text(tensor.shape),
                    shape_text(place->tensor->shape)});
    }
    if (!place->tensor->type->dtype || !is_floating(*place->tensor->type->dtype)) {
      problems.add({place->file->path(), tensor.name, "cannot be converted", "F64, F32, F16 or BF16",
                    std::string(place->tensor->type->name)});
    }
  }
  Leftovers leftovers(folder, spec);
  for (const auto& [name, place] : folder.tensors()) {
    if (mapped.contains(name) || leftovers.accept(name)) continue;
    problems.add({place.file->path(), name, "belongs to no parameter of this model", "",
                  fmt::format("{} {}", place.tensor->type->name, shape_text(place.tensor->shape))});
  }
  problems.finish(where);
  leftovers.tell(notes);
}

// ---- ours ----

class CheckpointWeights final : public Weights {
 public:
  CheckpointWeights(std::vector<ParameterDescriptor> parameters, const CheckpointIndex& index, const fs::path& folder)
      : Weights(std::move(parameters)) {
    for (const ParameterDescriptor& parameter : Weights::parameters()) {
      const GlobalTensor& tensor = *index.find(parameter.name);
      const Piece& piece = tensor.pieces.front();
      auto& file = files_[piece.file];
      if (!file) file = std::make_unique<SafetensorsFile>((folder / piece.file).string());
      const StoredTensor* stored = file->find(piece.tensor);
      if (stored == nullptr) refuse({.file = file->path(), .key = piece.tensor, .message = "is missing"});
      if (stored->shape != tensor.shape || stored->type != tensor.type) {
        refuse({file->path(), piece.tensor, "is not what the index says",
                fmt::format("{} {}", tensor.type->name, shape_text(tensor.shape)),
                fmt::format("{} {}", stored->type->name, shape_text(stored->shape))});
      }
      places_.push_back({file.get(), stored, piece.crc32c});
    }
  }

  DType dtype(std::size_t parameter) const override { return *places_[parameter].tensor->type->dtype; }

  void read(std::size_t parameter, std::int64_t begin, DType dtype, std::span<std::byte> out) const override {
    const Place& place = places_[parameter];
    const DType stored = *place.tensor->type->dtype;
    const std::int64_t count = std::ssize(out) / size_bytes(dtype);
    std::vector<std::byte> bytes;
    for (std::int64_t done = 0; done < count; done += kChunkElements) {
      const std::int64_t part = std::min(kChunkElements, count - done);
      bytes.resize(static_cast<std::size_t>(part * size_bytes(stored)));
      place.file->read(*place.tensor, (begin + done) * size_bytes(stored), bytes);
      add_to_checksum(place, begin + done, bytes, part);
      const auto piece = out.subspan(static_cast<std::size_t>(done * size_bytes(dtype)),
                                     static_cast<std::size_t>(part * size_bytes(dtype)));
      refuse_overflow(convert(stored, bytes, dtype, piece), place.file->path(), place.tensor->name, dtype);
    }
  }

 private:
  struct Place {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
    std::uint32_t crc32c = 0;
    // How far a run through the tensor has come, and its checksum so far.
    mutable std::int64_t reached = 0;
    mutable std::uint32_t sum = 0;
  };

  static void add_to_checksum(const Place& place, std::int64_t begin, std::span<const std::byte> bytes,
                              std::int64_t count) {
    if (begin == 0) place.reached = place.sum = 0;
    if (begin != place.reached) return;
    place.sum = crc32c(bytes, place.sum);
    place.reached += count;
    const bool is_whole = place.reached * size_bytes(*place.tensor->type->dtype) == place.tensor->num_bytes;
    if (!is_whole || place.sum == place.crc32c) return;
    throw DamagedError(
        fmt::format("{}: {}: the checksum does not fit: the file is damaged (expected {:08x}, found {:08x})",
                    place.file->path(), place.tensor->name, place.crc32c, place.sum));
  }

  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Place> places_;
};

}  // namespace

std::vector<ParameterDescriptor> named_shapes(const CheckpointIndex& index) {
  std::vector<ParameterDescriptor> parameters;
  for (const GlobalTensor& tensor : index.tensors) {
    if (tensor.kind != kWeight) continue;
    ParameterDescriptor parameter;
    parameter.name = tensor.name;
    parameter.shape = tensor.shape;
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

void check_parameters(const std::vector<ParameterDescriptor>& stored, const std::vector<ParameterDescriptor>& wanted,
                      const std::string& folder, const std::string& what) {
  Problems problems("parameters");
  std::map<std::string_view, const ParameterDescriptor*> by_name;
  for (const ParameterDescriptor& parameter : stored) by_name[parameter.name] = &parameter;
  for (const ParameterDescriptor& parameter : wanted) {
    const auto found = by_name.find(parameter.name);
    if (found == by_name.end()) {
      problems.add({.file = folder,
                    .key = parameter.name,
                    .message = fmt::format("is missing: {} has this parameter", what),
                    .expected = shape_text(parameter.shape)});
      continue;
    }
    if (found->second->shape != parameter.shape) {
      problems.add({folder, parameter.name, fmt::format("has another shape than in {}", what),
                    shape_text(parameter.shape), shape_text(found->second->shape)});
    }
    by_name.erase(found);
  }
  for (const ParameterDescriptor& parameter : stored) {
    if (by_name.contains(parameter.name))
      problems.add({folder, parameter.name, fmt::format("is a parameter that {} does not have", what), "",
                    shape_text(parameter.shape)});
  }
  problems.finish(folder);
}

void Weights::stream(std::size_t parameter, DType dtype, const Sink& sink) const {
  const std::int64_t count = parameters_[parameter].num_elements();
  std::vector<std::byte> bytes;
  for (std::int64_t begin = 0; begin < count; begin += kChunkElements) {
    bytes.resize(static_cast<std::size_t>(std::min(kChunkElements, count - begin) * size_bytes(dtype)));
    read(parameter, begin, dtype, bytes);
    sink(bytes);
  }
}

std::optional<std::size_t> Weights::find(std::string_view name) const {
  const auto found = std::ranges::find(parameters_, name, &ParameterDescriptor::name);
  if (found == parameters_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - parameters_.begin());
}

void read_converted(const SafetensorsFile& file, const StoredTensor& tensor, std::int64_t begin, DType dtype,
                    std::span<std::byte> out) {
  const DType stored = *tensor.type->dtype;
  if (stored == dtype) {
    file.read(tensor, begin * size_bytes(stored), out);
    return;
  }
  std::vector<std::byte> bytes;
  const std::int64_t count = std::ssize(out) / size_bytes(dtype);
  for (std::int64_t done = 0; done < count; done += kChunkElements) {
    const std::int64_t part = std::min(kChunkElements, count - done);
    bytes.resize(static_cast<std::size_t>(part * size_bytes(stored)));
    file.read(tensor, (begin + done) * size_bytes(stored), bytes);
    const auto place = out.subspan(static_cast<std::size_t>(done * size_bytes(dtype)),
                                   static_cast<std::size_t>(part * size_bytes(dtype)));
    refuse_overflow(convert(stored, bytes, dtype, place), file.path(), tensor.name, dtype);
  }
}

StoredModel open_hugging_face(const fs::path& folder) {
  HuggingFaceConfig config = read_hugging_face_config(folder);
  StoredModel stored;
  stored.folder = folder;
  SafetensorsFolder files(folder);
  stored.experiment = std::move(config.experiment);
  stored.notes = config.facts.notes;
  stored.spec = model::build_model_spec(stored.experiment);
  const bool has_mtp = holds_mtp(files, stored.spec.num_layers());
  if (has_mtp && describes_mtp(stored.spec)) {
    stored.experiment.set("mtp_num_layers", {config.facts.num_mtp_layers},
                          {config::Layer::kExperiment, (folder / "config.json").string(), 0});
    stored.spec = model::build_model_spec(stored.experiment);
  } else if (!has_mtp && config.facts.num_mtp_layers > 0) {
    stored.notes.push_back(fmt::format("config.json declares {} layers of multi-token prediction, the files hold none",
                                       config.facts.num_mtp_layers));
  }
  std::vector<ParameterDescriptor> parameters = parameters_of(stored.spec);
  TensorMapping mapping = map_tensors(parameters, config.architecture);
  PRIMUS_CHECK(mapping.unnamed.empty(), "{} has no Hugging Face name", mapping.unnamed.front());
  check_tensors(files, mapping, stored.spec, stored.notes);
  stored.source_config = std::move(config.json);
  stored.weights = std::make_unique<HuggingFaceWeights>(std::move(parameters), std::move(mapping), std::move(files));
  return stored;
}

StoredModel open_checkpoint(const fs::path& folder) {
  StoredModel stored;
  stored.folder = folder;
  const CheckpointIndex index = read_index(folder);
  for (const StoredFile& file : index.files) check_file(folder, file);
  stored.experiment = config::Experiment::from_json(read_file(folder / kExperimentFile));
  stored.spec = model::build_model_spec(stored.experiment);
  std::vector<ParameterDescriptor> parameters = parameters_of(stored.spec);
  check_parameters(named_shapes(index), parameters, (folder / kIndexFile).string(),
                   "its " + std::string(kExperimentFile));
  Problems problems("tensors");
  for (const GlobalTensor& tensor : index.tensors) {
    if (tensor.kind != kWeight) continue;
    if (tensor.pieces.size() != 1)
      problems.add({(folder / kIndexFile).string(), tensor.name, "is split, which this release does not read",
                    "1 piece", std::to_string(tensor.pieces.size())});
    if (!tensor.type->dtype || !is_floating(*tensor.type->dtype))
      problems.add({(folder / kIndexFile).string(), tensor.name, "is no weight", "F64, F32, F16 or BF16",
                    std::string(tensor.type->name)});
  }
  problems.finish(folder.string());
  stored.weights = std::make_unique<CheckpointWeights>(std::move(parameters), index, folder);
  const fs::path source = folder / kSourceFolder / "config.json";
  if (fs::exists(source)) stored.source_config = read_hugging_face_config(folder / kSourceFolder).json;
  return stored;
}

StoredModel open_model(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    refuse({.file = folder.string(),
            .message = "is no folder",
            .expected = "a Hugging Face model or a checkpoint",
            .found = fs::exists(folder, error) ? "a file" : "nothing"});
  }
  if (is_checkpoint(folder)) return open_checkpoint(folder);
  // Of a run's checkpoints, the latest.
  const fs::path within = checkpoint_within(folder);
  return within == folder ? open_hugging_face(folder) : open_checkpoint(within);
}

}  // namespace primus::checkpoint
