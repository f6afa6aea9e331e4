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
  static constexpr int kBlock = kLanes * kUnit;
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

/// Where a thread works: its token (of one unit of one group) and its lane.
struct Place {
  std::int64_t group, token;
  bool has_token;
  int lane;
};

template <typename L>
__device__ Place place_of(RouterShape shape) {
  const std::int64_t unit = blockIdx.x;
  const std::int64_t group = unit / shape.units_per_group();
  const std::int64_t within = unit % shape.units_per_group() * kUnit + threadIdx.x / L::kLanes;
  return {group, group * shape.tokens_per_group + within, within < shape.tokens_per_group,
          static_cast<int>(threadIdx.x) % L::kLanes};
}

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

/// A key that orders candidates: larger value first, then lower expert. 0 is below every candidate.
__device__ std::uint64_t candidate_key(float value, int expert) {
  const std::uint32_t bits = gpu::as_bits(value + 0.0F);  // −0 as +0: they are equal
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return (static_cast<std::uint64_t>(ordered) << 32U) | (0xFFFFFFFFU - static_cast<std::uint32_t>(expert));
}

/// The next expert in the order; marks it as taken. `taken`: a bit for each of this lane's values.
template <typename L>
__device__ int take_next(int experts, int lane, const float (&value)[L::kValues], std::uint32_t& taken, float& chosen) {
  std::uint64_t best = 0;
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    const int e = j * L::kLanes + lane;
    const std::uint64_t key = candidate_key(value[j], e);
    if (e < experts && (taken >> j & 1U) == 0 && key > best) best = key;
  }
  best = gpu::lane_max<L::kLanes>(best);
  const int expert = static_cast<int>(0xFFFFFFFFU - static_cast<std::uint32_t>(best));
  if (expert % L::kLanes == lane) taken |= 1U << (expert / L::kLanes);
  const auto ordered = static_cast<std::uint32_t>(best >> 32U);
  chosen = gpu::as_float((ordered & 0x80000000U) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
  return expert;
}

/// Chooses, writes index and prob (unscaled exponentials first, then probabilities) and counts into count_E.
template <typename L>
__device__ void choose(RouterShape shape, const Place& place, const RouterForward& t, const float (&value)[L::kValues],
                       float maximum, float sum, int* count_E) {
  std::uint32_t taken = 0;
  float denominator = t.order == SoftmaxOrder::kPost ? 0.0F : sum;
  const std::int64_t first = place.token * shape.top_k;
  const bool is_bad = maximum != maximum;
  for (int k = 0; k < shape.top_k; ++k) {
    float chosen;
    int expert = take_next<L>(shape.experts, place.lane, value, taken, chosen);
    if (is_bad) expert = k;  // any expert that exists; the probability says that there is no choice
    const float exponential = __expf(chosen - maximum);
    if (t.order == SoftmaxOrder::kPost) denominator += exponential;
    if (place.has_token && place.lane == 0) {
      t.index[first + k] = expert;
      t.prob[first + k] = exponential;
      atomicAdd(&count_E[expert], 1);
    }
  }
  const float factor = t.scaling / denominator;
  if (place.has_token && place.lane == 0) {
    for (int k = 0; k < shape.top_k; ++k) t.prob[first + k] *= factor;
  }
}

template <typename L>
__global__ void __launch_bounds__(L::kBlock) forward_kernel(RouterShape shape, RouterForward t) {
  constexpr int kWaves = L::kBlock / 32;
  extern __shared__ int shared[];
  int* count_E = shared;
  auto* probability_WE = reinterpret_cast<float*>(shared + shape.experts);  // by 32 lanes
  for (int e = threadIdx.x; e < shape.experts; e += L::kBlock) count_E[e] = 0;
  __syncthreads();
  const Place place = place_of<L>(shape);
  float value[L::kValues];
  float exponential[L::kValues];
  load_logits<L>(shape, place, t.logits, value);
  const float maximum = row_maximum<L>(value);
  const float sum = exponentials<L>(value, maximum, exponential);
  choose<L>(shape, place, t, value, maximum, sum, count_E);
  if (t.unit_probability != nullptr) {
    const float inverse = place.has_token ? 1.0F / sum : 0.0F;
#pragma unroll
    for (int j = 0; j < L::kValues; ++j) {
      float probability = place.has_token ? exponential[j] * inverse : 0.0F;
      for (int distance = L::kLanes; distance < 32; distance *= 2)
        probability += gpu::exchange<32>(probability, distance);
      const int e = j * L::kLanes + place.lane;
      if (threadIdx.x % 32 < L::kLanes && e < shape.experts) {
        probability_WE[threadIdx.x / 32 * shape.experts + e] = probability;
      }
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < shape.experts; e += L::kBlock) {
    const std::int64_t at = std::int64_t{blockIdx.x} * shape.experts + e;
    t.unit_count[at] = count_E[e];
    if (t.unit_probability == nullptr) continue;
    float total = 0.0F;
    for (int w = 0; w < kWaves; ++w) total += probability_WE[w * shape.experts + e];
    t.unit_probability[at] = total;
  }
}

constexpr int kColumns = 32;
constexpr int kSlices = 32;

/// Sums of a group's units for kColumns experts, by kSlices threads each and then in order; complete in slice 0.
struct UnitSums {
  std::int32_t count;
  double probability;
};

__device__ UnitSums sum_units(RouterShape shape, const RouterForward& t, std::int64_t group, int expert) {
  __shared__ std::int32_t counts[kSlices][kColumns];
  __shared__ double probabilities[kSlices][kColumns];
  const int column = threadIdx.x % kColumns;
  const int slice = threadIdx.x / kColumns;
  UnitSums sums{0, 0.0};
  if (expert < shape.experts) {
    const std::int64_t first = group * shape.units_per_group();
    for (std::int64_t u = slice; u < shape.units_per_group(); u += kSlices) {
      const std::int64_t at = (first + u) * shape.experts + expert;
      sums.count += t.unit_count[at];
      if (t.unit_probability != nullptr) sums.probability += static_cast<double>(t.unit_probability[at]);
    }
  }
  __syncthreads();  // the last call's sums have been read
  counts[slice][column] = sums.count;
  probabilities[slice][column] = sums.probability;
  __syncthreads();
  if (slice == 0) {
    for (int s = 1; s < kSlices; ++s) {
      sums.count += counts[s][column];
      sums.probability += probabilities[s][column];
    }
  }
  return sums;
}

/// One block: each expert's tokens, and the auxiliary loss.
__global__ void __launch_bounds__(kColumns* kSlices) finish_kernel(RouterShape shape, RouterForward t) {
  const bool is_first_slice = threadIdx.x < kColumns;
  double loss = 0.0;
  for (int first = 0; first < shape.experts; first += kColumns) {
    const int expert = first + static_cast<int>(threadIdx.x) % kColumns;
    std::int32_t count = 0;
    for (std::int64_t group = 0; group < shape.groups; ++group) {
      const UnitSums sums = sum_units(shape, t, group, expert);
      count += sums.count;
      loss += sums.probability * static_cast<double>(sums.count);
    }
    if (is_first_slice && expert < shape.experts) t.count[expert] = count;
  }
  if (!is_first_slice) return;
  loss = gpu::lane_sum<kColumns>(loss);
  if (threadIdx.x == 0) *t.aux_loss = static_cast<float>(t.unit_probability != nullptr ? loss * t.aux_factor : 0.0);
}

/// group_count[g, e] += chosen experts of one unit; zero before.
__global__ void __launch_bounds__(kUnit * 8)
    count_kernel(RouterShape shape, const std::int32_t* index, std::int32_t* group_count) {
  extern __shared__ int count_E[];
  for (int e = threadIdx.x; e < shape.experts; e += blockDim.x) count_E[e] = 0;
  __syncthreads();
  const std::int64_t group = blockIdx.x / shape.units_per_group();
  const std::int64_t within = blockIdx.x % shape.units_per_group() * kUnit;
  const std::int64_t left = shape.tokens_per_group - within;
  const int choices = static_cast<int>(left < kUnit ? left : kUnit) * shape.top_k;
  const std::int32_t* chosen = index + (group * shape.tokens_per_group + within) * shape.top_k;
  for (int i = threadIdx.x; i < choices; i += blockDim.x) atomicAdd(&count_E[chosen[i]], 1);
  __syncthreads();
  for (int e = threadIdx.x; e < shape.experts; e += blockDim.x) {
    if (count_E[e] != 0) atomicAdd(&group_count[group * shape.experts + e], count_E[e]);
  }
}

/// Σ_k prob · dprob of a token.
__device__ float chosen_product(RouterShape shape, const Place& place, const RouterBackward& t) {
  float dot = 0.0F;
  if (place.has_token) {
    for (std::int64_t i = place.token * shape.top_k; i < (place.token + 1) * shape.top_k; ++i)
      dot += t.prob[i] * t.dprob[i];
  }
  return dot;
}

/// Through the softmax over all experts: P_e · (g_e − Σ g P), where the pre-softmax order adds its own Σ to the sum.
template <typename L>
__device__ void softmax_gradient(RouterShape shape, const Place& place, const RouterBackward& t, float dot,
                                 float (&value)[L::kValues]) {
  const float maximum = row_maximum<L>(value);
  const float inverse = 1.0F / exponentials<L>(value, maximum, value);
  float gradient[L::kValues];  // of the auxiliary loss with regard to P_e: the same for every token of a group
  float sum = 0.0F;
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) {
    const int e = j * L::kLanes + place.lane;
    value[j] *= inverse;
    gradient[j] =
        t.group_count != nullptr && place.has_token && e < shape.experts
            ? static_cast<float>(t.aux_factor * static_cast<double>(t.group_count[place.group * shape.experts + e]))
            : 0.0F;
    sum += gradient[j] * value[j];
  }
  sum = gpu::lane_sum<L::kLanes>(sum) + (t.order == SoftmaxOrder::kPost ? 0.0F : dot);
#pragma unroll
  for (int j = 0; j < L::kValues; ++j) value[j] *= gradient[j] - sum;
}

template <typename L>
__global__ void __launch_bounds__(L::kBlock) backward_kernel(RouterShape shape, RouterBackward t) {
  const Place place = place_of<L>(shape);
  const bool is_post = t.order == SoftmaxOrder::kPost;
  const float dot = chosen_product(shape, place, t);
  float value[L::kValues] = {};
  if (t.group_count != nullptr || !is_post) {
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
      const std::size_t shared = sizeof(int) * shape.experts * (1 + L::kBlock / 32);
      PRIMUS_CUDA_CHECK(gpu::allow_shared(forward_kernel<L>, shared));
      forward_kernel<L><<<static_cast<unsigned>(shape.units()), L::kBlock, shared, stream>>>(shape, tensors);
    });
  }
  finish_kernel<<<1, kColumns * kSlices, 0, stream>>>(shape, tensors);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

void launch_router_backward(RouterShape shape, const RouterBackward& tensors, gpu::Stream stream) {
  if (shape.tokens == 0) return;
  if (tensors.group_count != nullptr) {
    const std::size_t bytes = sizeof(std::int32_t) * shape.groups * shape.experts;
    PRIMUS_CUDA_CHECK(gpu::fill_bytes(tensors.group_count, 0, bytes, stream));
    count_kernel<<<static_cast<unsigned>(shape.units()), kUnit * 8, sizeof(int) * shape.experts, stream>>>(
        shape, tensors.index, tensors.group_count);
  }
  with_layout(shape.experts, [&](auto layout) {
    using L = decltype(layout);
    backward_kernel<L><<<static_cast<unsigned>(shape.units()), L::kBlock, 0, stream>>>(shape, tensors);
  });
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

}  // namespace primus::ops::cuda
