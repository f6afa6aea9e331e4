// kLanes neighbouring lanes share a token, each with kValues of its logits in registers: expert e belongs to lane e %
// kLanes.
#include "ops/gpu/device.cuh"
#include "ops/router/router_cuda.hpp"

namespace primus::ops::cuda {
namespace {

using gpu::blocks_for;

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
__device__ std::uint32_t ordered_bits(float value) {
  const std::uint32_t bits = gpu::as_bits(value + 0.0F);  // −0 as +0: they are equal
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ float ordered_value(std::uint32_t ordered) {
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

/// Choice k of a token under forced balance.
__device__ Choice choice_in_turn(RouterShape shape, const Place& place, const RouterForward& t, int k) {
  const int expert = static_cast<int>((place.token * shape.top_k + k) % shape.experts);
  return {place.has_token ? t.logits[place.token * shape.experts + expert] : 0.0F, expert};
}

/// The token's choices into index_K and prob_K (shared memory). `maximum`, `sum`: of the whole row's exponentials.
template <typename L>
__device__ void choose(RouterShape shape, const Place& place, const RouterForward& t, const float (&value)[L::kValues],
                       float maximum, float sum, std::int32_t* index_K, float* prob_K) {
  std::uint32_t ordered[L::kValues];
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    ordered[j] = j * L::kLanes + place.lane < shape.experts ? ordered_bits(value[j]) : 0U;
  }
  float denominator = t.order == SoftmaxOrder::kPost ? 0.0F : sum;
  const bool is_bad = maximum != maximum;
  const bool in_turn = t.selection == Selection::kForcedBalance;
  if (in_turn && t.order == SoftmaxOrder::kPost && !is_bad) {
    // A softmax over the chosen alone is taken from their own maximum, or it could vanish.
    maximum = -kInfinity;
    for (int k = 0; k < shape.top_k; ++k) maximum = fmaxf(maximum, choice_in_turn(shape, place, t, k).value);
  }
  for (int k = 0; k < shape.top_k; ++k) {
    const Choice choice = in_turn ? choice_in_turn(shape, place, t, k) : take_largest<L>(place.lane, ordered);
    const float exponential = __expf(choice.value - maximum);
    if (t.order == SoftmaxOrder::kPost) denominator += exponential;
    if (k % L::kLanes == place.lane) {
      // Without a softmax any expert that exists; the probability, NaN, says that there is no choice.
      index_K[k] = is_bad ? k : choice.expert;
      prob_K[k] = exponential;
    }
  }
  const float factor = t.scaling / denominator;
  for (int k = place.lane; k < shape.top_k; k += L::kLanes) prob_K[k] *= factor;
}

/// What a block keeps in shared memory for its unit.
struct UnitMemory {
  int* count_E;
  float* probability_WE;  // by 32 lanes
  std::int32_t* index_UK;
  float* prob_UK;

  static std::size_t bytes(RouterShape shape, int block) {
    return 4 * (static_cast<std::size_t>(shape.experts) * (1 + block / 32) + std::size_t{2} * kUnit * shape.top_k);
  }
  __device__ static UnitMemory at(std::uint32_t* shared, RouterShape shape, int block) {
    std::uint32_t* choices = shared + shape.experts * (1 + block / 32);
    return {reinterpret_cast<int*>(shared), reinterpret_cast<float*>(shared + shape.experts),
            reinterpret_cast<std::int32_t*>(choices), reinterpret_cast<float*>(choices + kUnit * shape.top_k)};
  }
};

/// Σ over the tokens of 32 lanes of their probabilities, into the row of these lanes.
template <typename L>
__device__ void store_probabilities(RouterShape shape, int lane, const float (&probability)[L::kValues],
                                    float* probability_WE) {
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    float sum = probability[j];
    for (int distance = L::kLanes; distance < 32; distance *= 2) sum += gpu::exchange<32>(sum, distance);
    const int e = j * L::kLanes + lane;
    if (threadIdx.x % 32 < L::kLanes && e < shape.experts) probability_WE[threadIdx.x / 32 * shape.experts + e] = sum;
  }
}

/// A block's choices, counts and sums, to where they belong.
__device__ void store_unit(RouterShape shape, const RouterForward& t, const UnitMemory& unit, std::int64_t first,
                           int tokens) {
  const int choices = tokens * shape.top_k;
  for (int i = threadIdx.x; i < choices; i += blockDim.x) {
    t.index[first * shape.top_k + i] = unit.index_UK[i];
    t.prob[first * shape.top_k + i] = unit.prob_UK[i];
    atomicAdd(&unit.count_E[unit.index_UK[i]], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < shape.experts; e += blockDim.x) {
    const std::int64_t at = std::int64_t{blockIdx.x} * shape.experts + e;
    t.unit_count[at] = unit.count_E[e];
    if (t.unit_probability == nullptr) continue;
    float total = 0.0F;
    for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) total += unit.probability_WE[w * shape.experts + e];
    t.unit_probability[at] = total;
  }
}

/// A block for each unit: kUnit tokens of one group.
template <typename L>
__global__ void __launch_bounds__(L::kBlock) forward_kernel(RouterShape shape, RouterForward t) {
  extern __shared__ std::uint32_t shared[];
  const UnitMemory unit = UnitMemory::at(shared, shape, L::kBlock);
  const std::int64_t group = blockIdx.x / shape.units_per_group();
  const std::int64_t within = blockIdx.x % shape.units_per_group() * kUnit;
  const std::int64_t left = shape.tokens_per_group - within;
  const int tokens = static_cast<int>(left < kUnit ? left : kUnit);
  const std::int64_t first = group * shape.tokens_per_group + within;
  for (int e = threadIdx.x; e < shape.experts; e += L::kBlock) unit.count_E[e] = 0;
  float probability[L::kValues] = {};
  for (int round = 0; round < kUnit; round += L::kTokensPerBlock) {
    const int u = round + static_cast<int>(threadIdx.x) / L::kLanes;
    const Place place{first + u, u < tokens, static_cast<int>(threadIdx.x) % L::kLanes};
    float value[L::kValues];
    float exponential[L::kValues];
    load_logits<L>(shape, place, t.logits, value);
    const float maximum = row_maximum<L>(value);
    const float sum = exponentials<L>(value, maximum, exponential);
    choose<L>(shape, place, t, value, maximum, sum, unit.index_UK + u * shape.top_k, unit.prob_UK + u * shape.top_k);
    const float inverse = 1.0F / sum;
#pragma unroll
    for (int j = 0; j < L::kValues; ++j) probability[j] += place.has_token ? exponential[j] * inverse : 0.0F;
  }
  if (t.unit_probability != nullptr) {
    store_probabilities<L>(shape, static_cast<int>(threadIdx.x) % L::kLanes, probability, unit.probability_WE);
  }
  __syncthreads();
  store_unit(shape, t, unit, first, tokens);
}

constexpr int kColumns = 32;
constexpr int kSlices = 32;

/// One block: each expert's tokens, the balancing loss and its slopes. kSlices threads share a column of experts: so
/// many for each of the groups that are summed at a time, whose sums are then added up in order.
__global__ void __launch_bounds__(kColumns* kSlices) finish_kernel(RouterShape shape, RouterForward t) {
  __shared__ std::int32_t counts[kSlices][kColumns];
  __shared__ double probabilities[kSlices][kColumns];
  const int column = threadIdx.x % kColumns;
  const int slice = threadIdx.x / kColumns;
  const int groups_at_once = shape.groups < kSlices ? static_cast<int>(shape.groups) : kSlices;
  const int slices_per_group = kSlices / groups_at_once;
  double loss = 0.0;  // of the column, complete in slice 0
  for (int tile = 0; tile < shape.experts; tile += kColumns) {
    const int expert = tile + column;
    std::int32_t expert_count = 0;
    for (std::int64_t first_group = 0; first_group < shape.groups; first_group += groups_at_once) {
      const std::int64_t group = first_group + slice / slices_per_group;
      std::int32_t count = 0;
      double probability = 0.0;
      if (slice / slices_per_group < groups_at_once && group < shape.groups && expert < shape.experts) {
#pragma unroll 4
        for (std::int64_t u = slice % slices_per_group; u < shape.units_per_group(); u += slices_per_group) {
          const std::int64_t at = (group * shape.units_per_group() + u) * shape.experts + expert;
          count += t.unit_count[at];
          if (t.unit_probability != nullptr) probability += static_cast<double>(t.unit_probability[at]);
        }
      }
      __syncthreads();  // the last round's sums have been read
      counts[slice][column] = count;
      probabilities[slice][column] = probability;
      __syncthreads();
      for (int g = 0; slice == 0 && g < groups_at_once; ++g) {
        std::int32_t group_count = 0;
        double group_probability = 0.0;
        for (int s = g * slices_per_group; s < (g + 1) * slices_per_group; ++s) {
          group_count += counts[s][column];
          group_probability += probabilities[s][column];
        }
        expert_count += group_count;
        if (t.slope == nullptr || first_group + g >= shape.groups || expert >= shape.experts) continue;
        const double slope = t.slope_factor * static_cast<double>(group_count);
        t.slope[(first_group + g) * shape.experts + expert] = static_cast<float>(slope);
        loss += group_probability * slope;
      }
    }
    if (slice == 0 && expert < shape.experts) t.count[expert] = expert_count;
  }
  if (slice != 0) return;
  loss = gpu::lane_sum<kColumns>(loss);
  if (threadIdx.x == 0) *t.balance_loss = static_cast<float>(loss);
}

/// Σ_k prob · dprob of a token.
template <typename L>
__device__ float chosen_product(RouterShape shape, const Place& place, const RouterBackward& t) {
  float dot = 0.0F;
  for (int k = place.lane; place.has_token && k < shape.top_k; k += L::kLanes) {
    dot += t.prob[place.token * shape.top_k + k] * t.dprob[place.token * shape.top_k + k];
  }
  return gpu::lane_sum<L::kLanes>(dot);
}

/// Through the softmax over all experts: P_e · (g_e − Σ g P), where the pre-softmax order adds its own Σ to the sum.
template <typename L>
__device__ void softmax_gradient(RouterShape shape, const Place& place, const RouterBackward& t, float dot,
                                 float (&value)[L::kValues]) {
  const float maximum = row_maximum<L>(value);
  const float inverse = 1.0F / exponentials<L>(value, maximum, value);
  float gradient[L::kValues];  // of the balancing loss with regard to P_e: the same for every token of a group
  float sum = 0.0F;
  const std::int64_t group = shape.tokens_per_group > 0 ? place.token / shape.tokens_per_group : 0;
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    const int e = j * L::kLanes + place.lane;
    value[j] *= inverse;
    gradient[j] = t.slope != nullptr && place.has_token && e < shape.experts
                      ? t.loss_scale * t.slope[group * shape.experts + e]
                      : 0.0F;
    sum += gradient[j] * value[j];
  }
  sum = gpu::lane_sum<L::kLanes>(sum) + (t.order == SoftmaxOrder::kPost ? 0.0F : dot);
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) value[j] *= gradient[j] - sum;
}

template <typename L>
__global__ void __launch_bounds__(L::kBlock) backward_kernel(RouterShape shape, RouterBackward t) {
  const std::int64_t token = std::int64_t{blockIdx.x} * L::kTokensPerBlock + threadIdx.x / L::kLanes;
  const Place place{token, token < shape.tokens, static_cast<int>(threadIdx.x) % L::kLanes};
  const bool is_post = t.order == SoftmaxOrder::kPost;
  const float dot = chosen_product<L>(shape, place, t);
  float value[L::kValues] = {};
  if (t.slope != nullptr || !is_post) {
    load_logits<L>(shape, place, t.logits, value);
    softmax_gradient<L>(shape, place, t, dot, value);
  }
  if (!place.has_token) return;
  // Through the chosen: the post-softmax order has its sum over them alone, Σ_k (prob / scaling) · dprob.
  const float chosen_dot = is_post && t.scaling != 0.0F ? dot / t.scaling : 0.0F;
  for (std::int64_t i = place.token * shape.top_k; i < (place.token + 1) * shape.top_k; ++i) {
    const int expert = t.index[i];
    const float added = t.prob[i] * (t.dprob[i] - chosen_dot);
#pragma unroll
    for (int j = 0; j < L::kValues; ++j) value[j] += expert == j * L::kLanes + place.lane ? added : 0.0F;
  }
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    const int e = j * L::kLanes + place.lane;
    if (e < shape.experts) t.dlogits[place.token * shape.experts + e] = value[j];
  }
}

}  // namespace

void launch_router_forward(RouterShape shape, const RouterForward& tensors, gpu::Stream stream) {
  if (shape.tokens > 0) {
    with_layout(shape.experts, [&](auto layout) {
      using L = decltype(layout);
      const std::size_t shared = UnitMemory::bytes(shape, L::kBlock);
      PRIMUS_CUDA_CHECK(gpu::allow_shared(forward_kernel<L>, shared));
      forward_kernel<L><<<static_cast<unsigned>(shape.units()), L::kBlock, shared, stream>>>(shape, tensors);
    });
  }
  finish_kernel<<<1, kColumns * kSlices, 0, stream>>>(shape, tensors);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

void launch_router_backward(RouterShape shape, const RouterBackward& tensors, gpu::Stream stream) {
  if (shape.tokens == 0) return;
  with_layout(shape.experts, [&](auto layout) {
    using L = decltype(layout);
    backward_kernel<L><<<blocks_for(shape.tokens, L::kTokensPerBlock), L::kBlock, 0, stream>>>(shape, tensors);
  });
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

}  // namespace primus::ops::cuda
