#pragma once
// Small random model descriptions for the layer tests.
#include <random>

#include "model/model_spec.hpp"
#include "model/saved_tensors.hpp"

namespace primus::test {

/// A model of one dense and one MoE layer whose sizes divide nothing; the seed chooses sizes and options.
inline model::ModelSpec random_spec(std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  };
  model::ModelSpec spec;
  spec.hidden_size = pick(5, 23);
  spec.seq_length = 1;
  spec.vocab_size = pick(11, 40);
  spec.padded_vocab_size = spec.vocab_size + pick(0, 9);
  spec.dense_ffn_hidden_size = pick(3, 17);
  spec.layers = {model::LayerKind::kDense, model::LayerKind::kMoe};
  spec.norm_epsilon = 1e-5;
  spec.init_std = 0.3;  // large enough that every path matters
  spec.output_weight = pick(0, 1) == 0 ? model::OutputWeight::kOwn : model::OutputWeight::kTiedToEmbedding;
  if (pick(0, 2) > 0) {
    model::MlaSpec mla;
    mla.num_heads = pick(1, 4);
    if (pick(0, 1) == 1) mla.q_lora_rank = pick(2, 9);
    mla.kv_lora_rank = pick(2, 9);
    mla.qk_head_dim = pick(1, 9);
    mla.qk_pos_emb_head_dim = 2 * pick(1, 4);
    mla.v_head_dim = pick(1, 9);
    spec.attention = mla;
    spec.rope = {.type = model::RopeType::kYarn,
                 .rotary_dim = mla.qk_pos_emb_head_dim,
                 .scaling_factor = 40.0,
                 .original_max_position = 64,
                 .mscale = 0.707,
                 .mscale_all_dim = pick(0, 1) == 1 ? 0.707 : 1.0};
  } else {
    model::GqaSpec gqa;
    gqa.num_query_groups = pick(1, 3);
    gqa.num_heads = gqa.num_query_groups * pick(1, 3);
    gqa.head_dim = 2 * pick(1, 5);
    spec.attention = gqa;
    spec.rope = {.type = model::RopeType::kRope, .rotary_dim = gqa.head_dim};
  }
  model::MoeSpec moe;
  moe.router.num_experts = pick(1, 9);
  moe.router.top_k = pick(1, std::min<std::int64_t>(4, moe.router.num_experts));
  moe.router.softmax_order = pick(0, 1) == 0 ? model::SoftmaxOrder::kPre : model::SoftmaxOrder::kPost;
  moe.router.scaling_factor = pick(0, 1) == 0 ? 1.0 : 2.5;
  moe.router.losses =
      std::array<model::RouterLosses, 3>{{{}, {.aux = 0.5}, {.seq_aux = 0.5}}}[static_cast<std::size_t>(pick(0, 2))];
  moe.ffn_hidden_size = pick(1, 13);
  moe.shared_ffn_hidden_size = pick(0, 1) == 0 ? 0 : pick(1, 9);
  spec.moe = moe;
  return spec;
}

/// Sparse attention, where attention is latent: an indexer in every layer, or in the first one and each other one.
inline void add_indexer(model::ModelSpec& spec, std::uint64_t seed) {
  auto* mla = std::get_if<model::MlaSpec>(&spec.attention);
  if (mla == nullptr) return;
  std::mt19937_64 generator(seed * 7919 + 3);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  };
  mla->indexer = model::IndexerSpec{.num_heads = pick(1, 4),
                                    .head_dim = mla->qk_pos_emb_head_dim + pick(0, 5),
                                    .top_k = pick(1, 9),
                                    .loss_coefficient = pick(0, 3) == 0 ? 0.0 : 0.4,
                                    .hadamard = model::Part::kAbsent};
  if (pick(0, 1) == 1) mla->indexer->sparse_loss = model::Part::kPresent;
  if (pick(0, 1) == 0) return;
  for (std::int64_t layer = 0; layer < spec.num_layers(); ++layer) {
    spec.choosing_layers.push_back(layer % 2 == 0 ? model::Part::kPresent : model::Part::kAbsent);
  }
}

/// Several residual streams; what does not go with them is taken away.
inline void add_streams(model::ModelSpec& spec, std::uint64_t seed) {
  std::mt19937_64 generator(seed * 5381 + 11);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  };
  spec.hyper =
      model::HyperSpec{.num_streams = pick(2, 5),
                       .sinkhorn_iterations = pick(0, 4),
                       .epsilon = pick(0, 1) == 0 ? 1e-6 : 1e-2,
                       .norm_epsilon = 1e-3,
                       .form = pick(0, 2) == 0 ? model::HyperSpec::Form::kMegatron : model::HyperSpec::Form::kDeepSeek,
                       .first_scale = pick(0, 1) == 0 ? 1.0 : 0.5};
  spec.residual_after_norm = model::Part::kAbsent;
}

/// Options of routing, experts and MLPs, half of them as they were. Those that change from one forward pass to the
/// next, or with the micro-batch, are left to tests of their own.
inline void randomise_mlp(model::ModelSpec& spec, std::uint64_t seed) {
  std::mt19937_64 generator(seed * 104729 + 7);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  };
  model::MoeSpec& moe = *spec.moe;
  model::RouterSpec& router = moe.router;
  using Function = model::ActivationSpec::Function;
  spec.activation.function =
      std::array{Function::kSilu, Function::kSilu,     Function::kQuickGelu,
                 Function::kGelu, Function::kTanhGelu, Function::kSquaredRelu}[static_cast<std::size_t>(pick(0, 5))];
  if (pick(0, 1) == 1) spec.mlp_gate = model::Part::kAbsent;
  if (spec.mlp_gate == model::Part::kPresent) {
    if (pick(0, 1) == 1) spec.activation.clamp = 0.8;
    if (pick(0, 1) == 1) spec.activation.linear_offset = 1.0;
  }
  moe.shared_gate = moe.shared_ffn_hidden_size > 0 && pick(0, 1) == 1 ? model::Part::kPresent : model::Part::kAbsent;
  router.score_function = std::array{model::ScoreFunction::kSoftmax, model::ScoreFunction::kSigmoid,
                                     model::ScoreFunction::kSqrtSoftplus}[static_cast<std::size_t>(pick(0, 2))];
  if (router.score_function != model::ScoreFunction::kSoftmax && pick(0, 1) == 1) {
    router.expert_bias = model::RouterSpec::ExpertBias::kOn;
  }
  if (pick(0, 1) == 1) {
    router.num_groups = pick(2, 4);
    router.num_experts = *router.num_groups * pick(2, 3);
    router.group_top_k = pick(1, *router.num_groups);
    router.top_k = *router.group_top_k * pick(1, router.num_experts / *router.num_groups);
    if (pick(0, 1) == 1) router.group_score = model::RouterSpec::GroupScore::kMax;
  }
  if (pick(0, 1) == 1) router.losses = {.aux = 0.2, .seq_aux = 0.3, .global_aux = 0.1, .z = 0.01};
  if (pick(0, 2) == 0) router.logit_softcap = 2.0;
  if (pick(0, 3) == 0) moe.probabilities_on = model::MoeSpec::ProbabilitiesOn::kInput;
}

/// Norms, dropout, scales and bounds on the way through the model, each in half of the specs.
inline void randomise_numerics(model::ModelSpec& spec, std::uint64_t seed) {
  std::mt19937_64 generator(seed * 7907 + 3);
  const auto is_chosen = [&] { return std::uniform_int_distribution<int>(0, 1)(generator) == 1; };
  const auto part = [&] { return is_chosen() ? model::Part::kPresent : model::Part::kAbsent; };
  if (is_chosen()) spec.norm = model::NormKind::kLayer;
  spec.norm_around_one = part();
  spec.residual_after_norm = part();
  if (is_chosen()) spec.dropout.hidden = 0.3;
  if (is_chosen()) spec.dropout.attention = 0.4;
  if (is_chosen()) spec.logits.softcap = 1.5;
  if (is_chosen()) {
    spec.width_scaling = model::WidthScaling{
        .width = 3.0, .embedding = 1.7, .attention_power = is_chosen() ? 1.0 : 0.7, .base_head_dim = 4.0};
    spec.logits.scale = 0.4;
  }
  if (auto* gqa = std::get_if<model::GqaSpec>(&spec.attention)) gqa->qk_norms = part();
  if (is_chosen()) {
    spec.activation = {.function = model::ActivationSpec::Function::kSitu, .clamp = {}, .situ_beta = 0.8};
    if (is_chosen()) spec.activation.situ_linear_beta = 1.3;
    spec.mlp_gate = model::Part::kPresent;
  }
  if (is_chosen()) spec.moe->latent = model::LatentExpertSpec{.size = 5, .norm = part()};
  spec.mtp_variant = {.detached = part(), .repeated = part(), .mixed_hidden_states = part()};
  if (spec.mlp_gate == model::Part::kPresent && is_chosen()) {
    spec.moe->ffn_hidden_size = 6;
    spec.moe->glu_interleave = is_chosen() ? 3 : 2;
    if (spec.moe->shared_ffn_hidden_size > 0) {
      spec.moe->shared_ffn_hidden_size = 4;
      spec.moe->shared_glu_interleave = is_chosen() ? 1 : 2;
    }
  }
}

/// random_spec, every second one with the options of randomise_mlp.
inline model::ModelSpec random_mlp_spec(std::uint64_t seed) {
  model::ModelSpec spec = random_spec(seed);
  if (seed % 2 == 1) randomise_mlp(spec, seed);
  return spec;
}

/// Batch sizes with one token, one sequence, and odd ones.
inline model::BatchShape random_batch(std::uint64_t seed) {
  std::mt19937_64 generator(seed * 7919 + 1);
  if (seed % 5 == 0) return {1, 1};
  return {std::uniform_int_distribution<std::int64_t>(1, 3)(generator),
          std::uniform_int_distribution<std::int64_t>(1, 19)(generator)};
}

}  // namespace primus::test
