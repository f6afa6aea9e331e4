#pragma once
// Kernels of the router on raw pointers; no torch headers. All values fp32.
#include "ops/gpu/runtime.hpp"
#include "ops/router/router_options.hpp"

namespace primus::ops::cuda {

inline constexpr std::int64_t kMaxRouterExperts = 1024;

struct RouterShape {
  std::int64_t tokens;
  int experts, top_k;
  std::int64_t groups;  // that the balancing loss takes means over: sequences, or the micro-batch as one
  std::int64_t tokens_per_group;

  // Tokens of one block: part of the balancing loss's definition, so that its bits depend on nothing else.
  static constexpr int kUnit = 64;
  constexpr std::int64_t units_per_group() const { return (tokens_per_group + kUnit - 1) / kUnit; }
  constexpr std::int64_t units() const { return groups * units_per_group(); }
};

inline constexpr int kMaxRouterGroups = 64;
inline constexpr float kSumEpsilon = 1e-20F;  // Megatron's, under a sum of scores

/// Groups of neighbouring experts of which a token's choices come from the best; count 1: no limit.
struct RouterGroups {
  int count;
  int num_kept;
  int num_summed;  // experts whose sum is a group's score
};

struct RouterForward {
  const float* logits;
  const float* bias;  // [E], added to the scores for the choice; nullptr: none
  ScoreFunction score;
  SoftmaxOrder order;
  Selection selection;
  RouterGroups groups;
  float scaling;
  double slope_factor;  // of n_e in the slope of a group's balancing loss
  double z_factor;      // of Σ logsumexp² in the z loss
  std::int32_t* index;
  float* prob;
  std::int32_t* count;
  float* loss_4;
  int balance_place, z_place;  // in loss_4
  float* slope;                // [groups, E]; nullptr without a balancing loss
  float* unit_probability;     // scratch [units, E], likewise
  std::int32_t* unit_count;    // scratch [units, E]
  std::int32_t* unit_balance;  // scratch [units, E]: plain top k of the scores; nullptr where the choices are it
  double* unit_square_lse;     // scratch [units]; nullptr without a z loss
};

void launch_router_forward(RouterShape shape, const RouterForward& tensors, gpu::Stream stream);

struct RouterBackward {
  const float* logits;
  const std::int32_t* index;
  const float* prob;
  const float* dprob;
  ScoreFunction score;
  SoftmaxOrder order;
  float scaling;
  const float* slope;  // forward's; nullptr without a balancing loss
  float loss_scale;    // the losses' own gradient
  float z_factor;      // 2c/n, scaled; 0: without a z loss
  float* dlogits;
};

void launch_router_backward(RouterShape shape, const RouterBackward& tensors, gpu::Stream stream);

}  // namespace primus::ops::cuda
