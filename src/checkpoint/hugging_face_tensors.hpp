#pragma once
// Which part of which parameter each Hugging Face tensor is.
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/architectures.hpp"
#include "model/parameters.hpp"

namespace primus::checkpoint {

struct HuggingFaceTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  model::Trained trained = model::Trained::kYes;
};

/// Elements that follow each other in a tensor and in a parameter alike. `rows` 0: in the same order. Else the
/// parameter's [rows, columns] lies transposed, as [columns, rows], with the rows of `groups` equal parts dealt out in
/// turn: gate, up, gate, up.
struct Block {
  std::size_t tensor = 0;
  std::size_t parameter = 0;
  std::int64_t tensor_begin = 0;
  std::int64_t parameter_begin = 0;
  std::int64_t count = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t groups = 1;
};

/// The whole mapping of a model. Blocks of a parameter follow each other in its own order, without gaps; what they do
/// not reach are rows of a padded vocabulary.
struct TensorMapping {
  std::vector<HuggingFaceTensor> tensors;
  std::vector<Block> blocks;
  std::vector<std::string> unnamed;  // parameters without a Hugging Face name
};

TensorMapping map_tensors(const std::vector<model::ParameterDescriptor>& parameters, Architecture architecture);

/// Every parameter that a checkpoint of this model holds.
std::vector<model::ParameterDescriptor> parameters_of(const model::ModelSpec& spec);

/// Are parameters of multi-token prediction among them, so that they can be imported?
bool describes_mtp(const model::ModelSpec& spec);

}  // namespace primus::checkpoint
