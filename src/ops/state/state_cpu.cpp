#include "model/optimizer_spec.hpp"
#include "ops/host_memory.hpp"
#include "ops/state/state.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kBlock = model::kStateBlock;

template <typename Format>
void load_block(const typename Format::Code* code, float scale, StateForm form, std::int64_t count, float* values) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = Format::load(code[i], scale, form);
}

template <typename Format>
float store_block(const float* values, std::int64_t first, std::int64_t count, Rounding rounding, StateForm form,
                  typename Format::Code* code) {
  std::array<float, kBlock> x;
  float largest = 0.0F;
  for (std::int64_t i = 0; i < count; ++i) {
    x[i] = form == StateForm::kRoot ? std::sqrt(values[i]) : values[i];
    largest = std::max(largest, std::abs(x[i]));
  }
  const float scale = Format::scale_of(largest);
  const float inverse = Format::inverse_of(scale);
  const RoundingStream random(rounding, first);
  const auto low_index = static_cast<std::uint32_t>(first);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = random.bits(low_index + static_cast<std::uint32_t>(i));
    code[i] = static_cast<typename Format::Code>(Format::store(x[i], inverse, bits, form));
  }
  return scale;
}

template <typename Format>
void load_blocks(const StoredState& state, std::int64_t begin, std::int64_t count, float* values) {
  const auto* code = static_cast<const typename Format::Code*>(state.values.const_data_ptr());
  const auto* scale = state.scale_B.const_data_ptr<float>();
  for (std::int64_t i = 0; i < count; i += kBlock) {
    load_block<Format>(code + begin + i, scale[(begin + i) / kBlock], state.form, std::min(kBlock, count - i),
                       values + i);
  }
}

template <typename Format>
void store_blocks(const float* values, std::int64_t begin, std::int64_t count, Rounding rounding, StoredState& state) {
  auto* code = static_cast<typename Format::Code*>(state.values.data_ptr());
  auto* scale = state.scale_B.data_ptr<float>();
  for (std::int64_t i = 0; i < count; i += kBlock) {
    scale[(begin + i) / kBlock] =
        store_block<Format>(values + i, begin + i, std::min(kBlock, count - i), rounding, state.form, code + begin + i);
  }
}

void load_bf16(const StoredState& state, std::int64_t begin, std::int64_t count, float* values) {
  const auto* code = static_cast<const std::uint16_t*>(state.values.const_data_ptr()) + begin;
  for (std::int64_t i = 0; i < count; ++i) values[i] = bf16_value(code[i]);
}

void store_bf16(const float* values, std::int64_t begin, std::int64_t count, Rounding rounding, StoredState& state) {
  auto* code = static_cast<std::uint16_t*>(state.values.data_ptr());
  for (std::int64_t first = begin; first < begin + count; first += kBlock) {
    const RoundingStream random(rounding, first);
    const std::int64_t end = std::min(first + kBlock, begin + count);
    for (std::int64_t i = first; i < end; ++i) {
      code[i] = bf16_code(values[i - begin], random.bits(static_cast<std::uint32_t>(i)));
    }
  }
}

bool has_scales(DType type) {
  return type == DType::kFloat8 || type == DType::kFloat16;
}

StoredState on_host(const StoredState& state) {
  return {state.type, state.form, state.values.cpu(), state.scale_B.defined() ? state.scale_B.cpu() : Tensor()};
}

at::ScalarType accumulator_of(DType type) {
  return type == DType::kFloat64 ? at::kDouble : at::kFloat;
}

}  // namespace

Tensor state_zeros(const Tensor& like, at::IntArrayRef shape, at::ScalarType type, model::StatePlace place) {
  if (place == model::StatePlace::kHost) return host_zeros(shape, type, like.device());
  return at::zeros(shape, like.options().dtype(type));
}

StoredState make_state(const Tensor& like, DType type, StateForm form, model::StatePlace place) {
  StoredState state{type, form, state_zeros(like, like.sizes(), to_aten(type), place), {}};
  if (has_scales(type)) state.scale_B = state_zeros(like, {(like.numel() + kBlock - 1) / kBlock}, at::kFloat, place);
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
      return load_blocks<HalfCode>(state, begin, count, values);
    case DType::kFloat8:
      return load_blocks<E4m3Code>(state, begin, count, values);
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
      return store_blocks<HalfCode>(values, begin, count, rounding, state);
    case DType::kFloat8:
      return store_blocks<E4m3Code>(values, begin, count, rounding, state);
    default:
      PRIMUS_CHECK(false, "optimizer state in {}", name(state.type));
  }
}

Tensor load_state(const StoredState& state) {
  if (!state.values.is_cpu()) return load_state(on_host(state)).to(state.values.device());
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
  if (!state.values.is_cpu()) {
    StoredState host = on_host(state);
    store_state(values.cpu(), rounding, host);
    state.values.copy_(host.values);
    if (state.scale_B.defined()) state.scale_B.copy_(host.scale_B);
    return;
  }
  // State on the host may belong to a parameter that is on a GPU.
  if (!values.is_cpu()) return store_state(values.cpu(), rounding, state);
  for_each_state_range(values.numel(), [&](std::int64_t first, std::int64_t count) {
    dispatch_floating(values.scalar_type(), "store_state", [&](auto tag) {
      using Acc = acc_t<typename decltype(tag)::type>;
      store_state<Acc>(values.const_data_ptr<Acc>() + first, first, count, rounding, state);
    });
  });
}

}  // namespace primus::ops
