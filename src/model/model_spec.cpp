#include "model/model_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "config/layer_pattern.hpp"
#include "config/number_list.hpp"

namespace primus::model {
namespace {

using config::Experiment;

Part part(bool is_present) {
  return is_present ? Part::kPresent : Part::kAbsent;
}

RopeType rope_type(const Experiment& experiment, RopeType default_type) {
  const std::string positions = experiment.get_string("position_embedding_type");
  if (positions == "none" || positions == "learned_absolute") return RopeType::kNone;
  if (positions == "yarn") return RopeType::kYarn;
  const std::optional<std::string> written = experiment.get_optional_string("rope_type");
  const RopeType type =
      written ? (*written == "yarn" ? RopeType::kYarn : RopeType::kRope) : default_type;  // decision 8
  return type == RopeType::kRope && experiment.get_bool("use_rope_scaling") ? RopeType::kLlama3 : type;
}

RopeSpec rope_spec(const Experiment& experiment, std::int64_t head_dim, RopeType default_type) {
  RopeSpec rope;
  // As many whole pairs as the percentage holds.
  const double rotated = static_cast<double>(head_dim) * experiment.get_double("rotary_percent");
  rope.rotary_dim = static_cast<std::int64_t>(rotated) / 2 * 2;
  rope.type = rope_type(experiment, default_type);
  rope.base = experiment.get_double("rotary_base");
  const bool is_llama = rope.type == RopeType::kLlama3;
  rope.scaling_factor = experiment.get_double(is_llama ? "rope_scaling_factor" : "rotary_scaling_factor");
  constexpr std::int64_t kLlamaLength = 8192;
  rope.original_max_position = experiment.get_optional_int("original_max_position_embeddings")
                                   .value_or(is_llama ? kLlamaLength : rope.original_max_position);
  rope.rounded_range = part(experiment.get_bool("yarn_correction_range_round_to_int"));
  rope.interpolation =
      static_cast<double>(experiment.get_optional_int("rotary_seq_len_interpolation_factor").value_or(1));
  rope.pairs = experiment.get_bool("rotary_interleaved") ? RopePairs::kNeighbours : RopePairs::kHalves;
  rope.beta_fast = experiment.get_double("beta_fast");
  rope.beta_slow = experiment.get_double("beta_slow");
  rope.mscale = experiment.get_double("mscale");
  rope.mscale_all_dim = experiment.get_double("mscale_all_dim");
  return rope;
}

std::optional<IndexerSpec> indexer_spec(const Experiment& experiment) {
  if (experiment.get_optional_string("experimental_attention_variant") != "dsa") return std::nullopt;
  return IndexerSpec{
      .num_heads = experiment.get_int("dsa_indexer_n_heads"),
      .head_dim = experiment.get_int("dsa_indexer_head_dim"),
      .top_k = experiment.get_int("dsa_indexer_topk"),
      .loss_coefficient = experiment.get_optional_double("dsa_indexer_loss_coeff").value_or(0.0),
      .sparse_loss = part(experiment.get_bool("dsa_indexer_use_sparse_loss")),
      .norm_epsilon =
          experiment.get_optional_double("dsa_indexer_k_norm_epsilon").value_or(experiment.get_double("norm_epsilon")),
      .hadamard = part(experiment.get_bool("dsa_indexer_rotate_activation")),
      .rectified = part(experiment.get_bool("dsa_indexer_scoring_relu")),
      .pairs = experiment.get_bool("dsa_indexer_rope_interleaved") ? RopePairs::kNeighbours : RopePairs::kHalves};
}

MlaSpec mla_spec(const Experiment& experiment) {
  return MlaSpec{.num_heads = experiment.get_int("num_attention_heads"),
                 .q_lora_rank = experiment.get_optional_int("q_lora_rank"),
                 .kv_lora_rank = experiment.get_int("kv_lora_rank"),
                 .qk_head_dim = experiment.get_int("qk_head_dim"),
                 .qk_pos_emb_head_dim = experiment.get_int("qk_pos_emb_head_dim"),
                 .v_head_dim = experiment.get_int("v_head_dim"),
                 .latent_norms = part(experiment.get_bool("qk_layernorm")),
                 .output_gate = part(experiment.get_bool("mla_use_output_gate")),
                 .indexer = indexer_spec(experiment)};
}

GqaSpec gqa_spec(const Experiment& experiment) {
  GqaSpec gqa;
  gqa.num_heads = experiment.get_int("num_attention_heads");
  gqa.num_query_groups = experiment.get_bool("group_query_attention")
                             ? experiment.get_optional_int("num_query_groups").value_or(gqa.num_heads)
                             : gqa.num_heads;
  gqa.head_dim = experiment.get_optional_int("kv_channels").value_or(experiment.get_int("hidden_size") / gqa.num_heads);
  gqa.qk_norms = part(experiment.get_bool("qk_layernorm"));
  gqa.qk_unit_norms = part(experiment.get_bool("qk_l2_norm"));
  gqa.qkv_bias = part(experiment.get_bool("add_qkv_bias") || experiment.get_bool("add_bias_linear"));
  gqa.output_gate = part(experiment.get_bool("attention_output_gate"));
  return gqa;
}

ScoreFunction score_function(const std::string& name) {
  if (name == "softmax") return ScoreFunction::kSoftmax;
  if (name == "sigmoid") return ScoreFunction::kSigmoid;
  PRIMUS_CHECK(name == "sqrtsoftplus", "moe_router_score_function '{}' passed validation", name);
  return ScoreFunction::kSqrtSoftplus;
}

/// Adds one way of balancing to the router.
void add_balancing(const std::string& name, double coefficient, RouterSpec& router) {
  if (name == "none") return;
  if (name == "aux_loss") {
    router.losses.aux = coefficient;
  } else if (name == "seq_aux_loss") {
    router.losses.seq_aux = coefficient;
  } else if (name == "global_aux_loss") {
    router.losses.global_aux = coefficient;
  } else if (name == "sinkhorn") {
    router.assignment = RouterSpec::Assignment::kSinkhorn;
  } else {
    PRIMUS_CHECK(name == "quantile_balancing", "moe_router_load_balancing_type '{}' passed validation", name);
    router.assignment = RouterSpec::Assignment::kQuantile;
  }
}

void add_balancing(const Experiment& experiment, RouterSpec& router) {
  const std::vector<std::string> types = experiment.get_strings("moe_router_load_balancing_type");
  const std::vector<double> coefficients = config::numbers_of(experiment.setting("moe_aux_loss_coeff").value);
  for (std::size_t i = 0; i < types.size(); ++i) {
    add_balancing(types[i], coefficients.at(coefficients.size() == 1 ? 0 : i), router);
  }
  router.losses.z = experiment.get_optional_double("moe_z_loss_coeff").value_or(0.0);
  router.quantile_ema = experiment.get_double("moe_router_quantile_balancing_ema");
}

/// What is measured with, and not trained.
void add_forced_routing(const Experiment& experiment, RouterSpec& router) {
  if (experiment.get_bool("moe_router_force_load_balancing")) {
    router.balance = experiment.get_string("moe_router_force_load_balancing_type") == "even"
                         ? RouterSpec::Balance::kForced
                         : RouterSpec::Balance::kRandom;
  }
  router.forced_imbalance = experiment.get_optional_double("moe_router_force_biased");
}

std::optional<ExpertCapacity> expert_capacity(const Experiment& experiment) {
  const auto factor = experiment.get_optional_double("moe_expert_capacity_factor");
  if (!factor) return std::nullopt;
  ExpertCapacity capacity{.factor = *factor};
  if (experiment.get_string("moe_token_drop_policy") == "position") capacity.drop = ExpertCapacity::Drop::kPosition;
  if (experiment.get_bool("moe_pad_expert_input_to_capacity")) capacity.free_rows = ExpertCapacity::FreeRows::kKept;
  return capacity;
}

std::optional<QuantileRule> quantile_rule(const Experiment& experiment) {
  const bool is_asked = experiment.get_bool("moe_router_enable_expert_bias") &&
                        experiment.get_string("moe_router_bias_update_rule") == "quantile";
  if (!is_asked) return std::nullopt;
  return QuantileRule{.num_bins = experiment.get_int("quantile_balancing_num_bins"),
                      .lowest = experiment.get_double("quantile_balancing_margin_min"),
                      .highest = experiment.get_double("quantile_balancing_margin_max"),
                      .centred = part(experiment.get_bool("quantile_balancing_center_bias")),
                      .update_interval = experiment.get_int("quantile_balancing_update_interval"),
                      .ema = experiment.get_optional_double("quantile_balancing_ema_decay").value_or(0.0)};
}

RouterSpec router_spec(const Experiment& experiment, std::int64_t num_experts) {
  RouterSpec router;
  router.num_experts = num_experts;
  router.top_k = experiment.get_int("moe_router_topk");
  router.score_function = score_function(experiment.get_string("moe_router_score_function"));
  router.softmax_order = experiment.get_bool("moe_router_pre_softmax") ? SoftmaxOrder::kPre : SoftmaxOrder::kPost;
  router.scaling_factor = experiment.get_optional_double("moe_router_topk_scaling_factor").value_or(1.0);
  add_balancing(experiment, router);
  add_forced_routing(experiment, router);
  router.num_groups = experiment.get_optional_int("moe_router_num_groups");
  router.group_top_k = experiment.get_optional_int("moe_router_group_topk");
  router.group_score = experiment.get_string("moe_router_group_score") == "max" ? RouterSpec::GroupScore::kMax
                                                                                : RouterSpec::GroupScore::kSumOfBest;
  router.input_jitter = experiment.get_optional_double("moe_input_jitter_eps").value_or(0.0);
  router.logit_softcap = experiment.get_optional_double("router_logit_softcapping").value_or(0.0);
  router.capacity = expert_capacity(experiment);
  router.expert_bias_rate = experiment.get_double("moe_router_bias_update_rate");
  router.quantile_rule = quantile_rule(experiment);
  router.expert_bias =
      experiment.get_bool("moe_router_enable_expert_bias") ? RouterSpec::ExpertBias::kOn : RouterSpec::ExpertBias::kOff;
  return router;
}

/// Megatron's choice: with its fused kernel a biased GELU is the tanh form, else it is exact.
ActivationSpec activation_spec(const Experiment& experiment) {
  using Function = ActivationSpec::Function;
  ActivationSpec activation;
  activation.clamp = experiment.get_optional_double("activation_func_clamp_value");
  if (!activation.clamp) activation.clamp = experiment.get_optional_double("swiglu_limit");
  activation.linear_offset = experiment.get_double("glu_linear_offset");
  if (const auto beta = experiment.get_optional_double("activation_situ_beta")) {
    activation.function = Function::kSitu;
    activation.situ_beta = *beta;
    activation.situ_linear_beta = experiment.get_optional_double("activation_situ_linear_beta");
  } else if (experiment.get_bool("swiglu")) {
    activation.function = Function::kSilu;
  } else if (experiment.get_bool("quick_geglu")) {
    activation.function = Function::kQuickGelu;
  } else if (experiment.get_bool("squared_relu")) {
    activation.function = Function::kSquaredRelu;
  } else {
    const bool is_fused = experiment.get_bool("bias_gelu_fusion") && experiment.get_bool("add_bias_linear");
    activation.function = experiment.get_bool("openai_gelu") || is_fused ? Function::kTanhGelu : Function::kGelu;
  }
  return activation;
}

/// Megatron's default: 4·hidden, and with a gated activation 2/3 of it, rounded to 64.
std::int64_t dense_ffn(const Experiment& experiment, std::int64_t hidden_size) {
  if (const auto width = experiment.get_optional_int("ffn_hidden_size")) return *width;
  return experiment.get_bool("swiglu") ? hidden_size * 4 * 2 / 3 / 64 * 64 : hidden_size * 4;
}

MoeSpec moe_spec(const Experiment& experiment, std::int64_t num_experts, std::int64_t dense_ffn_hidden_size) {
  MoeSpec moe;
  moe.router = router_spec(experiment, num_experts);
  moe.ffn_hidden_size = experiment.get_optional_int("moe_ffn_hidden_size").value_or(dense_ffn_hidden_size);
  moe.shared_ffn_hidden_size = experiment.get_optional_int("moe_shared_expert_intermediate_size").value_or(0);
  moe.shared_gate = part(experiment.get_bool("moe_shared_expert_gate"));
  if (experiment.get_bool("moe_apply_probs_on_input")) moe.probabilities_on = MoeSpec::ProbabilitiesOn::kInput;
  moe.glu_interleave = experiment.get_optional_int("moe_mlp_glu_interleave_size").value_or(0);
  moe.shared_glu_interleave = experiment.get_optional_int("moe_shared_expert_glu_interleave_size").value_or(0);
  if (const auto size = experiment.get_optional_int("moe_latent_size")) {
    moe.latent = LatentExpertSpec{*size, part(experiment.get_bool("latent_moe_use_norm"))};
  }
  return moe;
}

/// Which layers have linear attention: n means all but every n-th, the other way round than moe_layer_freq.
std::vector<MixerKind> linear_attention_mixers(const config::Value& frequency, std::int64_t num_layers,
                                               MixerKind linear) {
  std::vector<MixerKind> mixers(static_cast<std::size_t>(num_layers), MixerKind::kAttention);
  if (const auto* every = std::get_if<std::int64_t>(&frequency.data)) {
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
      if ((layer + 1) % *every != 0) mixers[static_cast<std::size_t>(layer)] = linear;
    }
    return mixers;
  }
  const std::vector<std::int64_t> pattern =
      config::expand_layer_pattern(frequency, num_layers, "linear_attention_freq");
  for (std::size_t i = 0; i < mixers.size(); ++i) mixers[i] = pattern[i] != 0 ? linear : MixerKind::kAttention;
  return mixers;
}

/// What an integer n means where a list names layers by 1.
enum class Mark { kNth, kAllButNth };

/// The layers that `key` names: all of them where it is null.
std::vector<bool> marked_layers(const Experiment& experiment, const char* key, std::int64_t num_layers, Mark meaning) {
  std::vector<bool> marked(static_cast<std::size_t>(num_layers), true);
  const config::Value& value = experiment.setting(key).value;
  if (value.is_null()) return marked;
  if (const auto* every = std::get_if<std::int64_t>(&value.data)) {
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
      const bool is_nth = (layer + 1) % *every == 0;
      marked[static_cast<std::size_t>(layer)] = is_nth == (meaning == Mark::kNth);
    }
    return marked;
  }
  const std::vector<std::int64_t> pattern = config::expand_layer_pattern(value, num_layers, key);
  for (std::size_t layer = 0; layer < marked.size(); ++layer) marked[layer] = pattern[layer] != 0;
  return marked;
}

MixerKind linear_mixer(const std::string& variant) {
  if (variant == "gated_delta_net" || variant == "gdn") return MixerKind::kGatedDelta;
  return variant == "kda" ? MixerKind::kKimiDelta : MixerKind::kUnknown;
}

/// Empty where every layer has attention.
std::vector<MixerKind> mixer_kinds(const Experiment& experiment, std::int64_t num_layers) {
  const auto all = [&](MixerKind mixer) { return std::vector(static_cast<std::size_t>(num_layers), mixer); };
  if (experiment.get_string("model_type") == "deepseek_v4") return all(MixerKind::kUnknown);
  for (const char* key : {"hybrid_layer_pattern", "hybrid_override_pattern", "heterogeneous_layers_config_path",
                          "heterogeneous_layers_config_encoded_json"}) {
    if (!experiment.is_null(key)) return all(MixerKind::kUnknown);
  }
  if (const std::vector<std::string> types = experiment.get_strings("lfm_layer_types"); !types.empty()) {
    if (static_cast<std::int64_t>(types.size()) != num_layers) {
      throw UserError(fmt::format("lfm_layer_types: {} kinds for {} layers", types.size(), num_layers));
    }
    std::vector<MixerKind> mixers;
    for (const std::string& type : types) {
      mixers.push_back(type == "conv" ? MixerKind::kShortConvolution : MixerKind::kAttention);
    }
    return mixers;
  }
  const auto variant = experiment.get_optional_string("experimental_attention_variant");
  if (!variant) return {};
  if (*variant == "dsa") return {};
  if (experiment.is_null("linear_attention_freq")) return {};
  return linear_attention_mixers(experiment.setting("linear_attention_freq").value, num_layers, linear_mixer(*variant));
}

GatedDeltaSpec gated_delta_spec(const Experiment& experiment) {
  return GatedDeltaSpec{.num_key_heads = experiment.get_int("linear_num_key_heads"),
                        .num_value_heads = experiment.get_int("linear_num_value_heads"),
                        .key_head_dim = experiment.get_int("linear_key_head_dim"),
                        .value_head_dim = experiment.get_int("linear_value_head_dim"),
                        .kernel_size = experiment.get_int("linear_conv_kernel_dim")};
}

std::optional<HyperSpec> hyper_spec(const Experiment& experiment, double norm_epsilon) {
  if (experiment.get_bool("enable_mhc_connections")) {
    return HyperSpec{.num_streams = experiment.get_int("mhc_num_residual_streams"),
                     .sinkhorn_iterations = experiment.get_int("mhc_sinkhorn_iterations"),
                     .form = HyperSpec::Form::kMegatron,
                     .first_scale = experiment.get_double("mhc_init_gating_factor")};
  }
  if (experiment.get_int("hc_mult") == 1) return std::nullopt;
  return HyperSpec{
      .num_streams = experiment.get_int("hc_mult"),
      .sinkhorn_iterations = experiment.get_bool("hc_use_sinkhorn") ? experiment.get_int("hc_sinkhorn_iters") : 0,
      .epsilon = experiment.get_double("hc_eps"),
      .norm_epsilon = norm_epsilon};
}

/// Keys that a query of each layer sees; empty where every layer sees all. window_attn_skip_freq: each n-th layer has
/// no window, or a list in which 1 means one.
std::vector<std::int64_t> attention_windows(const Experiment& experiment, std::int64_t num_layers) {
  std::vector<std::int64_t> windows(static_cast<std::size_t>(num_layers), 0);
  if (experiment.get_bool("use_sink_attention") && experiment.get_int("sink_sliding_window") > 0) {
    const std::int64_t step = experiment.get_bool("sink_window_even_layers_only") ? 2 : 1;
    for (std::int64_t layer = 0; layer < num_layers; layer += step) {
      windows[static_cast<std::size_t>(layer)] = experiment.get_int("sink_sliding_window");
    }
    return windows;
  }
  const config::Value& size = experiment.setting("window_size").value;
  if (size.is_null()) return {};
  const auto& bounds = std::get<config::Value::List>(size.data);
  PRIMUS_CHECK(bounds.size() == 2, "window_size of {} numbers passed validation", bounds.size());
  const std::int64_t keys_before = std::get<std::int64_t>(bounds[0].data);
  if (keys_before < 0) return {};
  const std::vector<bool> has_window = marked_layers(experiment, "window_attn_skip_freq", num_layers, Mark::kAllButNth);
  for (std::size_t layer = 0; layer < windows.size(); ++layer) {
    if (has_window[layer]) windows[layer] = keys_before + 1;
  }
  return windows;
}

/// no_rope_freq: each n-th layer is not rotated, or a list in which 1 means that.
std::vector<Part> rotated_layers(const Experiment& experiment, std::int64_t num_layers) {
  if (experiment.is_null("no_rope_freq")) return {};
  std::vector<Part> layers;
  for (const bool is_plain : marked_layers(experiment, "no_rope_freq", num_layers, Mark::kNth)) {
    layers.push_back(part(!is_plain));
  }
  return layers;
}

std::vector<Part> choosing_layers(const Experiment& experiment, std::int64_t num_layers) {
  const config::KeyChoices choices{experiment.get_int("dsa_indexer_topk_freq"),
                                   experiment.get_int("dsa_indexer_skip_topk_offset")};
  if (experiment.get_optional_string("experimental_attention_variant") != "dsa" || choices.period == 1) return {};
  std::vector<Part> layers;
  for (std::int64_t layer = 0; layer < num_layers; ++layer) layers.push_back(part(choices.are_made_in(layer)));
  return layers;
}

std::optional<WidthScaling> width_scaling(const Experiment& experiment, std::int64_t hidden_size) {
  if (!experiment.get_bool("use_mup")) return std::nullopt;
  const std::int64_t base = experiment.get_optional_int("mup_base_hidden_size").value_or(hidden_size);
  return WidthScaling{.width = static_cast<double>(hidden_size) / static_cast<double>(base),
                      .embedding = experiment.get_double("mup_embedding_mult"),
                      .attention_power = experiment.get_double("mup_attn_scale_power"),
                      .base_head_dim = experiment.get_optional_double("mup_base_head_dim").value_or(1.0)};
}

/// How values are bounded, dropped and scaled on their way.
void add_numerics(const Experiment& experiment, ModelSpec& spec) {
  spec.norm = experiment.get_string("normalization") == "LayerNorm" ? NormKind::kLayer : NormKind::kRms;
  spec.norm_around_one = part(experiment.get_bool("apply_layernorm_1p"));
  spec.residual_after_norm = part(experiment.get_bool("apply_residual_connection_post_layernorm"));
  spec.dropout = {experiment.get_double("hidden_dropout"), experiment.get_double("attention_dropout")};
  spec.logits.softcap = experiment.get_optional_double("final_logit_softcapping").value_or(0.0);
  spec.width_scaling = width_scaling(experiment, spec.hidden_size);
  if (spec.width_scaling) {
    const double written = experiment.get_double("mup_output_mult");
    spec.logits.scale = written == 1.0 ? 1.0 / spec.width_scaling->width : written;
  }
  if (experiment.get_bool("init_method_xavier_uniform")) spec.init_shape = ModelSpec::InitShape::kXavierUniform;
  spec.embedding_init_std = experiment.get_optional_double("embedding_init_method_std");
}

/// The parts that few models have.
void add_variants(const Experiment& experiment, ModelSpec& spec) {
  spec.mixers = mixer_kinds(experiment, experiment.get_int("num_layers"));
  spec.hyper = hyper_spec(experiment, spec.norm_epsilon);
  spec.gated_delta = gated_delta_spec(experiment);
  spec.kimi_delta = {.heads = spec.gated_delta,
                     .lowest_decay = experiment.get_optional_double("kda_gate_lower_bound"),
                     .full_rank_gate = part(experiment.get_bool("kda_use_full_rank_gate")),
                     .chunk_size = experiment.get_int("kda_chunk_size")};
  spec.short_convolution = {experiment.get_int("conv_L_cache"), part(experiment.get_bool("conv_bias"))};
  spec.residual_block = experiment.get_optional_int("attn_res_block_size").value_or(0);
  spec.mlp_gate = part(experiment.get_bool("swiglu") || experiment.get_bool("quick_geglu"));
  spec.activation = activation_spec(experiment);
  spec.linear_bias = part(experiment.get_bool("add_bias_linear"));
  const bool has_sinks =
      experiment.get_bool("use_sink_attention") || experiment.get_string("softmax_type") == "learnable";
  spec.sinks = part(has_sinks);
  spec.zero_sink = part(!has_sinks && experiment.get_string("softmax_type") == "off-by-one");
  spec.attention_softcap = experiment.get_optional_double("attn_logit_softcapping").value_or(0.0);
  if (experiment.get_bool("qk_clip")) {
    spec.qk_clip = QkClip{experiment.get_double("qk_clip_threshold"), experiment.get_double("qk_clip_alpha")};
  }
  spec.windows = attention_windows(experiment, spec.num_layers());
  spec.rotated_layers = rotated_layers(experiment, spec.num_layers());
  spec.choosing_layers = choosing_layers(experiment, spec.num_layers());
  if (experiment.get_string("position_embedding_type") == "learned_absolute") {
    spec.num_learned_positions = experiment.get_optional_int("max_position_embeddings").value_or(spec.seq_length);
  }
}

/// Numbers behind the decoder's are those of prediction depths, whose layers are of the last layer's kind.
template <typename PerLayer>
std::size_t decoder_index(const PerLayer& per_layer, int layer) {
  return std::min(static_cast<std::size_t>(layer), per_layer.size() - 1);
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::int64_t RouterSpec::expert_capacity(std::int64_t tokens) const {
  if (!capacity) return tokens;
  const double share = static_cast<double>(tokens * top_k) / static_cast<double>(num_experts);
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(share * capacity->factor)));
}

std::int64_t RouterSpec::num_expert_rows(std::int64_t tokens) const {
  if (!capacity) return tokens * top_k;
  const std::int64_t rows = num_experts * expert_capacity(tokens);
  return capacity->free_rows == ExpertCapacity::FreeRows::kKept ? rows : std::min(rows, tokens * top_k);
}

std::int64_t ModelSpec::num_moe_layers() const {
  return std::count(layers.begin(), layers.end(), LayerKind::kMoe);
}

std::int64_t ModelSpec::num_layers_of(MixerKind mixer) const {
  if (mixers.empty()) return mixer == MixerKind::kAttention ? num_layers() : 0;
  return std::count(mixers.begin(), mixers.end(), mixer);
}

MixerKind ModelSpec::mixer(int layer) const {
  return mixers.empty() ? MixerKind::kAttention : mixers.at(static_cast<std::size_t>(decoder_layer(layer)));
}

std::int64_t ModelSpec::window(int layer) const {
  return windows.empty() ? 0 : windows.at(decoder_index(windows, layer));
}

bool ModelSpec::is_rotated(int layer) const {
  if (rope.type == RopeType::kNone) return false;
  return rotated_layers.empty() || rotated_layers.at(decoder_index(rotated_layers, layer)) == Part::kPresent;
}

const IndexerSpec* ModelSpec::indexer() const {
  const auto* mla = std::get_if<MlaSpec>(&attention);
  return mla != nullptr && mla->indexer ? &*mla->indexer : nullptr;
}

bool ModelSpec::picks_keys(int layer) const {
  const IndexerSpec* keys = indexer();
  if (keys == nullptr || mixer(layer) != MixerKind::kAttention) return false;
  // A prediction depth chooses for itself: its tokens stand at other places than the layers'.
  if (choosing_layers.empty() || layer >= num_layers()) return true;
  return choosing_layers.at(static_cast<std::size_t>(layer)) == Part::kPresent;
}

LayerLikeness ModelSpec::likeness(int layer) const {
  return {.kind = kind(layer), .mixer = mixer(layer), .picks_keys = part(picks_keys(layer))};
}

std::int64_t ModelSpec::most_keys(int layer) const {
  const std::int64_t in_window = window(layer);
  const IndexerSpec* keys = indexer();
  if (keys == nullptr) return in_window;
  return in_window == 0 ? keys->top_k : std::min(in_window, keys->top_k);
}

std::int64_t ModelSpec::num_heads() const {
  return std::visit([](const auto& attention_spec) { return attention_spec.num_heads; }, attention);
}

ModelSpec indexer_norm(const ModelSpec& spec) {
  ModelSpec normed;
  normed.norm = NormKind::kLayer;
  normed.norm_around_one = spec.norm_around_one;
  normed.norm_epsilon = spec.indexer()->norm_epsilon;
  return normed;
}

std::vector<LayerKind> layer_kinds(const config::Value& moe_layer_freq, std::int64_t num_layers) {
  std::vector<LayerKind> kinds(static_cast<std::size_t>(num_layers), LayerKind::kDense);
  const std::vector<std::int64_t> pattern = config::expand_layer_pattern(moe_layer_freq, num_layers);
  PRIMUS_CHECK(pattern.size() == kinds.size(), "moe_layer_freq gives {} layers of {}", pattern.size(), num_layers);
  for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] = pattern[i] != 0 ? LayerKind::kMoe : LayerKind::kDense;
  return kinds;
}

namespace {

/// Rows of the embedding: as given, as many as there are tokens, or padded so that every tensor-parallel rank has as
/// many.
std::int64_t padded_vocab_size(const Experiment& experiment) {
  const std::int64_t vocab_size = experiment.get_int("vocab_size");
  if (const auto given = experiment.get_optional_int("padded_vocab_size")) return *given;
  if (!experiment.get_bool("pad_vocab_size")) return vocab_size;
  return round_up(vocab_size, experiment.get_int("make_vocab_size_divisible_by") *
                                  experiment.get_int("tensor_model_parallel_size"));
}

}  // namespace

ModelSpec build_model_spec(const Experiment& experiment) {
  ModelSpec spec;
  spec.hidden_size = experiment.get_int("hidden_size");
  spec.seq_length = experiment.get_int("seq_length");
  spec.vocab_size = experiment.get_int("vocab_size");
  spec.padded_vocab_size = padded_vocab_size(experiment);
  spec.dense_ffn_hidden_size = dense_ffn(experiment, spec.hidden_size);
  spec.norm_epsilon = experiment.get_double("layernorm_epsilon");
  spec.init_std = experiment.get_double("init_method_std");
  spec.num_mtp_layers = experiment.get_optional_int("mtp_num_layers").value_or(0);
  spec.mtp_loss_scale = experiment.get_double("mtp_loss_scaling_factor");
  spec.output_weight =
      experiment.get_bool("untie_embeddings_and_output_weights") ? OutputWeight::kOwn : OutputWeight::kTiedToEmbedding;
  spec.mtp_variant = {.detached = part(experiment.get_bool("mtp_detach_heads")),
                      .repeated = part(experiment.get_bool("mtp_use_repeated_layer")),
                      .mixed_hidden_states = part(experiment.get_bool("mtp_hsm"))};
  const std::int64_t num_layers = experiment.get_int("num_layers");
  if (experiment.get_bool("multi_latent_attention")) {
    const MlaSpec mla = mla_spec(experiment);
    spec.attention = mla;
    spec.rope = rope_spec(experiment, mla.qk_pos_emb_head_dim, RopeType::kYarn);
    if (experiment.get_bool("mla_use_nope")) spec.rope.type = RopeType::kNone;
  } else {
    const GqaSpec gqa = gqa_spec(experiment);
    spec.attention = gqa;
    spec.rope = rope_spec(experiment, gqa.head_dim, RopeType::kRope);
  }
  if (const auto num_experts = experiment.get_optional_int("num_experts")) {
    spec.layers = layer_kinds(experiment.setting("moe_layer_freq").value, num_layers);
    spec.moe = moe_spec(experiment, *num_experts, spec.dense_ffn_hidden_size);
  } else {
    spec.layers.assign(static_cast<std::size_t>(num_layers), LayerKind::kDense);
  }
  add_variants(experiment, spec);
  add_numerics(experiment, spec);
  return spec;
}

}  // namespace primus::model
