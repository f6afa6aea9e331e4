#pragma once
// Building blocks of the router's kernels. kLanes neighbouring lanes share a token, each with kValues of its logits in
// registers: expert e belongs to lane e % kLanes.
#include "ops/gpu/device.cuh"
#include "ops/router/router_cuda.hpp"

namespace primus::ops::cuda::router {

constexpr int kUnit = RouterShape::kUnit;
constexpr float kInfinity = __builtin_inff();

template <int kLanesArg, int kValuesArg>
struct Layout {
  static constexpr int kLanes = kLanesArg;
  static constexpr int kValues = kValuesArg;
  static constexpr int kBlock = 512;
  static constexpr int kTokensPerBlock = kBlock / kLanes;  // at a time
};

/// Calls body(Layout) with the smallest layout that holds all experts.
template <typename Body>
void with_layout(int experts, const Body& body) {
  if (experts <= 32) {
    body(Layout<8, 4>{});
  } else if (experts <= 64) {
    body(Layout<8, 8>{});
  } else if (experts <= 128) {
    body(Layout<16, 8>{});
  } else if (experts <= 256) {
    body(Layout<32, 8>{});
  } else if (experts <= 512) {
    body(Layout<32, 16>{});
  } else {
    body(Layout<32, 32>{});
  }
}

/// Where a thread works: its token, if there is one, and its lane.
struct Place {
  std::int64_t token;
  bool has_token;
  int lane;
};

/// This lane's logits; −inf past the last expert and without a token.
template <typename L>
__device__ void load_logits(RouterShape shape, const Place& place, const float* logits, float (&value)[L::kValues]) {
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    const int e = j * L::kLanes + place.lane;
    value[j] = place.has_token && e < shape.experts ? logits[place.token * shape.experts + e] : -kInfinity;
  }
}

/// Largest logit of the token; NaN when it has no softmax: a NaN, +inf, or nothing but −inf.
template <typename L>
__device__ float row_maximum(const float (&value)[L::kValues]) {
  float largest = -kInfinity;
  int bad = 0;
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    bad |= value[j] != value[j] ? 1 : 0;
    largest = value[j] > largest ? value[j] : largest;
  }
  largest = gpu::lane_max<L::kLanes>(largest);
  bad = gpu::lane_max<L::kLanes>(bad);
  return bad != 0 || fabsf(largest) == kInfinity ? __uint_as_float(0x7FC00000U) : largest;
}

/// out[j] = exp(value[j] − shift); gives the token's sum.
template <typename L>
__device__ float exponentials(const float (&value)[L::kValues], float shift, float (&out)[L::kValues]) {
  float sum = 0.0F;
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    out[j] = __expf(value[j] - shift);
    sum += out[j];
  }
  return gpu::lane_sum<L::kLanes>(sum);
}

/// Bits that order like the values: larger value, larger number; never 0 for a number.
__device__ inline std::uint32_t ordered_bits(float value) {
  const std::uint32_t bits = gpu::as_bits(value + 0.0F);  // −0 as +0: they are equal
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float ordered_value(std::uint32_t ordered) {
  return gpu::as_float((ordered & 0x80000000U) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}

struct Choice {
  float value;
  int expert;
};

/// The largest candidate of the token, of equal ones the lowest expert; `ordered` loses it.
template <typename L>
__device__ Choice take_largest(int lane, std::uint32_t (&ordered)[L::kValues]) {
  std::uint32_t best = 0;
  int best_j = 0;
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    best_j = ordered[j] > best ? j : best_j;
    best = ordered[j] > best ? ordered[j] : best;
  }
  const std::uint32_t own_rank = 0xFFFFFFFFU - static_cast<std::uint32_t>(best_j * L::kLanes + lane);
  const std::uint64_t key = gpu::lane_max<L::kLanes>((static_cast<std::uint64_t>(best) << 32U) | own_rank);
  const bool is_own = static_cast<std::uint32_t>(key) == own_rank;
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) ordered[j] = is_own && j == best_j ? 0U : ordered[j];
  return {ordered_value(static_cast<std::uint32_t>(key >> 32U)),
          static_cast<int>(0xFFFFFFFFU - static_cast<std::uint32_t>(key))};
}

/// The score of one logit that looks at no other expert; 0 for −inf.
__device__ inline float sigmoid(float logit) {
  return 1.0F / (1.0F + __expf(-logit));
}
__device__ inline float score_of(ScoreFunction function, float logit) {
  if (function == ScoreFunction::kSigmoid) return sigmoid(logit);
  // ln(1 + e^l) without overflow, and without losing e^l beside the 1.
  return sqrtf(fmaxf(logit, 0.0F) + log1pf(__expf(-fabsf(logit))));
}

/// d score / d logit. σ(−l) is 1 − σ(l) without cancellation.
__device__ inline float score_slope(ScoreFunction function, float logit, float score) {
  if (function == ScoreFunction::kSigmoid) return score * sigmoid(-logit);
  return score > 0.0F ? sigmoid(logit) / (2.0F * score) : 0.0F;
}

/// out[j] = the score of value[j]; gives the token's sum.
template <typename L>
__device__ float scores(ScoreFunction function, const float (&value)[L::kValues], float (&out)[L::kValues]) {
  float sum = 0.0F;
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    out[j] = score_of(function, value[j]);
    sum += out[j];
  }
  return gpu::lane_sum<L::kLanes>(sum);
}

/// Leaves of the candidates those of the token's best groups: the others become 0, which is never taken.
template <typename L>
__device__ void keep_best_groups(RouterShape shape, RouterGroups groups, int lane,
                                 std::uint32_t (&ordered)[L::kValues]) {
  using G = Layout<L::kLanes, kMaxRouterGroups / 8>;
  const int size = shape.experts / groups.count;
  std::uint32_t group[G::kValues] = {};
  for (int g = 0; g < groups.count; ++g) {
    std::uint32_t member[L::kValues];
#pragma unroll
    for (int j = 0; j < L::kValues; ++j) member[j] = (j * L::kLanes + lane) / size == g ? ordered[j] : 0U;
    float score = 0.0F;
    for (int i = 0; i < groups.num_summed; ++i) score += take_largest<L>(lane, member).value;
#pragma unroll
    for (int s = 0; s < G::kValues; ++s) group[s] = s * L::kLanes + lane == g ? ordered_bits(score) : group[s];
  }
  std::uint64_t kept = 0;
  for (int i = 0; i < groups.num_kept; ++i) kept |= std::uint64_t{1} << take_largest<G>(lane, group).expert;
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    const int e = j * L::kLanes + lane;
    ordered[j] = e < shape.experts && ((kept >> (e / size)) & 1U) != 0 ? ordered[j] : 0U;
  }
}

}  // namespace primus::ops::cuda::router
