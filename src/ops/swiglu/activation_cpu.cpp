#include "ops/swiglu/activation.hpp"

#include <numbers>

#include "ops/not_on_gpu.hpp"
#include "ops/simd_math.hpp"
#include "ops/swiglu/swiglu.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kElementsPerTask = 8192;

/// A function's value and slope at one point.
template <typename T>
struct ValueSlope {
  T value, slope;
};

template <ActivationFunction kFunction, typename T>
[[gnu::always_inline]] inline ValueSlope<T> evaluate(T x) {
  if constexpr (kFunction == ActivationFunction::kSilu || kFunction == ActivationFunction::kQuickGelu) {
    constexpr T kAlpha = kFunction == ActivationFunction::kSilu ? T(1) : T(1.702);
    const T sigmoid = fast_sigmoid(kAlpha * x);
    const T value = x * sigmoid;
    // d/dx x·σ(αx) = σ + αx·σ·(1 − σ)
    return {value, std::fma(kAlpha * value, T(1) - sigmoid, sigmoid)};
  } else if constexpr (kFunction == ActivationFunction::kGelu) {
    const T cdf = T(0.5) * (T(1) + std::erf(x * T(std::numbers::sqrt2 / 2.0)));
    constexpr T kDensity = T(0.398942280401432677939946059934);  // 1 / sqrt(2π)
    return {x * cdf, cdf + x * kDensity * fast_exp(T(-0.5) * x * x)};
  } else if constexpr (kFunction == ActivationFunction::kTanhGelu) {
    constexpr T kRoot = T(0.797884560802865355879892119869);  // sqrt(2/π)
    constexpr T kCubic = T(0.044715);
    // ½(1 + tanh u) is σ(2u). Past ±20 it is 0 or 1, and the polynomial would overflow.
    constexpr T kSaturated = T(20);
    T t = x > kSaturated ? kSaturated : x;
    t = t < -kSaturated ? -kSaturated : t;
    const T sigmoid = fast_sigmoid(T(2) * kRoot * (t + kCubic * t * t * t));
    const T value = x * sigmoid;
    return {value, sigmoid + value * (T(1) - sigmoid) * T(2) * kRoot * (T(1) + T(3) * kCubic * t * t)};
  } else {
    const T positive = x > T(0) ? x : T(0);
    return {positive * positive, T(2) * positive};
  }
}

/// What a row's function needs to know beside the row.
template <typename Acc>
struct Bounds {
  Acc highest, lowest, offset;
};

template <ActivationFunction kFunction, typename T, typename Acc = acc_t<T>>
void gated_forward(const T* gate, const T* up, Acc prob, Bounds<Acc> bounds, std::int64_t width, T* a) {
#pragma omp simd
  for (std::int64_t f = 0; f < width; ++f) {
    Acc g = static_cast<Acc>(gate[f]);
    Acc u = static_cast<Acc>(up[f]);
    g = g > bounds.highest ? bounds.highest : g;
    u = u > bounds.highest ? bounds.highest : u;
    u = u < bounds.lowest ? bounds.lowest : u;
    a[f] = to_storage<T>(evaluate<kFunction>(g).value * (u + bounds.offset) * prob);
  }
}

/// Gives the row's dprob. dgate and dup may be gate and up: an element is read before the same element is written.
template <ActivationFunction kFunction, typename T, typename Acc = acc_t<T>>
Acc gated_backward(const T* da, const T* gate, const T* up, Acc prob, Bounds<Acc> bounds, std::int64_t width, T* dgate,
                   T* dup, T* a) {
  Acc dprob = 0;
#pragma omp simd reduction(+ : dprob)
  for (std::int64_t f = 0; f < width; ++f) {
    const Acc raw_gate = static_cast<Acc>(gate[f]);
    const Acc raw_up = static_cast<Acc>(up[f]);
    const Acc d = static_cast<Acc>(da[f]);
    const Acc g = raw_gate > bounds.highest ? bounds.highest : raw_gate;
    Acc u = raw_up > bounds.highest ? bounds.highest : raw_up;
    u = u < bounds.lowest ? bounds.lowest : u;
    u += bounds.offset;
    const ValueSlope<Acc> at = evaluate<kFunction>(g);
    const Acc activation = at.value * u;
    dprob += d * activation;
    const Acc scaled = d * prob;
    dgate[f] = to_storage<T>(raw_gate > bounds.highest ? Acc(0) : scaled * u * at.slope);
    dup[f] = to_storage<T>(raw_up > bounds.highest || raw_up < bounds.lowest ? Acc(0) : scaled * at.value);
    a[f] = to_storage<T>(activation * prob);
  }
  return dprob;
}

template <ActivationFunction kFunction, typename T, typename Acc = acc_t<T>>
void plain_forward(const T* h, Acc prob, std::int64_t width, T* a) {
#pragma omp simd
  for (std::int64_t f = 0; f < width; ++f)
    a[f] = to_storage<T>(evaluate<kFunction>(static_cast<Acc>(h[f])).value * prob);
}

template <ActivationFunction kFunction, typename T, typename Acc = acc_t<T>>
Acc plain_backward(const T* da, const T* h, Acc prob, std::int64_t width, T* dh, T* a) {
  Acc dprob = 0;
#pragma omp simd reduction(+ : dprob)
  for (std::int64_t f = 0; f < width; ++f) {
    const Acc d = static_cast<Acc>(da[f]);
    const ValueSlope<Acc> at = evaluate<kFunction>(static_cast<Acc>(h[f]));
    dprob += d * at.value;
    dh[f] = to_storage<T>(d * prob * at.slope);
    a[f] = to_storage<T>(at.value * prob);
  }
  return dprob;
}

/// What kSitu's two halves are bounded by; `linear` 0: up is not bounded.
template <typename Acc>
struct SituBounds {
  Acc gate, linear;
};

/// bound · tanh(x / bound) and its slope.
template <typename Acc>
[[gnu::always_inline]] inline ValueSlope<Acc> flattened(Acc x, Acc bound) {
  const Acc t = fast_tanh(x / bound);
  return {bound * t, Acc(1) - t * t};
}

/// f(x) = β · tanh(x / β) · σ(x).
template <typename Acc>
[[gnu::always_inline]] inline ValueSlope<Acc> situ(Acc x, Acc beta) {
  const ValueSlope<Acc> bounded = flattened(x, beta);
  const Acc sigmoid = fast_sigmoid(x);
  return {bounded.value * sigmoid, sigmoid * (bounded.slope + bounded.value * (Acc(1) - sigmoid))};
}

template <typename T, typename Acc = acc_t<T>>
void situ_forward(const T* gate, const T* up, Acc prob, SituBounds<Acc> bounds, std::int64_t width, T* a) {
  for (std::int64_t f = 0; f < width; ++f) {
    const Acc raw = static_cast<Acc>(up[f]);
    const Acc u = bounds.linear > 0 ? flattened(raw, bounds.linear).value : raw;
    a[f] = to_storage<T>(situ(static_cast<Acc>(gate[f]), bounds.gate).value * u * prob);
  }
}

/// As gated_backward.
template <typename T, typename Acc = acc_t<T>>
Acc situ_backward(const T* da, const T* gate, const T* up, Acc prob, SituBounds<Acc> bounds, std::int64_t width,
                  T* dgate, T* dup, T* a) {
  Acc dprob = 0;
  for (std::int64_t f = 0; f < width; ++f) {
    const Acc d = static_cast<Acc>(da[f]);
    const Acc raw = static_cast<Acc>(up[f]);
    const ValueSlope<Acc> u = bounds.linear > 0 ? flattened(raw, bounds.linear) : ValueSlope<Acc>{raw, Acc(1)};
    const ValueSlope<Acc> g = situ(static_cast<Acc>(gate[f]), bounds.gate);
    dprob += d * g.value * u.value;
    const Acc scaled = d * prob;
    dgate[f] = to_storage<T>(scaled * u.value * g.slope);
    dup[f] = to_storage<T>(scaled * g.value * u.slope);
    a[f] = to_storage<T>(g.value * u.value * prob);
  }
  return dprob;
}

/// body(constant) with the function as a compile-time value.
template <typename Body>
void with_function(ActivationFunction function, const Body& body) {
  using enum ActivationFunction;
  switch (function) {
    case kSilu:
      return body(std::integral_constant<ActivationFunction, kSilu>{});
    case kQuickGelu:
      return body(std::integral_constant<ActivationFunction, kQuickGelu>{});
    case kGelu:
      return body(std::integral_constant<ActivationFunction, kGelu>{});
    case kTanhGelu:
      return body(std::integral_constant<ActivationFunction, kTanhGelu>{});
    case kSquaredRelu:
      return body(std::integral_constant<ActivationFunction, kSquaredRelu>{});
    case kSitu:
      return body(std::integral_constant<ActivationFunction, kSitu>{});
  }
}

const char* key_of(const ActivationOptions& options) {
  if (options.clamp) return "activation_func_clamp_value";
  if (options.linear_offset != 0.0) return "glu_linear_offset";
  switch (options.function) {
    case ActivationFunction::kQuickGelu:
      return "quick_geglu";
    case ActivationFunction::kSquaredRelu:
      return "squared_relu";
    case ActivationFunction::kTanhGelu:
      return "openai_gelu";
    case ActivationFunction::kSitu:
      return "activation_situ_beta";
    default:
      return "swiglu: false";
  }
}

/// Checks h [R, 2F] or [R, F], a [R, F] and the optional tensors; gives the rows to work on.
std::int64_t checked_rows(const Tensor& h, const ActivationOptions& options, const Tensor& a_RF, const Tensor& prob_R,
                          const Tensor& num_rows) {
  PRIMUS_CHECK(
      h.dim() == 2 && a_RF.dim() == 2 && h.size(0) == a_RF.size(0) && h.size(1) == options.input_width(a_RF.size(1)),
      "activation: shapes do not agree");
  PRIMUS_CHECK(h.scalar_type() == a_RF.scalar_type() && h.is_contiguous() && a_RF.is_contiguous(),
               "activation: tensors must be contiguous and of one type");
  PRIMUS_CHECK(!prob_R.defined() || (prob_R.scalar_type() == accumulator_type(h.scalar_type()) &&
                                     prob_R.is_contiguous() && prob_R.numel() == a_RF.size(0)),
               "activation: prob must hold one {} a row", c10::toString(accumulator_type(h.scalar_type())));
  if (h.is_cuda()) throw_not_on_gpu(key_of(options));
  if (!num_rows.defined()) return a_RF.size(0);
  PRIMUS_CHECK(num_rows.scalar_type() == at::kInt && num_rows.numel() == 1, "activation: num_rows must be one int32");
  const std::int64_t valid = *num_rows.data_ptr<std::int32_t>();
  PRIMUS_CHECK(valid >= 0 && valid <= a_RF.size(0), "activation: {} valid rows in a buffer of {}", valid, a_RF.size(0));
  return valid;
}

template <typename Acc>
Bounds<Acc> bounds_of(const ActivationOptions& options) {
  const Acc highest = options.clamp ? static_cast<Acc>(*options.clamp) : std::numeric_limits<Acc>::infinity();
  return {highest, -highest, static_cast<Acc>(options.linear_offset)};
}

template <typename Acc>
SituBounds<Acc> situ_bounds_of(const ActivationOptions& options) {
  PRIMUS_CHECK(options.unit == ActivationUnit::kGated && !options.clamp && options.linear_offset == 0.0,
               "activation: situ is a gated unit without clamp and offset");
  return {static_cast<Acc>(options.situ_beta), static_cast<Acc>(options.situ_linear_beta.value_or(0.0))};
}

/// body(function, type tag, width, rows a task) for the rows of a.
template <typename Body>
void dispatch(const ActivationOptions& options, const Tensor& a_RF, const char* op, const Body& body) {
  const std::int64_t width = a_RF.size(1);
  const std::int64_t rows_per_task = std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, width));
  with_function(options.function, [&](auto function) {
    dispatch_floating(a_RF.scalar_type(), op, [&](auto tag) { body(function, tag, width, rows_per_task); });
  });
}

}  // namespace

void activation_forward(const Tensor& h, const ActivationOptions& options, const Tensor& prob_R, const Tensor& num_rows,
                        Tensor& a_RF) {
  if (options.is_swiglu()) return swiglu_forward(h, prob_R, num_rows, a_RF);
  const ZoneScope zone(Zone::kSwiglu);
  const std::int64_t rows = checked_rows(h, options, a_RF, prob_R, num_rows);
  dispatch(options, a_RF, "activation_forward", [&](auto function, auto tag, std::int64_t width, std::int64_t grain) {
    constexpr ActivationFunction kFunction = decltype(function)::value;
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const T* from = h.data_ptr<T>();
    const Acc* prob = prob_R.defined() ? prob_R.data_ptr<Acc>() : nullptr;
    T* a = a_RF.data_ptr<T>();
    const Bounds<Acc> bounds = bounds_of<Acc>(options);
    at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const Acc p = prob != nullptr ? prob[r] : Acc(1);
        if constexpr (kFunction == ActivationFunction::kSitu) {
          const T* gate = from + r * 2 * width;
          situ_forward(gate, gate + width, p, situ_bounds_of<Acc>(options), width, a + r * width);
        } else if (options.unit == ActivationUnit::kPlain) {
          plain_forward<kFunction>(from + r * width, p, width, a + r * width);
        } else {
          const T* gate = from + r * 2 * width;
          gated_forward<kFunction>(gate, gate + width, p, bounds, width, a + r * width);
        }
      }
    });
  });
}

void activation_backward(const Tensor& da_RF, const Tensor& h, const ActivationOptions& options, const Tensor& prob_R,
                         const Tensor& num_rows, Tensor& dh, Tensor& dprob_R, Tensor& a_RF) {
  if (options.is_swiglu()) return swiglu_backward(da_RF, h, prob_R, num_rows, dh, dprob_R, a_RF);
  const ZoneScope zone(Zone::kSwiglu);
  const std::int64_t rows = checked_rows(h, options, da_RF, prob_R, num_rows);
  checked_rows(dh, options, a_RF, dprob_R, num_rows);
  PRIMUS_CHECK(dh.sizes() == h.sizes() && dh.scalar_type() == h.scalar_type(), "activation: dh and h do not agree");
  PRIMUS_CHECK(!prob_R.defined() || dprob_R.defined(), "activation: dprob is missing");
  dispatch(options, a_RF, "activation_backward", [&](auto function, auto tag, std::int64_t width, std::int64_t grain) {
    constexpr ActivationFunction kFunction = decltype(function)::value;
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const T* da = da_RF.data_ptr<T>();
    const T* from = h.data_ptr<T>();
    const Acc* prob = prob_R.defined() ? prob_R.data_ptr<Acc>() : nullptr;
    T* to = dh.data_ptr<T>();
    Acc* dprob = prob != nullptr ? dprob_R.data_ptr<Acc>() : nullptr;
    T* a = a_RF.data_ptr<T>();
    const Bounds<Acc> bounds = bounds_of<Acc>(options);
    at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const Acc p = prob != nullptr ? prob[r] : Acc(1);
        const T* d = da + r * width;
        Acc dp = 0;
        if constexpr (kFunction == ActivationFunction::kSitu) {
          const T* gate = from + r * 2 * width;
          T* dgate = to + r * 2 * width;
          dp = situ_backward(d, gate, gate + width, p, situ_bounds_of<Acc>(options), width, dgate, dgate + width,
                             a + r * width);
        } else if (options.unit == ActivationUnit::kPlain) {
          dp = plain_backward<kFunction>(d, from + r * width, p, width, to + r * width, a + r * width);
        } else {
          const T* gate = from + r * 2 * width;
          T* dgate = to + r * 2 * width;
          dp = gated_backward<kFunction>(d, gate, gate + width, p, bounds, width, dgate, dgate + width, a + r * width);
        }
        if (dprob != nullptr) dprob[r] = dp;
      }
    });
  });
}

}  // namespace primus::ops
