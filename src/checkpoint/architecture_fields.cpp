#include "checkpoint/architecture_fields.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace primus::checkpoint::fields {

using config::Experiment;
using config::Value;
using model::ModelSpec;

namespace {

/// A vocabulary that is not padded computes what the Hugging Face model computes: padded rows would take a share of the
/// softmax. So it is padded to a multiple that it already is.
std::int64_t exact_multiple(std::int64_t vocab_size) {
  constexpr std::int64_t kMost = 128;  // the key's default
  std::int64_t multiple = 1;
  while (multiple < kMost && vocab_size % (2 * multiple) == 0) multiple *= 2;
  return multiple;
}

}  // namespace

Value value(std::int64_t number) {
  return {number};
}
Value value(double number) {
  return {number};
}
Value value(const char* text) {
  return {std::string(text)};
}
Value flag(bool is_on) {
  return {is_on};
}
Value none() {
  return {};
}

void read_common(ConfigReader& config, Settings& settings, double norm_epsilon, const char* longest_field) {
  const std::int64_t vocab = config.integer("vocab_size");
  settings.set("vocab_size", value(vocab));
  settings.set("make_vocab_size_divisible_by", value(exact_multiple(vocab)));
  settings.set("num_layers", value(config.integer("num_hidden_layers")));
  settings.set("hidden_size", value(config.integer("hidden_size")));
  settings.set("num_attention_heads", value(config.integer("num_attention_heads")));
  settings.set("ffn_hidden_size", value(config.integer("intermediate_size")));
  const std::int64_t longest = config.integer(longest_field);
  constexpr std::int64_t kLongestByDefault = 4096;
  settings.set("max_position_embeddings", value(longest));
  settings.set("seq_length", value(std::min(longest, kLongestByDefault)));
  settings.set("norm_epsilon", value(config.real("rms_norm_eps", norm_epsilon)));
  settings.set("init_method_std", value(config.real("initializer_range", 0.02)));
  settings.set("untie_embeddings_and_output_weights", flag(!config.flag("tie_word_embeddings", false)));
  settings.set("attention_dropout", value(config.real("attention_dropout", 0.0)));
  settings.set("hidden_dropout", value(0.0));
  settings.set("normalization", value("RMSNorm"));
  settings.set("position_embedding_type", value("rope"));
  config.expect("hidden_act", "silu", "only SiLU is converted");
  config.expect("is_encoder_decoder", false, "only decoders are converted");
  if (config.has("quantization_config")) {
    config.problem("quantization_config", "the weights are quantised, which is not converted",
                   "plain fp32, bf16 or fp16", "");
  }
  // Tokens, generation, training choices of the other side, and traces of who wrote the file.
  config.ignore({"architectures",
                 "model_type",
                 "transformers_version",
                 "dtype",
                 "torch_dtype",
                 "use_cache",
                 "bos_token_id",
                 "eos_token_id",
                 "pad_token_id",
                 "pretraining_tp",
                 "output_router_logits",
                 "output_attentions",
                 "output_hidden_states",
                 "return_dict",
                 "router_aux_loss_coef",
                 "aux_loss_alpha",
                 "seq_aux",
                 "ep_size",
                 "auto_map",
                 "quantization_config",
                 "_name_or_path",
                 "id2label",
                 "label2id",
                 "problem_type",
                 "chunk_size_feed_forward",
                 "torchscript"});
}

void read_rope(ConfigReader& config, Settings& settings, double default_theta, PartialRotary partial,
               double default_part) {
  const Json* current = config.object("rope_parameters");
  const Json* older = config.object("rope_scaling");
  if (current != nullptr && (older != nullptr || config.has("rope_theta")))
    config.problem("rope_parameters", "stands beside rope_theta or rope_scaling", "one of the two forms");
  const Json empty = Json::object();
  const Json& source = current != nullptr ? *current : older != nullptr ? *older : empty;
  ConfigReader rope(source, config.file(), current != nullptr ? "rope_parameters." : "rope_scaling.");
  const double older_theta = config.real("rope_theta", default_theta);
  const double theta = rope.real("rope_theta", older_theta);
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  rope.expect("type", type, "contradicts rope_type");
  settings.set("rotary_base", value(theta));
  settings.set("rope_type", value(type == "yarn" ? "yarn" : "rope"));
  if (type == "yarn") {
    settings.set("rotary_scaling_factor", value(rope.real("factor")));
    settings.set("original_max_position_embeddings", value(rope.integer("original_max_position_embeddings")));
    settings.set("beta_fast", value(rope.real("beta_fast", 32.0)));
    settings.set("beta_slow", value(rope.real("beta_slow", 1.0)));
    if (!rope.flag("truncate", true)) settings.set("yarn_correction_range_round_to_int", flag(false));
    const double all = rope.real("mscale_all_dim", 0.0);
    const double scale = rope.real("mscale", 0.0);
    // With only one of the two, cos and sin get the temperature of strength 1.
    if (all != 0.0 && scale == 0.0) {
      rope.problem("mscale_all_dim", "stands without mscale: its temperature cannot be said here", "both or none");
    }
    if (all == 0.0 && scale != 0.0 && scale != 1.0)
      rope.problem("mscale", "stands without mscale_all_dim and would be ignored", "both or none");
    settings.set("mscale", value(all != 0.0 ? scale : 1.0));
    settings.set("mscale_all_dim", value(all));
    rope.expect("attention_factor", nullptr, "a temperature of its own cannot be said here");
  } else if (type == "llama3") {
    settings.set("use_rope_scaling", flag(true));
    settings.set("rope_scaling_factor", value(rope.real("factor")));
    rope.expect("low_freq_factor", 1.0, "Llama 3's scaling has fixed bounds here");
    rope.expect("high_freq_factor", 4.0, "Llama 3's scaling has fixed bounds here");
    rope.expect("original_max_position_embeddings", 8192, "Llama 3's scaling has fixed bounds here");
  } else if (type != "default") {
    rope.problem("rope_type", "is not converted", "default, yarn or llama3", type);
  }
  if (partial == PartialRotary::kRead) {
    const double part = rope.real("partial_rotary_factor", config.real("partial_rotary_factor", default_part));
    config.expect("partial_rotary_factor", part, "contradicts rope_parameters");
    settings.set("rotary_percent", value(part));
  } else {
    rope.expect("partial_rotary_factor", 1.0, "heads that are rotated in part are not converted");
    config.expect("partial_rotary_factor", 1.0, "heads that are rotated in part are not converted");
  }
  rope.refuse_rest();
  config.take_problems(rope);
}

Json common_fields(const Experiment& experiment, const ModelSpec& spec) {
  Json json;
  json["vocab_size"] = spec.vocab_size;
  json["num_hidden_layers"] = spec.num_layers();
  json["hidden_size"] = spec.hidden_size;
  json["num_attention_heads"] = spec.num_heads();
  json["intermediate_size"] = spec.dense_ffn_hidden_size;
  json["max_position_embeddings"] = experiment.get_optional_int("max_position_embeddings").value_or(spec.seq_length);
  json["rms_norm_eps"] = spec.norm_epsilon;
  json["initializer_range"] = spec.init_std;
  json["tie_word_embeddings"] = spec.output_weight == model::OutputWeight::kTiedToEmbedding;
  json["attention_dropout"] = experiment.get_double("attention_dropout");
  json["hidden_act"] = "silu";
  json["rope_theta"] = spec.rope.base;
  json["rope_scaling"] = nullptr;
  if (spec.rope.type == model::RopeType::kYarn) {
    const model::RopeSpec& rope = spec.rope;
    Json& scaling = json["rope_scaling"];
    scaling = {{"rope_type", "yarn"},
               {"factor", rope.scaling_factor},
               {"original_max_position_embeddings", rope.original_max_position},
               {"beta_fast", rope.beta_fast},
               {"beta_slow", rope.beta_slow}};
    if (!experiment.get_bool("yarn_correction_range_round_to_int")) scaling["truncate"] = false;
    if (rope.mscale_all_dim != 0.0) {
      scaling["mscale"] = rope.mscale;
      scaling["mscale_all_dim"] = rope.mscale_all_dim;
    }
  } else if (experiment.get_bool("use_rope_scaling")) {
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", experiment.get_double("rope_scaling_factor")},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  }
  return json;
}

void read_grouped_queries(ConfigReader& config, Settings& settings, std::optional<std::int64_t> default_groups) {
  const std::int64_t heads = config.integer("num_attention_heads", 1);
  settings.set("group_query_attention", flag(true));
  settings.set("num_query_groups", value(config.integer("num_key_value_heads", default_groups.value_or(heads))));
  const std::int64_t hidden = config.integer("hidden_size", 1);
  settings.set("kv_channels", value(config.integer("head_dim", heads > 0 ? hidden / heads : 1)));
}

void write_grouped_queries(const ModelSpec& spec, Json& json) {
  const auto* gqa = std::get_if<model::GqaSpec>(&spec.attention);
  if (gqa == nullptr) return;  // the comparison with the experiment names the key
  json["num_key_value_heads"] = gqa->num_query_groups;
  json["head_dim"] = gqa->head_dim;
}

Value layer_pattern(const std::vector<std::int64_t>& is_moe) {
  if (std::ranges::all_of(is_moe, [](std::int64_t one) { return one == 1; })) return value(std::int64_t{1});
  std::string text;
  for (std::size_t i = 0; i < is_moe.size();) {
    std::size_t end = i;
    while (end < is_moe.size() && is_moe[end] == is_moe[i]) ++end;
    text += fmt::format("{}[{}]*{}", text.empty() ? "" : "+", is_moe[i], end - i);
    i = end;
  }
  return {"(" + text + ")"};
}

void set_experts(Settings& settings, std::int64_t num_experts, std::int64_t top_k, std::int64_t ffn) {
  settings.set("num_experts", value(num_experts));
  settings.set("moe_router_topk", value(top_k));
  settings.set("moe_ffn_hidden_size", value(ffn));
  // A loss on the load is a choice of the training to come, not a part of the model.
  settings.set("moe_router_load_balancing_type", value("none"));
  settings.set("moe_aux_loss_coeff", value(0.0));
  settings.set("moe_grouped_gemm", flag(true));
  settings.set("moe_token_dispatcher_type", value("alltoall"));
}

}  // namespace primus::checkpoint::fields
