#pragma once
// What the files that map config.json share: fields that mean the same in every architecture.
#include "checkpoint/architectures.hpp"

namespace primus::checkpoint::fields {

config::Value value(std::int64_t number);
config::Value value(double number);
config::Value value(const char* text);
config::Value flag(bool is_on);
config::Value none();

/// Sizes, norms, initialisation, and the fields without a meaning here. `norm_epsilon`: what a missing one means;
/// `longest`: the field with the most positions.
void read_common(ConfigReader& config, Settings& settings, double norm_epsilon,
                 const char* longest = "max_position_embeddings");

/// May a part of each head be rotated?
enum class PartialRotary { kRefused, kRead };

/// RoPE parameters of transformers 5 (rope_parameters) or 4 (rope_theta and rope_scaling). Where a part of each head
/// may be rotated, a missing one is `default_part`.
void read_rope(ConfigReader& config, Settings& settings, double default_theta,
               PartialRotary partial = PartialRotary::kRefused, double default_part = 1.0);

/// Both of the above, the other way round, in transformers 4's spelling, which both releases read.
Json common_fields(const config::Experiment& experiment, const model::ModelSpec& spec);

/// `default_groups` none: as many as heads.
void read_grouped_queries(ConfigReader& config, Settings& settings, std::optional<std::int64_t> default_groups);
void write_grouped_queries(const model::ModelSpec& spec, Json& json);

/// Qwen's: layer i has experts where it is not listed as dense and (i + 1) is a multiple of the step.
void read_qwen_pattern(ConfigReader& config, Settings& settings);
/// Experts of Qwen3, the other way round.
void write_qwen_experts(const model::ModelSpec& spec, Json& json);

/// Head sizes of a config that does not say them.
struct HeadSizes {
  std::int64_t plain = 128;
  std::int64_t value = 128;
};

/// Latent attention's sizes, with norms.
void read_latent_attention(ConfigReader& config, Settings& settings, HeadSizes defaults = {});
void write_latent_attention(const model::ModelSpec& spec, Json& json);
/// transformers' norms of latent vectors have an epsilon of their own, which no field says.
std::vector<std::string> latent_norm_notes(ConfigReader& config, double default_epsilon);

/// Dense and MoE layers: first_k_dense_replace, and one kind a layer, which goes before it.
void read_first_dense(ConfigReader& config, Settings& settings, std::int64_t default_dense);
void read_mlp_kinds(ConfigReader& config, Settings& settings, std::int64_t default_dense);

/// "([0]*1+[1]*26)", or 1 where every layer is MoE.
config::Value layer_pattern(const std::vector<std::int64_t>& is_moe);

/// What the architectures with experts have in common.
void set_experts(Settings& settings, std::int64_t num_experts, std::int64_t top_k, std::int64_t ffn);

}  // namespace primus::checkpoint::fields

namespace primus::checkpoint {

// The rows' functions.
ConfigFacts read_llama(ConfigReader& config, Settings& settings);
ConfigFacts read_mixtral(ConfigReader& config, Settings& settings);
ConfigFacts read_qwen3_moe(ConfigReader& config, Settings& settings);
ConfigFacts read_gpt_oss(ConfigReader& config, Settings& settings);
ConfigFacts read_lfm2(ConfigReader& config, Settings& settings);
ConfigFacts read_lfm2_moe(ConfigReader& config, Settings& settings);
ConfigFacts read_qwen3_next(ConfigReader& config, Settings& settings);
ConfigFacts read_kimi_linear(ConfigReader& config, Settings& settings);
ConfigFacts read_deepseek_v2(ConfigReader& config, Settings& settings);
ConfigFacts read_deepseek_v3(ConfigReader& config, Settings& settings);
ConfigFacts read_deepseek_v32(ConfigReader& config, Settings& settings);
ConfigFacts read_glm_moe_dsa(ConfigReader& config, Settings& settings);
Json write_llama(const config::Experiment& experiment, const model::ModelSpec& spec);
Json write_mixtral(const config::Experiment& experiment, const model::ModelSpec& spec);
Json write_qwen3_moe(const config::Experiment& experiment, const model::ModelSpec& spec);
Json write_gpt_oss(const config::Experiment& experiment, const model::ModelSpec& spec);
Json write_lfm2(const config::Experiment& experiment, const model::ModelSpec& spec);
Json write_lfm2_moe(const config::Experiment& experiment, const model::ModelSpec& spec);
Json write_qwen3_next(const config::Experiment& experiment, const model::ModelSpec& spec);
Json write_kimi_linear(const config::Experiment& experiment, const model::ModelSpec& spec);
Json write_deepseek_v2(const config::Experiment& experiment, const model::ModelSpec& spec);
Json write_deepseek_v3(const config::Experiment& experiment, const model::ModelSpec& spec);
Json write_deepseek_v32(const config::Experiment& experiment, const model::ModelSpec& spec);
Json write_glm_moe_dsa(const config::Experiment& experiment, const model::ModelSpec& spec);

}  // namespace primus::checkpoint
