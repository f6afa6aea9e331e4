#include "checkpoint/hugging_face_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.hpp"

namespace primus::checkpoint {
namespace {

using model::HuggingFaceSlice;
using model::ParameterDescriptor;

constexpr std::string_view kExpert = "{e}";
constexpr std::size_t kTensorsOfAParameter = 8;  // that a shared tensor is looked for among

/// Parts of names in which an architecture differs from what the descriptors say (DeepSeek's and Qwen's names).
struct Renaming {
  std::string_view ours;
  std::string_view theirs;
};

// Mixtral and Kimi Linear: blocks with experts, and the experts' matrices.
constexpr std::array<Renaming, 3> kSparseBlock = {{{".mlp.gate.", ".block_sparse_moe.gate."},
                                                   {".mlp.shared_experts.", ".block_sparse_moe.shared_experts."},
                                                   {".mlp.experts.", ".block_sparse_moe.experts."}}};
constexpr std::array<Renaming, 3> kNumbered = {
    {{".gate_proj.", ".w1."}, {".up_proj.", ".w3."}, {".down_proj.", ".w2."}}};
constexpr std::array<Renaming, 11> kLfm2 = {{{".mlp.gate.e_score_correction_bias", ".mlp.expert_bias"},
                                             {".mlp.", ".feed_forward."},
                                             {".gate_proj.", ".w1."},
                                             {".up_proj.", ".w3."},
                                             {".down_proj.", ".w2."},
                                             {".input_layernorm.", ".operator_norm."},
                                             {".post_attention_layernorm.", ".ffn_norm."},
                                             {".self_attn.q_norm.", ".self_attn.q_layernorm."},
                                             {".self_attn.k_norm.", ".self_attn.k_layernorm."},
                                             {".self_attn.o_proj.", ".self_attn.out_proj."},
                                             {"model.norm.", "model.embedding_norm."}}};
constexpr std::array<Renaming, 1> kQwen3Next = {{{".mlp.shared_experts.", ".mlp.shared_expert."}}};
constexpr std::array<Renaming, 1> kGptOss = {{{".mlp.gate.", ".mlp.router."}}};

std::string renamed(std::string name, std::span<const Renaming> table) {
  for (const Renaming& row : table) {
    if (const std::size_t at = name.find(row.ours); at != std::string::npos)
      name.replace(at, row.ours.size(), row.theirs);
  }
  return name;
}

std::string tensor_name(const std::string& name, Architecture architecture) {
  switch (architecture) {
    case Architecture::kMixtral:
    case Architecture::kKimiLinear: {
      const bool is_expert = name.find(".mlp.experts.") != std::string::npos;
      return renamed(is_expert ? renamed(name, kNumbered) : name, kSparseBlock);
    }
    case Architecture::kGptOss:
      return renamed(name, kGptOss);
    case Architecture::kQwen3Next:
      return renamed(name, kQwen3Next);
    case Architecture::kLfm2:
    case Architecture::kLfm2Moe:
      return renamed(name, kLfm2);
    default:
      return name;
  }
}

/// The shape that a tensor of our shape has there: Kimi Linear's rates have axes of batch, tokens and rows of a state.
std::vector<std::int64_t> their_shape(const std::string& name, std::vector<std::int64_t> shape,
                                      Architecture architecture) {
  if (architecture != Architecture::kKimiLinear || !name.ends_with(".A_log")) return shape;
  return {1, 1, shape.front(), 1};
}

class Mapper {
 public:
  Mapper(const std::vector<ParameterDescriptor>& parameters, Architecture architecture)
      : parameters_(parameters), architecture_(architecture) {}

  TensorMapping run() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].hugging_face.empty()) {
        mapping_.unnamed.push_back(parameters_[i].name);
      } else if (architecture_ == Architecture::kGptOss && parameters_[i].component == model::Component::kExperts) {
        fused_experts(i);
      } else if (parameters_[i].hugging_face.front().name.find(kExpert) != std::string::npos) {
        for (std::int64_t expert = 0; expert < parameters_[i].shape.front(); ++expert) rows(i, expert);
      } else {
        rows(i, 0);
      }
    }
    return std::move(mapping_);
  }

 private:
  std::size_t add_tensor(std::string name, std::vector<std::int64_t> shape, const ParameterDescriptor& parameter) {
    mapping_.tensors.push_back({std::move(name), std::move(shape), parameter.trained});
    return mapping_.tensors.size() - 1;
  }

  /// The tensor of this name, which several slices of one parameter make up.
  std::size_t shared_tensor(std::string name, std::vector<std::int64_t> shape, const ParameterDescriptor& parameter) {
    for (std::size_t i = mapping_.tensors.size(); i-- > 0;) {
      if (mapping_.tensors[i].name == name) return i;
      if (mapping_.tensors.size() - i >= kTensorsOfAParameter) break;
    }
    return add_tensor(std::move(name), std::move(shape), parameter);
  }

  /// The slices of a parameter, or of one expert's part of it: whole rows each, in the parameter's order.
  void rows(std::size_t index, std::int64_t expert) {
    const ParameterDescriptor& parameter = parameters_[index];
    const bool has_experts = parameter.hugging_face.front().name.find(kExpert) != std::string::npos;
    const std::vector<std::int64_t> shape(parameter.shape.begin() + (has_experts ? 1 : 0), parameter.shape.end());
    std::int64_t row_elements = 1;
    for (std::size_t axis = 1; axis < shape.size(); ++axis) row_elements *= shape[axis];
    const std::int64_t base = expert * shape.front() * row_elements;
    std::int64_t reached = 0;
    for (const HuggingFaceSlice& slice : parameter.hugging_face) {
      PRIMUS_CHECK(slice.begin == reached && slice.end <= shape.front(), "{}: {} is rows {} to {}", parameter.name,
                   slice.name, slice.begin, slice.end);
      reached = slice.end;
      std::string name = tensor_name(slice.name, architecture_);
      if (has_experts) name.replace(name.find(kExpert), kExpert.size(), std::to_string(expert));
      std::vector<std::int64_t> tensor_shape = shape;
      tensor_shape.front() = slice.tensor_rows > 0 ? slice.tensor_rows : slice.end - slice.begin;
      tensor_shape = their_shape(name, std::move(tensor_shape), architecture_);
      const std::size_t tensor = slice.tensor_rows > 0
                                     ? shared_tensor(std::move(name), std::move(tensor_shape), parameter)
                                     : add_tensor(std::move(name), std::move(tensor_shape), parameter);
      mapping_.blocks.push_back({.tensor = tensor,
                                 .parameter = index,
                                 .tensor_begin = slice.tensor_begin * row_elements,
                                 .parameter_begin = base + slice.begin * row_elements,
                                 .count = (slice.end - slice.begin) * row_elements});
    }
  }

  /// gpt-oss: one tensor for all experts, inputs before outputs, gate and up taking turns.
  void fused_experts(std::size_t index) {
    const ParameterDescriptor& parameter = parameters_[index];
    const bool is_input = parameter.name.find("linear_fc1") != std::string::npos;
    const bool is_bias = parameter.name.ends_with(".bias");
    const std::string& slice = parameter.hugging_face.front().name;
    const std::string prefix = slice.substr(0, slice.find(kExpert));
    const std::int64_t experts = parameter.shape[0];
    const std::int64_t rows = parameter.shape[1];
    const std::int64_t columns = is_bias ? 1 : parameter.shape[2];
    std::vector<std::int64_t> shape = {experts};
    if (!is_bias) shape.push_back(columns);
    shape.push_back(rows);
    const std::size_t tensor = add_tensor(prefix + (is_input ? "gate_up_proj" : "down_proj") + (is_bias ? "_bias" : ""),
                                          std::move(shape), parameter);
    const std::int64_t count = rows * columns;
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      mapping_.blocks.push_back({.tensor = tensor,
                                 .parameter = index,
                                 .tensor_begin = expert * count,
                                 .parameter_begin = expert * count,
                                 .count = count,
                                 .rows = rows,
                                 .columns = columns,
                                 .groups = is_input ? 2 : 1});
    }
  }

  const std::vector<ParameterDescriptor>& parameters_;
  Architecture architecture_;
  TensorMapping mapping_;
};

}  // namespace

TensorMapping map_tensors(const std::vector<ParameterDescriptor>& parameters, Architecture architecture) {
  return Mapper(parameters, architecture).run();
}

std::vector<ParameterDescriptor> parameters_of(const model::ModelSpec& spec) {
  return model::training_parameters(spec);
}

bool describes_mtp(const model::ModelSpec& spec) {
  model::ModelSpec with = spec;
  model::ModelSpec without = spec;
  with.num_mtp_layers = 1;
  without.num_mtp_layers = 0;
  return parameters_of(with).size() > parameters_of(without).size();
}

}  // namespace primus::checkpoint
