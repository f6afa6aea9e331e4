#include "checkpoint/hugging_face_tensors.hpp"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "checkpoint/tensor_stream.hpp"

namespace primus::checkpoint {
namespace {

/// A small model with every kind of parameter that these architectures have.
model::ModelSpec small_spec(Architecture architecture) {
  model::ModelSpec spec;
  spec.hidden_size = 6;
  spec.seq_length = 8;
  spec.vocab_size = 11;
  spec.padded_vocab_size = 13;  // no other size is 13
  spec.layers = {model::LayerKind::kDense, model::LayerKind::kMoe};
  spec.dense_ffn_hidden_size = 5;
  if (architecture == Architecture::kDeepseekV3) {
    spec.attention = model::MlaSpec{.num_heads = 2,
                                    .q_lora_rank = 4,
                                    .kv_lora_rank = 3,
                                    .qk_head_dim = 4,
                                    .qk_pos_emb_head_dim = 2,
                                    .v_head_dim = 3,
                                    .latent_norms = model::Part::kPresent};
  } else {
    spec.attention = model::GqaSpec{.num_heads = 2, .num_query_groups = 1, .head_dim = 4};
  }
  model::MoeSpec moe;
  moe.router.num_experts = 3;
  moe.router.top_k = 2;
  moe.ffn_hidden_size = 4;
  if (architecture == Architecture::kDeepseekV3) {
    moe.router.expert_bias = model::RouterSpec::ExpertBias::kOn;
    moe.shared_ffn_hidden_size = 7;
  }
  spec.moe = moe;
  if (architecture == Architecture::kGptOss) {
    spec.layers = {model::LayerKind::kMoe, model::LayerKind::kMoe};
    spec.linear_bias = spec.sinks = model::Part::kPresent;
    std::get<model::GqaSpec>(spec.attention).qkv_bias = model::Part::kPresent;
  }
  return spec;
}

constexpr std::array<Architecture, 3> kAll = {Architecture::kMixtral, Architecture::kDeepseekV3, Architecture::kGptOss};

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

TEST(HuggingFaceTensors, NamesAndShapes) {
  const std::map<Architecture, std::map<std::string, std::vector<std::int64_t>>> expected = {
      {Architecture::kMixtral,
       {{"model.embed_tokens.weight", {11, 6}},
        {"lm_head.weight", {11, 6}},
        {"model.layers.1.block_sparse_moe.gate.weight", {3, 6}},
        {"model.layers.1.block_sparse_moe.experts.2.w1.weight", {4, 6}},
        {"model.layers.1.block_sparse_moe.experts.2.w3.weight", {4, 6}},
        {"model.layers.1.block_sparse_moe.experts.2.w2.weight", {6, 4}},
        {"model.layers.0.mlp.gate_proj.weight", {5, 6}},
        {"model.layers.0.self_attn.k_proj.weight", {4, 6}},
        {"model.norm.weight", {6}}}},
      {Architecture::kDeepseekV3,
       {{"model.layers.1.mlp.gate.e_score_correction_bias", {3}},
        {"model.layers.1.mlp.shared_experts.down_proj.weight", {6, 7}},
        {"model.layers.1.mlp.experts.0.up_proj.weight", {4, 6}},
        {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", {5, 6}},
        {"model.layers.0.self_attn.q_a_layernorm.weight", {4}}}},
      {Architecture::kGptOss,
       {{"model.layers.0.mlp.router.weight", {3, 6}},
        {"model.layers.0.mlp.router.bias", {3}},
        {"model.layers.0.mlp.experts.gate_up_proj", {3, 6, 8}},
        {"model.layers.0.mlp.experts.gate_up_proj_bias", {3, 8}},
        {"model.layers.0.mlp.experts.down_proj", {3, 4, 6}},
        {"model.layers.0.mlp.experts.down_proj_bias", {3, 6}},
        {"model.layers.1.self_attn.sinks", {2}},
        {"model.layers.1.self_attn.o_proj.bias", {6}}}}};
  for (const auto& [architecture, tensors] : expected) {
    const TensorMapping mapping = map_tensors(model::model_parameters(small_spec(architecture)), architecture);
    EXPECT_TRUE(mapping.unnamed.empty());
    std::map<std::string, std::vector<std::int64_t>> found;
    for (const HuggingFaceTensor& tensor : mapping.tensors)
      EXPECT_TRUE(found.emplace(tensor.name, tensor.shape).second) << tensor.name << " comes twice";
    for (const auto& [name, shape] : tensors) EXPECT_EQ(found[name], shape) << name;
  }
}

TEST(HuggingFaceTensors, BlocksCoverEveryElementOnce) {
  for (const Architecture architecture : kAll) {
    const model::ModelSpec spec = small_spec(architecture);
    const auto parameters = model::model_parameters(spec);
    const TensorMapping mapping = map_tensors(parameters, architecture);
    std::vector<std::vector<int>> ours(parameters.size());
    std::vector<std::vector<int>> theirs(mapping.tensors.size());
    for (std::size_t i = 0; i < parameters.size(); ++i)
      ours[i].resize(static_cast<std::size_t>(parameters[i].num_elements()));
    for (std::size_t i = 0; i < theirs.size(); ++i)
      theirs[i].resize(static_cast<std::size_t>(elements(mapping.tensors[i].shape)));
    for (const Block& block : mapping.blocks) {
      for (std::int64_t i = 0; i < block.count; ++i) {
        ++ours[block.parameter].at(static_cast<std::size_t>(block.parameter_begin + i));
        ++theirs[block.tensor].at(static_cast<std::size_t>(block.tensor_begin + i));
      }
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const bool is_padded = parameters[i].shape.front() == spec.padded_vocab_size;
      const auto covered =
          static_cast<std::size_t>(is_padded ? spec.vocab_size * spec.hidden_size : parameters[i].num_elements());
      for (std::size_t e = 0; e < ours[i].size(); ++e) EXPECT_EQ(ours[i][e], e < covered ? 1 : 0) << parameters[i].name;
    }
    for (const auto& counts : theirs) EXPECT_EQ(std::set<int>(counts.begin(), counts.end()), std::set<int>{1});
  }
}

/// Every element of our parameters holds a number of its own.
using Values = std::vector<std::vector<float>>;

Values numbered(const std::vector<model::ParameterDescriptor>& parameters) {
  Values values;
  float next = 1.0F;
  for (const auto& parameter : parameters) {
    values.emplace_back(static_cast<std::size_t>(parameter.num_elements()));
    for (float& value : values.back()) value = next++;
  }
  return values;
}

ReadElements reader(const Values& values) {
  return [&values](std::size_t index, std::int64_t begin, std::span<std::byte> out) {
    const auto all = std::as_bytes(std::span(values[index]));
    std::ranges::copy(all.subspan(static_cast<std::size_t>(begin) * sizeof(float), out.size()), out.begin());
  };
}

Sink appender(std::vector<float>& out) {
  return [&out](std::span<const std::byte> bytes) {
    const auto* values = reinterpret_cast<const float*>(bytes.data());
    out.insert(out.end(), values, values + bytes.size() / sizeof(float));
  };
}

TEST(HuggingFaceTensors, ThereAndBackIsTheSame) {
  for (const Architecture architecture : kAll) {
    const model::ModelSpec spec = small_spec(architecture);
    const auto parameters = model::model_parameters(spec);
    const TensorMapping mapping = map_tensors(parameters, architecture);
    const Values ours = numbered(parameters);
    Values theirs(mapping.tensors.size());
    const auto by_tensor = blocks_by_tensor(mapping);
    for (std::size_t i = 0; i < theirs.size(); ++i)
      stream_tensor(by_tensor[i], sizeof(float), reader(ours), appender(theirs[i]));
    const auto by_parameter = blocks_by_parameter(mapping, parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      std::vector<float> back;
      stream_parameter(by_parameter[i], parameters[i].num_elements(), sizeof(float), reader(theirs), appender(back));
      std::vector<float> expected = ours[i];
      if (parameters[i].shape.front() == spec.padded_vocab_size)
        std::fill(expected.begin() + spec.vocab_size * spec.hidden_size, expected.end(), 0.0F);
      EXPECT_EQ(back, expected) << parameters[i].name;
    }
  }
}

// gpt-oss by index arithmetic: [expert, input, 2·unit + half] there, [expert, half·F + unit, input] here.
TEST(HuggingFaceTensors, FusedExpertsAreTransposedAndInterleaved) {
  const model::ModelSpec spec = small_spec(Architecture::kGptOss);
  const auto parameters = model::model_parameters(spec);
  const TensorMapping mapping = map_tensors(parameters, Architecture::kGptOss);
  const Values ours = numbered(parameters);
  const auto blocks = blocks_by_tensor(mapping);
  std::int64_t num_checked = 0;
  for (std::size_t i = 0; i < mapping.tensors.size(); ++i) {
    const std::string& name = mapping.tensors[i].name;
    const bool is_weight = name.ends_with("gate_up_proj");
    if (!is_weight && !name.ends_with("gate_up_proj_bias")) continue;
    std::vector<float> theirs;
    stream_tensor(blocks[i], sizeof(float), reader(ours), appender(theirs));
    const std::vector<float>& source = ours[blocks[i].front().parameter];
    const std::int64_t inputs = is_weight ? spec.hidden_size : 1;
    const std::int64_t units = spec.moe->ffn_hidden_size;
    for (std::int64_t expert = 0; expert < 3; ++expert) {
      for (std::int64_t input = 0; input < inputs; ++input) {
        for (std::int64_t unit = 0; unit < units; ++unit) {
          for (std::int64_t half = 0; half < 2; ++half) {
            const auto there = static_cast<std::size_t>((expert * inputs + input) * 2 * units + 2 * unit + half);
            const auto here = static_cast<std::size_t>((expert * 2 * units + half * units + unit) * inputs + input);
            EXPECT_EQ(theirs[there], source[here]);
            ++num_checked;
          }
        }
      }
    }
  }
  EXPECT_EQ(num_checked, 2 * (3 * 6 * 8 + 3 * 8));
}

}  // namespace
}  // namespace primus::checkpoint
