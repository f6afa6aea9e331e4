#include "ops/router/router_device.cuh"

namespace primus::ops::cuda {
namespace {

using namespace router;
using gpu::blocks_for;

constexpr int kUnit = RouterShape::kUnit;

/// Choice k of a token under forced balance.
__device__ Choice choice_in_turn(RouterShape shape, const Place& place, const RouterForward& t, int k) {
  const int expert = static_cast<int>((place.token * shape.top_k + k) % shape.experts);
  return {place.has_token ? t.logits[place.token * shape.experts + expert] : 0.0F, expert};
}

/// What the experts are chosen by: the logits, or what their order may not be taken from them. `weight`: exponentials
/// or scores.
template <typename L>
__device__ void candidates(RouterShape shape, const RouterForward& t, int lane, const float (&value)[L::kValues],
                           const float (&weight)[L::kValues], std::uint32_t (&ordered)[L::kValues]) {
  const bool has_groups = t.groups.count > 1;
  // Sums of probabilities rank groups in another way than sums of logits.
  const bool by_weight = t.score != ScoreFunction::kSoftmax || (has_groups && t.order == SoftmaxOrder::kPre);
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    const int e = j * L::kLanes + lane;
    float candidate = by_weight ? weight[j] : value[j];
    if (t.bias != nullptr && e < shape.experts) candidate += t.bias[e];
    ordered[j] = e < shape.experts ? ordered_bits(candidate) : 0U;
  }
  if (has_groups) keep_best_groups<L>(shape, t.groups, lane, ordered);
}

/// The token's choices into index_K and prob_K (shared memory). `maximum`, `sum`: of the whole row's exponentials.
template <typename L>
__device__ void choose(RouterShape shape, const Place& place, const RouterForward& t, const float (&value)[L::kValues],
                       const float (&weight)[L::kValues], float maximum, float sum, std::int32_t* index_K,
                       float* prob_K) {
  std::uint32_t ordered[L::kValues];
  candidates<L>(shape, t, place.lane, value, weight, ordered);
  const bool is_softmax = t.score == ScoreFunction::kSoftmax;
  const bool sums_chosen = is_softmax ? t.order == SoftmaxOrder::kPost : shape.top_k > 1;
  float denominator = is_softmax ? sum : 1.0F;
  if (sums_chosen) denominator = is_softmax ? 0.0F : kSumEpsilon;
  const bool is_bad = maximum != maximum;
  const bool in_turn = t.selection == Selection::kForcedBalance;
  if (in_turn && is_softmax && sums_chosen && !is_bad) {
    // A softmax over the chosen alone is taken from their own maximum, or it could vanish.
    maximum = -kInfinity;
    for (int k = 0; k < shape.top_k; ++k) maximum = fmaxf(maximum, choice_in_turn(shape, place, t, k).value);
  }
  for (int k = 0; k < shape.top_k; ++k) {
    const int expert =
        in_turn ? choice_in_turn(shape, place, t, k).expert : take_largest<L>(place.lane, ordered).expert;
    const float logit = place.has_token && !is_bad ? t.logits[place.token * shape.experts + expert] : 0.0F;
    const float chosen = is_softmax ? __expf(logit - maximum) : score_of(t.score, logit);
    if (sums_chosen) denominator += chosen;
    if (k % L::kLanes == place.lane) {
      // Without a softmax any expert that exists; the probability, NaN, says that there is no choice.
      index_K[k] = is_bad ? k : expert;
      prob_K[k] = chosen;
    }
  }
  const float factor = is_bad ? maximum : t.scaling / denominator;
  for (int k = place.lane; k < shape.top_k; k += L::kLanes) prob_K[k] *= factor;
}

/// Counts the token's plain top k of the scores, without bias and groups: what the balancing losses look at.
template <typename L>
__device__ void count_balance(RouterShape shape, const Place& place, const float (&score)[L::kValues], int* balance_E) {
  std::uint32_t ordered[L::kValues];
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    ordered[j] = j * L::kLanes + place.lane < shape.experts ? ordered_bits(score[j]) : 0U;
  }
  for (int k = 0; k < shape.top_k; ++k) {
    const int expert = take_largest<L>(place.lane, ordered).expert;
    if (place.has_token && place.lane == 0 && expert < shape.experts) atomicAdd(&balance_E[expert], 1);
  }
}

/// What a block keeps in shared memory for its unit.
struct UnitMemory {
  int* count_E;
  int* balance_E;
  float* probability_WE;  // by 32 lanes
  std::int32_t* index_UK;
  float* prob_UK;

  static std::size_t bytes(RouterShape shape, int block) {
    return 4 * (static_cast<std::size_t>(shape.experts) * (2 + block / 32) + std::size_t{2} * kUnit * shape.top_k);
  }
  __device__ static UnitMemory at(std::uint32_t* shared, RouterShape shape, int block) {
    std::uint32_t* choices = shared + shape.experts * (2 + block / 32);
    return {reinterpret_cast<int*>(shared), reinterpret_cast<int*>(shared + shape.experts),
            reinterpret_cast<float*>(shared + 2 * shape.experts), reinterpret_cast<std::int32_t*>(choices),
            reinterpret_cast<float*>(choices + kUnit * shape.top_k)};
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

/// The block's Σ logsumexp², by 32 lanes and then in their order.
template <int kBlock>
__device__ void store_square_lse(double square_lse, double* to) {
  __shared__ double square_W[kBlock / 32];
  const double sum = gpu::lane_sum<32>(square_lse);
  if (threadIdx.x % 32 == 0) square_W[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0.0;
  for (int w = 0; w < kBlock / 32; ++w) total += square_W[w];
  *to = total;
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
    if (t.unit_balance != nullptr) t.unit_balance[at] = unit.balance_E[e];
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
  for (int e = threadIdx.x; e < 2 * shape.experts; e += L::kBlock) unit.count_E[e] = 0;  // and balance_E behind it
  __syncthreads();
  const bool is_softmax = t.score == ScoreFunction::kSoftmax;
  float probability[L::kValues] = {};
  double square_lse = 0.0;
  for (int round = 0; round < kUnit; round += L::kTokensPerBlock) {
    const int u = round + static_cast<int>(threadIdx.x) / L::kLanes;
    const Place place{first + u, u < tokens, static_cast<int>(threadIdx.x) % L::kLanes};
    float value[L::kValues];
    float weight[L::kValues];
    load_logits<L>(shape, place, t.logits, value);
    const float maximum = row_maximum<L>(value);
    const float sum = is_softmax ? exponentials<L>(value, maximum, weight) : scores<L>(t.score, value, weight);
    choose<L>(shape, place, t, value, weight, maximum, sum, unit.index_UK + u * shape.top_k,
              unit.prob_UK + u * shape.top_k);
    if (t.unit_balance != nullptr) count_balance<L>(shape, place, is_softmax ? value : weight, unit.balance_E);
    const float inverse = 1.0F / (is_softmax ? sum : sum + kSumEpsilon);
#pragma unroll
    for (int j = 0; j < L::kValues; ++j) probability[j] += place.has_token ? weight[j] * inverse : 0.0F;
    if (t.unit_square_lse == nullptr) continue;
    const float lse = maximum + logf(is_softmax ? sum : exponentials<L>(value, maximum, weight));
    if (place.has_token && place.lane == 0) square_lse += static_cast<double>(lse) * static_cast<double>(lse);
  }
  if (t.unit_probability != nullptr) {
    store_probabilities<L>(shape, static_cast<int>(threadIdx.x) % L::kLanes, probability, unit.probability_WE);
  }
  if (t.unit_square_lse != nullptr) store_square_lse<L::kBlock>(square_lse, t.unit_square_lse + blockIdx.x);
  __syncthreads();
  store_unit(shape, t, unit, first, tokens);
}

constexpr int kColumns = 32;
constexpr int kSlices = 32;

/// One block: each expert's tokens, the balancing loss and its slopes. kSlices threads share a column of experts: so
/// many for each of the groups that are summed at a time, whose sums are then added up in order.
__global__ void __launch_bounds__(kColumns* kSlices) finish_kernel(RouterShape shape, RouterForward t) {
  __shared__ std::int32_t counts[kSlices][kColumns];
  __shared__ std::int32_t balances[kSlices][kColumns];
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
      std::int32_t balance = 0;
      double probability = 0.0;
      if (slice / slices_per_group < groups_at_once && group < shape.groups && expert < shape.experts) {
#pragma unroll 4
        for (std::int64_t u = slice % slices_per_group; u < shape.units_per_group(); u += slices_per_group) {
          const std::int64_t at = (group * shape.units_per_group() + u) * shape.experts + expert;
          count += t.unit_count[at];
          if (t.unit_balance != nullptr) balance += t.unit_balance[at];
          if (t.unit_probability != nullptr) probability += static_cast<double>(t.unit_probability[at]);
        }
      }
      __syncthreads();  // the last round's sums have been read
      counts[slice][column] = count;
      balances[slice][column] = t.unit_balance != nullptr ? balance : count;
      probabilities[slice][column] = probability;
      __syncthreads();
      for (int g = 0; slice == 0 && g < groups_at_once; ++g) {
        std::int32_t group_balance = 0;
        double group_probability = 0.0;
        for (int s = g * slices_per_group; s < (g + 1) * slices_per_group; ++s) {
          expert_count += counts[s][column];
          group_balance += balances[s][column];
          group_probability += probabilities[s][column];
        }
        if (t.slope == nullptr || first_group + g >= shape.groups || expert >= shape.experts) continue;
        const double slope = t.slope_factor * static_cast<double>(group_balance);
        t.slope[(first_group + g) * shape.experts + expert] = static_cast<float>(slope);
        loss += group_probability * slope;
      }
    }
    if (slice == 0 && expert < shape.experts) t.count[expert] = expert_count;
  }
  if (slice != 0) return;
  loss = gpu::lane_sum<kColumns>(loss);
  if (threadIdx.x == 0) t.loss_4[t.balance_place] = static_cast<float>(loss);
  if (t.unit_square_lse == nullptr) return;
  double square_lse = 0.0;
  for (std::int64_t u = column; u < shape.units(); u += kColumns) square_lse += t.unit_square_lse[u];
  square_lse = gpu::lane_sum<kColumns>(square_lse);
  if (threadIdx.x == 0) t.loss_4[t.z_place] = static_cast<float>(t.z_factor * square_lse);
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

/// Adds the z loss's gradient, 2c/n · logsumexp · P_e.
template <typename L>
__device__ void add_z_gradient(const RouterBackward& t, const float (&logit)[L::kValues], float (&value)[L::kValues]) {
  float exponential[L::kValues];
  const float maximum = row_maximum<L>(logit);
  const float sum = exponentials<L>(logit, maximum, exponential);
  const float factor = t.z_factor * (maximum + logf(sum)) / sum;
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) value[j] += exponential[j] * factor;
}

/// value[expert of choice i] += of_choice(i), for every choice of the token.
template <typename L, typename OfChoice>
__device__ void add_to_chosen(RouterShape shape, const Place& place, const RouterBackward& t,
                              float (&value)[L::kValues], const OfChoice& of_choice) {
  if (!place.has_token) return;
  for (std::int64_t i = place.token * shape.top_k; i < (place.token + 1) * shape.top_k; ++i) {
    const int expert = t.index[i];
    const float added = of_choice(i);
#pragma unroll
    for (int j = 0; j < L::kValues; ++j) value[j] += expert == j * L::kLanes + place.lane ? added : 0.0F;
  }
}

template <typename L>
__device__ void softmax_backward(RouterShape shape, const Place& place, const RouterBackward& t,
                                 float (&value)[L::kValues]) {
  const bool is_post = t.order == SoftmaxOrder::kPost;
  const float dot = chosen_product<L>(shape, place, t);
  if (t.slope != nullptr || !is_post) {
    load_logits<L>(shape, place, t.logits, value);
    softmax_gradient<L>(shape, place, t, dot, value);
  }
  // Through the chosen: the post-softmax order has its sum over them alone, Σ_k (prob / scaling) · dprob.
  const float chosen_dot = is_post && t.scaling != 0.0F ? dot / t.scaling : 0.0F;
  add_to_chosen<L>(shape, place, t, value, [&](std::int64_t i) { return t.prob[i] * (t.dprob[i] - chosen_dot); });
}

/// Σ of the scores of the token's chosen experts.
template <typename L>
__device__ float chosen_score_sum(RouterShape shape, const Place& place, const RouterBackward& t) {
  float sum = 0.0F;
  for (int k = place.lane; place.has_token && k < shape.top_k; k += L::kLanes) {
    const std::int32_t expert = t.index[place.token * shape.top_k + k];
    sum += score_of(t.score, t.logits[place.token * shape.experts + expert]);
  }
  return gpu::lane_sum<L::kLanes>(sum);
}

/// The scores that look at one expert at a time.
template <typename L>
__device__ void score_backward(RouterShape shape, const Place& place, const RouterBackward& t,
                               float (&value)[L::kValues]) {
  float logit[L::kValues];
  float score[L::kValues];
  load_logits<L>(shape, place, t.logits, logit);
  const float inverse = 1.0F / (scores<L>(t.score, logit, score) + kSumEpsilon);
  if (t.slope != nullptr) {
    const std::int64_t group = shape.tokens_per_group > 0 ? place.token / shape.tokens_per_group : 0;
    float dot = 0.0F;
#pragma unroll
    for (int j = 0; j < L::kValues; ++j) {
      const int e = j * L::kLanes + place.lane;
      value[j] = place.has_token && e < shape.experts ? t.loss_scale * t.slope[group * shape.experts + e] : 0.0F;
      dot += value[j] * (score[j] * inverse);
    }
    dot = gpu::lane_sum<L::kLanes>(dot);
#pragma unroll
    for (int j = 0; j < L::kValues; ++j) value[j] = (value[j] - dot) * inverse;
  }
  const bool is_divided = shape.top_k > 1;
  const float dot = is_divided ? chosen_product<L>(shape, place, t) : 0.0F;
  const float chosen_inverse = is_divided ? 1.0F / (chosen_score_sum<L>(shape, place, t) + kSumEpsilon) : 1.0F;
  add_to_chosen<L>(shape, place, t, value,
                   [&](std::int64_t i) { return (t.scaling * t.dprob[i] - dot) * chosen_inverse; });
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) value[j] *= score_slope(t.score, logit[j], score[j]);
}

template <typename L>
__global__ void __launch_bounds__(L::kBlock) backward_kernel(RouterShape shape, RouterBackward t) {
  const std::int64_t token = std::int64_t{blockIdx.x} * L::kTokensPerBlock + threadIdx.x / L::kLanes;
  const Place place{token, token < shape.tokens, static_cast<int>(threadIdx.x) % L::kLanes};
  float value[L::kValues] = {};
  if (t.score == ScoreFunction::kSoftmax) {
    softmax_backward<L>(shape, place, t, value);
  } else {
    score_backward<L>(shape, place, t, value);
  }
  if (t.z_factor != 0.0F) {
    float logit[L::kValues];
    load_logits<L>(shape, place, t.logits, logit);
    add_z_gradient<L>(t, logit, value);
  }
  if (!place.has_token) return;
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
