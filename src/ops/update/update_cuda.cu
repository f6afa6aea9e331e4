// A streaming kernel: 32 neighbouring lanes take one block of 128 elements, four each, so that a block's scale is a
// maximum over lanes. Types are told apart at run time, the same branch for every lane: one kernel instead of 200. One
// combination, that of decision 19, is known to the compiler.
#include "ops/adamw/master_bits.hpp"
#include "ops/gpu/device.cuh"
#include "ops/update/update_cuda.hpp"

namespace primus::ops::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kLanes = 32;
constexpr int kEach = 4;
constexpr int kStateBlock = kLanes * kEach;
constexpr int kTiles =
    8;  // pieces of kBlock · kEach elements that a block takes: what a step multiplies by is worked out once

/// Which elements this lane has: `valid` of the four from `first` on; packed: all four, by one load.
struct Place {
  std::int64_t first;
  int valid;
  bool is_packed;
};

template <typename Code>
struct alignas(kEach * sizeof(Code)) Codes {
  Code code[kEach];
};

template <typename Code>
__device__ Codes<Code> load_codes(const void* from, const Place& place) {
  const Code* own = static_cast<const Code*>(from) + place.first;
  if (place.is_packed) return *reinterpret_cast<const Codes<Code>*>(own);
  Codes<Code> codes{};
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (j < place.valid) codes.code[j] = own[j];
  }
  return codes;
}

template <typename Code>
__device__ void store_codes(const Codes<Code>& codes, const Place& place, void* to) {
  Code* own = static_cast<Code*>(to) + place.first;
  if (place.is_packed) {
    *reinterpret_cast<Codes<Code>*>(own) = codes;
    return;
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (j < place.valid) own[j] = codes.code[j];
  }
}

struct Four {
  float value[kEach];
};

__device__ Four load_fp32(const void* from, const Place& place) {
  const auto codes = load_codes<float>(from, place);
  return {{codes.code[0], codes.code[1], codes.code[2], codes.code[3]}};
}

__device__ Four load_bf16(const void* from, const Place& place) {
  const auto codes = load_codes<std::uint16_t>(from, place);
  Four four;
#pragma unroll
  for (int j = 0; j < kEach; ++j) four.value[j] = bf16_value(codes.code[j]);
  return four;
}

__device__ Four load_plain(const void* from, DType type, const Place& place) {
  return type == DType::kFloat32 ? load_fp32(from, place) : load_bf16(from, place);
}

template <typename Format>
__device__ Four load_scaled(const Stored& stored, const Place& place) {
  const auto codes = load_codes<typename Format::Code>(stored.values, place);
  const float scale = place.valid > 0 ? stored.scale[place.first / kStateBlock] : 0.0F;
  Four four;
#pragma unroll
  for (int j = 0; j < kEach; ++j) four.value[j] = Format::load(codes.code[j], scale, stored.form);
  return four;
}

__device__ Four load_stored(const Stored& stored, const Place& place) {
  switch (stored.type) {
    case DType::kFloat8:
      return load_scaled<E4m3Code>(stored, place);
    case DType::kFloat16:
      return load_scaled<HalfCode>(stored, place);
    default:
      return load_plain(stored.values, stored.type, place);
  }
}

/// All lanes of the wavefront come here: the block's largest magnitude is theirs together.
template <typename Format>
__device__ void store_scaled(const Four& four, Rounding rounding, const Place& place, const Stored& stored) {
  float x[kEach];
  float largest = 0.0F;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    x[j] = stored.form == StateForm::kRoot ? sqrtf(four.value[j]) : four.value[j];
    if (j < place.valid) largest = fmaxf(largest, fabsf(x[j]));
  }
  const float scale = Format::scale_of(gpu::lane_max<kLanes>(largest));
  const float inverse = Format::inverse_of(scale);
  const RoundingStream random(rounding, place.first);
  Codes<typename Format::Code> codes;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const std::uint32_t bits = random.bits(static_cast<std::uint32_t>(place.first) + static_cast<std::uint32_t>(j));
    codes.code[j] = static_cast<typename Format::Code>(Format::store(x[j], inverse, bits, stored.form));
  }
  store_codes(codes, place, stored.values);
  if (place.valid > 0 && place.first % kStateBlock == 0) stored.scale[place.first / kStateBlock] = scale;
}

__device__ void store_fp32(const Four& four, const Place& place, void* to) {
  Codes<float> codes;
#pragma unroll
  for (int j = 0; j < kEach; ++j) codes.code[j] = four.value[j];
  store_codes(codes, place, to);
}

__device__ void store_by_chance(const Four& four, Rounding rounding, const Place& place, void* to) {
  const RoundingStream random(rounding, place.first);
  Codes<std::uint16_t> codes;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const std::uint32_t bits = random.bits(static_cast<std::uint32_t>(place.first) + static_cast<std::uint32_t>(j));
    codes.code[j] = bf16_code(four.value[j], bits);
  }
  store_codes(codes, place, to);
}

__device__ void store_stored(const Four& four, Rounding rounding, const Place& place, const Stored& stored) {
  switch (stored.type) {
    case DType::kFloat8:
      return store_scaled<E4m3Code>(four, rounding, place, stored);
    case DType::kFloat16:
      return store_scaled<HalfCode>(four, rounding, place, stored);
    case DType::kBFloat16:
      return store_by_chance(four, rounding, place, stored.values);
    default:
      return store_fp32(four, place, stored.values);
  }
}

__device__ Four load_master(const StoredUpdate& a, const Place& place) {
  if (a.place == MasterPlace::kCopy) return load_stored(a.master, place);
  if (a.place == MasterPlace::kWeight) return load_fp32(a.weight, place);
  const auto weight = load_codes<std::uint16_t>(a.weight, place);
  const auto low = load_codes<std::uint16_t>(a.low, place);
  Four four;
#pragma unroll
  for (int j = 0; j < kEach; ++j) four.value[j] = gpu::as_float(master_bits(weight.code[j], low.code[j]));
  return four;
}

__device__ void store_halves(const Four& master, const Place& place, const StoredUpdate& a) {
  Codes<std::uint16_t> weight, low;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const std::uint32_t bits = gpu::as_bits(master.value[j]);
    weight.code[j] = weight_bits(bits);
    low.code[j] = static_cast<std::uint16_t>(bits);
  }
  store_codes(weight, place, a.weight);
  store_codes(low, place, a.low);
}

__device__ void store_master(const Four& master, std::int64_t num_steps, const Place& place, const StoredUpdate& a) {
  if (a.place == MasterPlace::kHalves) return store_halves(master, place, a);
  if (a.place == MasterPlace::kCopy) store_stored(master, rounding_of(a.key, num_steps, 2), place, a.master);
  if (a.weight_type == DType::kFloat32) return store_fp32(master, place, a.weight);
  Codes<std::uint16_t> codes;
#pragma unroll
  for (int j = 0; j < kEach; ++j) codes.code[j] = gpu::from_float<gpu::Bf16>(master.value[j]).bits;
  store_codes(codes, place, a.weight);
}

__device__ void apply(UpdateRule rule, const UpdateFactors<float>& c, const Four& grad, Four& master, Four& first,
                      Four& second) {
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    switch (rule) {
      case UpdateRule::kAdamW:
        adamw_element(c, grad.value[j], master.value[j], first.value[j], second.value[j]);
        break;
      case UpdateRule::kSgd:
        sgd_element(c, grad.value[j], master.value[j], first.value[j]);
        break;
      case UpdateRule::kLion:
        lion_element(c, grad.value[j], master.value[j], first.value[j]);
        break;
    }
  }
}

/// Decision 19: AdamW, bf16 gradients, masters in halves, moments in fp8.
bool is_eight_bytes(const StoredUpdate& a) {
  return a.rule == UpdateRule::kAdamW && a.gradient_type == DType::kBFloat16 && a.place == MasterPlace::kHalves &&
         a.first_moment.type == DType::kFloat8 && a.first_moment.form == StateForm::kPlain &&
         a.second_moment.type == DType::kFloat8 && a.second_moment.form == StateForm::kRoot;
}

enum class Kinds { kAny, kEightBytes };

template <Kinds kKinds>
__device__ StoredUpdate known(StoredUpdate a) {
  if constexpr (kKinds == Kinds::kEightBytes) {
    a.rule = UpdateRule::kAdamW;
    a.gradient_type = DType::kBFloat16;
    a.place = MasterPlace::kHalves;
    a.first_moment.type = a.second_moment.type = DType::kFloat8;
    a.first_moment.form = StateForm::kPlain;
    a.second_moment.form = StateForm::kRoot;
  }
  return a;
}

__device__ Place place_of(std::int64_t first, std::int64_t count, bool is_packed) {
  const std::int64_t left = count - first;
  const int valid = left >= kEach ? kEach : left > 0 ? static_cast<int>(left) : 0;
  return {first, valid, is_packed && valid == kEach};
}

__device__ void update_four(const UpdateFactors<float>& c, std::int64_t num_steps, const Place& place,
                            const StoredUpdate& a) {
  const Four grad = load_plain(a.gradient, a.gradient_type, place);
  Four master = load_master(a, place);
  Four first_moment = load_stored(a.first_moment, place);
  Four second_moment{};
  if (a.rule == UpdateRule::kAdamW) second_moment = load_stored(a.second_moment, place);
  apply(a.rule, c, grad, master, first_moment, second_moment);
  store_stored(first_moment, rounding_of(a.key, num_steps, 0), place, a.first_moment);
  if (a.rule == UpdateRule::kAdamW) {
    store_stored(second_moment, rounding_of(a.key, num_steps, 1), place, a.second_moment);
  }
  store_master(master, num_steps, place, a);
}

template <Kinds kKinds>
__global__ void __launch_bounds__(kBlock, 6)
    stored_update_kernel(UpdateConstants given, Gate gate, std::int64_t count, bool is_packed, StoredUpdate update) {
  __shared__ UpdateFactors<float> shared;
  if (*gate.proceed == 0) return;
  if (threadIdx.x == 0) shared = gate.factors(given);
  __syncthreads();
  const UpdateFactors<float> c = shared;
  const StoredUpdate a = known<kKinds>(update);
  const std::int64_t num_steps = *gate.num_steps;
  std::int64_t first = (std::int64_t{blockIdx.x} * kBlock * kTiles + threadIdx.x) * kEach;
  for (int tile = 0; tile < kTiles; ++tile, first += kBlock * kEach) {
    update_four(c, num_steps, place_of(first, count, is_packed), a);
  }
}

}  // namespace

void launch_stored_update(const UpdateConstants& constants, const Gate& gate, std::int64_t count, int state_block,
                          const StoredUpdate& update, gpu::Stream stream) {
  if (state_block != kStateBlock) gpu::throw_error(__FILE__, __LINE__, "stored_update", "blocks of another size");
  if (count == 0) return;
  const auto fits = [](const void* data) { return gpu::is_packed(data, 0); };
  const bool is_packed = fits(update.gradient) && fits(update.weight) && fits(update.low) &&
                         fits(update.master.values) && fits(update.first_moment.values) &&
                         fits(update.second_moment.values);
  const unsigned blocks = gpu::blocks_for(count, std::int64_t{kBlock} * kEach * kTiles);
  const auto kernel =
      is_eight_bytes(update) ? stored_update_kernel<Kinds::kEightBytes> : stored_update_kernel<Kinds::kAny>;
  kernel<<<blocks, kBlock, 0, stream>>>(constants, gate, count, is_packed, update);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

}  // namespace primus::ops::cuda
