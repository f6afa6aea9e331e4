#include <bit>

#include "model/optimizer_spec.hpp"
#include "ops/state/state.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kBlock = model::kStateBlock;

/// A type with fewer bits than fp32, by the width of its fraction and the bias of its exponent.
template <int kFraction, int kBias, int kLargestCode>
struct Narrow {
  static constexpr int kDropped = 23 - kFraction;  // bits of an fp32 fraction that it lacks
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << kFraction;
  static constexpr std::uint32_t kLargest = kLargestCode;

  static float smallest_normal() { return std::bit_cast<float>(static_cast<std::uint32_t>(128 - kBias) << 23U); }
  /// Step of the numbers below the smallest normal one.
  static float smallest_step() {
    return std::bit_cast<float>(static_cast<std::uint32_t>(128 - kBias - kFraction) << 23U);
  }

  static float decode(std::uint32_t code) {
    const float subnormal = static_cast<float>(code) * smallest_step();
    const float normal = std::bit_cast<float>((code + kRebias) << kDropped);
    return code >> kFraction == 0 ? subnormal : normal;
  }

  /// `x` >= 0; `random`: 32 bits. Codes of normal and subnormal numbers follow on each other.
  static std::uint32_t encode(float x, std::uint32_t random) {
    const std::uint32_t chance = random >> (32 - kDropped);
    const std::uint32_t normal = ((std::bit_cast<std::uint32_t>(x) + chance) >> kDropped) - kRebias;
    const float steps = x / smallest_step() + static_cast<float>(random >> 8U) * 0x1p-24F;
    const std::uint32_t code = x < smallest_normal() ? static_cast<std::uint32_t>(steps) : normal;
    return std::min(code, kLargest);
  }
};
using E4m3 = Narrow<3, 7, 0x7E>;      // largest 448; 0x7F is NaN
using Half = Narrow<10, 15, 0x7BFF>;  // largest 65504

/// 32 random bits of an element.
[[gnu::always_inline]] inline std::uint32_t random_bits(std::uint64_t key, std::int64_t index) {
  std::uint64_t x = key + static_cast<std::uint64_t>(index) * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return static_cast<std::uint32_t>(x >> 32U);
}

/// The smallest power of two that is not below x: scaling by it rounds nothing.
float power_of_two_above(float x) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x7FFFFFU) & 0x7F800000U);
}

template <typename Format, typename Code>
void load_block(const Code* code, float scale, StateForm form, std::int64_t count, float* values) {
  constexpr std::uint32_t kSign = 1U << (8 * sizeof(Code) - 1);
  for (std::int64_t i = 0; i < count; ++i) {
    const float magnitude = Format::decode(code[i] & (kSign - 1)) * scale;
    const float value = (code[i] & kSign) != 0 ? -magnitude : magnitude;
    values[i] = form == StateForm::kRoot ? value * value : value;
  }
}

template <typename Format, typename Code>
float store_block(const float* values, std::int64_t first, std::int64_t count, Rounding rounding, StateForm form,
                  Code* code) {
  constexpr std::uint32_t kSign = 1U << (8 * sizeof(Code) - 1);
  std::array<float, kBlock> x;
  float largest = 0.0F;
  for (std::int64_t i = 0; i < count; ++i) {
    x[i] = form == StateForm::kRoot ? std::sqrt(values[i]) : values[i];
    largest = std::max(largest, std::abs(x[i]));
  }
  const float scale = power_of_two_above(largest / Format::decode(Format::kLargest));
  const float inverse = scale > 0.0F ? 1.0F / scale : 0.0F;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits = Format::encode(std::abs(x[i]) * inverse, random_bits(rounding.key, first + i));
    if (form == StateForm::kRoot && x[i] > 0.0F) bits = std::max(bits, 1U);
    code[i] = static_cast<Code>(bits | (x[i] < 0.0F ? kSign : 0U));
  }
  return scale;
}

template <typename Format, typename Code>
void load_blocks(const StoredState& state, std::int64_t begin, std::int64_t count, float* values) {
  const auto* code = static_cast<const Code*>(state.values.const_data_ptr());
  const auto* scale = state.scale_B.const_data_ptr<float>();
  for (std::int64_t i = 0; i < count; i += kBlock) {
    load_block<Format>(code + begin + i, scale[(begin + i) / kBlock], state.form, std::min(kBlock, count - i),
                       values + i);
  }
}

template <typename Format, typename Code>
void store_blocks(const float* values, std::int64_t begin, std::int64_t count, Rounding rounding, StoredState& state) {
  auto* code = static_cast<Code*>(state.values.data_ptr());
  auto* scale = state.scale_B.data_ptr<float>();
  for (std::int64_t i = 0; i < count; i += kBlock) {
    scale[(begin + i) / kBlock] =
        store_block<Format>(values + i, begin + i, std::min(kBlock, count - i), rounding, state.form, code + begin + i);
  }
}

void load_bf16(const StoredState& state, std::int64_t begin, std::int64_t count, float* values) {
  const auto* code = static_cast<const std::uint16_t*>(state.values.const_data_ptr()) + begin;
  for (std::int64_t i = 0; i < count; ++i) values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(code[i]) << 16U);
}

void store_bf16(const float* values, std::int64_t begin, std::int64_t count, Rounding rounding, StoredState& state) {
  auto* code = static_cast<std::uint16_t*>(state.values.data_ptr()) + begin;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t chance = random_bits(rounding.key, begin + i) >> 16U;
    code[i] = static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(values[i]) + chance) >> 16U);
  }
}

bool has_scales(DType type) {
  return type == DType::kFloat8 || type == DType::kFloat16;
}

at::ScalarType accumulator_of(DType type) {
  return type == DType::kFloat64 ? at::kDouble : at::kFloat;
}

}  // namespace

StoredState make_state(const Tensor& like, DType type, StateForm form) {
  StoredState state{type, form, at::zeros(like.sizes(), like.options().dtype(to_aten(type))), {}};
  if (has_scales(type)) {
    state.scale_B = at::zeros({(like.numel() + kBlock - 1) / kBlock}, like.options().dtype(at::kFloat));
  }
  return state;
}

void for_each_state_range(std::int64_t num_elements,
                          const std::function<void(std::int64_t first, std::int64_t count)>& body) {
  constexpr std::int64_t kBlocksPerTask = 128;
  at::parallel_for(0, (num_elements + kBlock - 1) / kBlock, kBlocksPerTask, [&](std::int64_t begin, std::int64_t end) {
    body(begin * kBlock, std::min(num_elements, end * kBlock) - begin * kBlock);
  });
}

template <>
void load_state<double>(const StoredState& state, std::int64_t begin, std::int64_t count, double* values) {
  PRIMUS_CHECK(state.type == DType::kFloat64, "{} state in fp64", name(state.type));
  std::copy_n(state.values.const_data_ptr<double>() + begin, count, values);
}

template <>
void store_state<double>(const double* values, std::int64_t begin, std::int64_t count, Rounding, StoredState& state) {
  PRIMUS_CHECK(state.type == DType::kFloat64, "{} state in fp64", name(state.type));
  std::copy_n(values, count, state.values.data_ptr<double>() + begin);
}

template <>
void load_state<float>(const StoredState& state, std::int64_t begin, std::int64_t count, float* values) {
  switch (state.type) {
    case DType::kFloat32:
      std::copy_n(state.values.const_data_ptr<float>() + begin, count, values);
      return;
    case DType::kBFloat16:
      return load_bf16(state, begin, count, values);
    case DType::kFloat16:
      return load_blocks<Half, std::uint16_t>(state, begin, count, values);
    case DType::kFloat8:
      return load_blocks<E4m3, std::uint8_t>(state, begin, count, values);
    default:
      PRIMUS_CHECK(false, "optimizer state in {}", name(state.type));
  }
}

template <>
void store_state<float>(const float* values, std::int64_t begin, std::int64_t count, Rounding rounding,
                        StoredState& state) {
  switch (state.type) {
    case DType::kFloat32:
      std::copy_n(values, count, state.values.data_ptr<float>() + begin);
      return;
    case DType::kBFloat16:
      return store_bf16(values, begin, count, rounding, state);
    case DType::kFloat16:
      return store_blocks<Half, std::uint16_t>(values, begin, count, rounding, state);
    case DType::kFloat8:
      return store_blocks<E4m3, std::uint8_t>(values, begin, count, rounding, state);
    default:
      PRIMUS_CHECK(false, "optimizer state in {}", name(state.type));
  }
}

Tensor load_state(const StoredState& state) {
  const Tensor values = at::empty({state.values.numel()}, state.values.options().dtype(accumulator_of(state.type)));
  for_each_state_range(values.numel(), [&](std::int64_t first, std::int64_t count) {
    dispatch_floating(values.scalar_type(), "load_state", [&](auto tag) {
      using Acc = acc_t<typename decltype(tag)::type>;
      load_state<Acc>(state, first, count, values.data_ptr<Acc>() + first);
    });
  });
  return values;
}

void store_state(const Tensor& values, Rounding rounding, StoredState& state) {
  PRIMUS_CHECK(values.is_contiguous() && values.numel() == state.values.numel() &&
                   values.scalar_type() == accumulator_of(state.type),
               "store_state: values do not fit the state");
  for_each_state_range(values.numel(), [&](std::int64_t first, std::int64_t count) {
    dispatch_floating(values.scalar_type(), "store_state", [&](auto tag) {
      using Acc = acc_t<typename decltype(tag)::type>;
      store_state<Acc>(values.const_data_ptr<Acc>() + first, first, count, rounding, state);
    });
  });
}

}  // namespace primus::ops
