#include "model/model_spec.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "config/layer_pattern.hpp"

namespace primus::model {
namespace {

using config::Experiment;

RopeSpec rope_spec(const Experiment& experiment, std::int64_t rotary_dim, RopeType default_type) {
  RopeSpec rope;
  rope.rotary_dim = rotary_dim;
  const std::optional<std::string> type = experiment.get_optional_string("rope_type");
  rope.type = type ? (*type == "yarn" ? RopeType::kYarn : RopeType::kRope) : default_type;  // decision 8
  rope.base = experiment.get_double("rotary_base");
  rope.scaling_factor = experiment.get_double("rotary_scaling_factor");
  rope.original_max_position =
      experiment.get_optional_int("original_max_position_embeddings").value_or(rope.original_max_position);
  rope.beta_fast = experiment.get_double("beta_fast");
  rope.beta_slow = experiment.get_double("beta_slow");
  rope.mscale = experiment.get_double("mscale");
  rope.mscale_all_dim = experiment.get_double("mscale_all_dim");
  return rope;
}

MlaSpec mla_spec(const Experiment& experiment) {
  return MlaSpec{.num_heads = experiment.get_int("num_attention_heads"),
                 .q_lora_rank = experiment.get_optional_int("q_lora_rank"),
                 .kv_lora_rank = experiment.get_int("kv_lora_rank"),
                 .qk_head_dim = experiment.get_int("qk_head_dim"),
                 .qk_pos_emb_head_dim = experiment.get_int("qk_pos_emb_head_dim"),
                 .v_head_dim = experiment.get_int("v_head_dim")};
}

GqaSpec gqa_spec(const Experiment& experiment) {
  GqaSpec gqa;
  gqa.num_heads = experiment.get_int("num_attention_heads");
  gqa.num_query_groups = experiment.get_bool("group_query_attention")
                             ? experiment.get_optional_int("num_query_groups").value_or(gqa.num_heads)
                             : gqa.num_heads;
  gqa.head_dim = experiment.get_optional_int("kv_channels").value_or(experiment.get_int("hidden_size") / gqa.num_heads);
  return gqa;
}

ScoreFunction score_function(const std::string& name) {
  if (name == "softmax") return ScoreFunction::kSoftmax;
  if (name == "sigmoid") return ScoreFunction::kSigmoid;
  PRIMUS_CHECK(name == "sqrtsoftplus", "moe_router_score_function '{}' passed validation", name);
  return ScoreFunction::kSqrtSoftplus;
}

LoadBalancing load_balancing(const std::string& name) {
  if (name == "none") return LoadBalancing::kNone;
  if (name == "aux_loss") return LoadBalancing::kAuxLoss;
  if (name == "seq_aux_loss") return LoadBalancing::kSeqAuxLoss;
  if (name == "global_aux_loss") return LoadBalancing::kGlobalAuxLoss;
  if (name == "sinkhorn") return LoadBalancing::kSinkhorn;
  PRIMUS_CHECK(name == "quantile_balancing", "moe_router_load_balancing_type '{}' passed validation", name);
  return LoadBalancing::kQuantile;
}

RouterSpec router_spec(const Experiment& experiment, std::int64_t num_experts) {
  RouterSpec router;
  router.num_experts = num_experts;
  router.top_k = experiment.get_int("moe_router_topk");
  router.score_function = score_function(experiment.get_string("moe_router_score_function"));
  router.softmax_order = experiment.get_bool("moe_router_pre_softmax") ? SoftmaxOrder::kPre : SoftmaxOrder::kPost;
  router.scaling_factor = experiment.get_optional_double("moe_router_topk_scaling_factor").value_or(1.0);
  router.load_balancing = load_balancing(experiment.get_string("moe_router_load_balancing_type"));
  router.aux_loss_coefficient = experiment.get_double("moe_aux_loss_coeff");
  router.num_groups = experiment.get_optional_int("moe_router_num_groups");
  router.group_top_k = experiment.get_optional_int("moe_router_group_topk");
  router.balance = experiment.get_bool("moe_router_force_load_balancing") ? RouterSpec::Balance::kForced
                                                                          : RouterSpec::Balance::kLearnt;
  router.expert_bias =
      experiment.get_bool("moe_router_enable_expert_bias") ? RouterSpec::ExpertBias::kOn : RouterSpec::ExpertBias::kOff;
  return router;
}

/// Megatron's default: 4·hidden, and with a gated activation 2/3 of it, rounded to 64.
std::int64_t dense_ffn(const Experiment& experiment, std::int64_t hidden_size) {
  if (const auto width = experiment.get_optional_int("ffn_hidden_size")) return *width;
  return experiment.get_bool("swiglu") ? hidden_size * 4 * 2 / 3 / 64 * 64 : hidden_size * 4;
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::int64_t ModelSpec::num_moe_layers() const {
  return std::count(layers.begin(), layers.end(), LayerKind::kMoe);
}

std::int64_t ModelSpec::num_heads() const {
  return std::visit([](const auto& attention_spec) { return attention_spec.num_heads; }, attention);
}

std::vector<LayerKind> layer_kinds(const config::Value& moe_layer_freq, std::int64_t num_layers) {
  std::vector<LayerKind> kinds(static_cast<std::size_t>(num_layers), LayerKind::kDense);
  const std::vector<std::int64_t> pattern = config::expand_layer_pattern(moe_layer_freq, num_layers);
  PRIMUS_CHECK(pattern.size() == kinds.size(), "moe_layer_freq gives {} layers of {}", pattern.size(), num_layers);
  for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] = pattern[i] != 0 ? LayerKind::kMoe : LayerKind::kDense;
  return kinds;
}

ModelSpec build_model_spec(const Experiment& experiment) {
  ModelSpec spec;
  spec.hidden_size = experiment.get_int("hidden_size");
  spec.seq_length = experiment.get_int("seq_length");
  spec.vocab_size = experiment.get_int("vocab_size");
  const std::int64_t tensor_parallel = experiment.get_int("tensor_model_parallel_size");
  spec.padded_vocab_size =
      round_up(spec.vocab_size, experiment.get_int("make_vocab_size_divisible_by") * tensor_parallel);
  spec.dense_ffn_hidden_size = dense_ffn(experiment, spec.hidden_size);
  spec.norm_epsilon = experiment.get_double("layernorm_epsilon");
  spec.init_std = experiment.get_double("init_method_std");
  spec.num_mtp_layers = experiment.get_optional_int("mtp_num_layers").value_or(0);
  spec.output_weight =
      experiment.get_bool("untie_embeddings_and_output_weights") ? OutputWeight::kOwn : OutputWeight::kTiedToEmbedding;
  const std::int64_t num_layers = experiment.get_int("num_layers");
  if (experiment.get_bool("multi_latent_attention")) {
    const MlaSpec mla = mla_spec(experiment);
    spec.attention = mla;
    spec.rope = rope_spec(experiment, mla.qk_pos_emb_head_dim, RopeType::kYarn);
  } else {
    const GqaSpec gqa = gqa_spec(experiment);
    spec.attention = gqa;
    spec.rope = rope_spec(experiment, gqa.head_dim, RopeType::kRope);
  }
  if (const auto num_experts = experiment.get_optional_int("num_experts")) {
    spec.layers = layer_kinds(experiment.setting("moe_layer_freq").value, num_layers);
    MoeSpec moe;
    moe.router = router_spec(experiment, *num_experts);
    moe.ffn_hidden_size = experiment.get_optional_int("moe_ffn_hidden_size").value_or(spec.dense_ffn_hidden_size);
    moe.shared_ffn_hidden_size = experiment.get_optional_int("moe_shared_expert_intermediate_size").value_or(0);
    spec.moe = moe;
  } else {
    spec.layers.assign(static_cast<std::size_t>(num_layers), LayerKind::kDense);
  }
  return spec;
}

}  // namespace primus::model
