#pragma once
// The weights of a model, wherever they lie: in a checkpoint of ours or in a Hugging Face folder.
#include <memory>
#include <optional>

#include "checkpoint/checkpoint_index.hpp"
#include "checkpoint/hugging_face_config.hpp"
#include "checkpoint/safetensors_folder.hpp"
#include "checkpoint/tensor_stream.hpp"

namespace primus::checkpoint {

/// Elements that are read at a time where a parameter is run through: a few megabytes.
inline constexpr std::int64_t kChunkElements = std::int64_t{1} << 20;

class Weights {
 public:
  explicit Weights(std::vector<model::ParameterDescriptor> parameters) : parameters_(std::move(parameters)) {}
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;
  virtual ~Weights() = default;

  const std::vector<model::ParameterDescriptor>& parameters() const { return parameters_; }

  /// The type in which a parameter is stored; the widest of them where its tensors differ.
  virtual DType dtype(std::size_t parameter) const = 0;
  /// Are the tensors that it is made of of several types?
  virtual bool has_mixed_types(std::size_t /*parameter*/) const { return false; }

  /// The bytes of a parameter in this type, in order and in pieces. Throws UserError if the new type cannot hold a
  /// value or a checksum does not fit. Where nothing better is known, by reading it through.
  virtual void stream(std::size_t parameter, DType dtype, const Sink& sink) const;

  /// Elements of a parameter from `begin` on. Reads that run through a parameter of a checkpoint in order are checked
  /// against its checksum.
  virtual void read(std::size_t parameter, std::int64_t begin, DType dtype, std::span<std::byte> out) const = 0;

  /// Number of the parameter of that name, if there is one.
  std::optional<std::size_t> find(std::string_view name) const;

 private:
  std::vector<model::ParameterDescriptor> parameters_;
};

/// A model that lies in a folder.
struct StoredModel {
  std::filesystem::path folder;
  config::Experiment experiment;
  model::ModelSpec spec;
  std::unique_ptr<Weights> weights;
  std::optional<Json> source_config;  // config.json of the Hugging Face model that it is or comes from
  std::vector<std::string> notes;     // what was left out, by name
};

/// Open a checkpoint of ours, the latest of a folder of them, or a Hugging Face folder: everything is checked but the
/// values. Throws ConfigError that names every tensor which is missing, extra, of another shape or type.
StoredModel open_model(const std::filesystem::path& folder);
StoredModel open_checkpoint(const std::filesystem::path& folder);
StoredModel open_hugging_face(const std::filesystem::path& folder);

/// Weights of an index as parameters, without what only a model spec knows.
std::vector<model::ParameterDescriptor> named_shapes(const CheckpointIndex& index);

/// Do the stored parameters fit the wanted ones? Throws ConfigError that names all that differ. `what`: "the
/// experiment", for messages.
void check_parameters(const std::vector<model::ParameterDescriptor>& stored,
                      const std::vector<model::ParameterDescriptor>& wanted, const std::string& folder,
                      const std::string& what);

/// Read elements of a stored tensor in another type. Throws UserError where a value becomes infinite.
void read_converted(const SafetensorsFile& file, const StoredTensor& tensor, std::int64_t begin, DType dtype,
                    std::span<std::byte> out);

}  // namespace primus::checkpoint
