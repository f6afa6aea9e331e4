#include "ops/cuda_ops.hpp"
#include "ops/router/noise.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kElementsPerTask = 4096;  // a number costs some 5 ns

void check(const Tensor& y_TH) {
  PRIMUS_CHECK(y_TH.dim() == 2 && y_TH.is_contiguous(), "router noise: values must be [T, H], contiguous");
}

/// body(t, index of its first number) for every token, in parallel.
template <typename Body>
void for_each_token(const Tensor& y_TH, const TokenNoise& noise, const Body& body) {
  const std::int64_t width = y_TH.size(1);
  at::parallel_for(0, y_TH.size(0), 1 + kElementsPerTask / (1 + width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) body(t, static_cast<std::uint64_t>((noise.first_token + t) * width));
  });
}

}  // namespace

void token_jitter(const Tensor& x_TH, const TokenNoise& noise, double epsilon, Tensor& y_TH, Write write) {
  const ZoneScope zone(Zone::kRouter);
  PRIMUS_CHECK(x_TH.sizes() == y_TH.sizes() && x_TH.scalar_type() == y_TH.scalar_type() && x_TH.is_contiguous(),
               "router noise: tensors do not agree");
  check(y_TH);
  if (y_TH.is_cuda()) return cuda_ops().token_jitter(x_TH, noise, epsilon, y_TH, write);
  const std::int64_t width = x_TH.size(1);
  const Philox philox(noise.seed, noise.stream);
  dispatch_floating(x_TH.scalar_type(), "token_jitter", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const T* x = x_TH.data_ptr<T>();
    T* y = y_TH.data_ptr<T>();
    for_each_token(y_TH, noise, [&](std::int64_t t, std::uint64_t first) {
      for (std::int64_t h = 0; h < width; ++h) {
        const double u = philox.uniform(first + static_cast<std::uint64_t>(h));
        const Acc factor = static_cast<Acc>(1.0 + epsilon * (2.0 * u - 1.0));
        const std::int64_t at = t * width + h;
        const Acc before = write == Write::kAccumulate ? static_cast<Acc>(y[at]) : Acc(0);
        y[at] = to_storage<T>(before + static_cast<Acc>(x[at]) * factor);
      }
    });
  });
}

void token_normal(const TokenNoise& noise, const Tensor& bias_H, Tensor& y_TH) {
  const ZoneScope zone(Zone::kRouter);
  check(y_TH);
  const std::int64_t width = y_TH.size(1);
  PRIMUS_CHECK(!bias_H.defined() || (bias_H.numel() == width && bias_H.scalar_type() == y_TH.scalar_type()),
               "router noise: bias must be [H]");
  if (y_TH.is_cuda()) return cuda_ops().token_normal(noise, bias_H, y_TH);
  const Philox philox(noise.seed, noise.stream);
  dispatch_floating(y_TH.scalar_type(), "token_normal", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    T* y = y_TH.data_ptr<T>();
    const T* bias = bias_H.defined() ? bias_H.data_ptr<T>() : nullptr;
    for_each_token(y_TH, noise, [&](std::int64_t t, std::uint64_t first) {
      for (std::int64_t h = 0; h < width; ++h) {
        const Acc normal = static_cast<Acc>(philox.normal(first + static_cast<std::uint64_t>(h)));
        y[t * width + h] = to_storage<T>(normal + (bias != nullptr ? static_cast<Acc>(bias[h]) : Acc(0)));
      }
    });
  });
}

}  // namespace primus::ops
