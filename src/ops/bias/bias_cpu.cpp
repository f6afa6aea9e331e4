#include "ops/bias/bias.hpp"

#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

// The sum is taken in at most this many fixed parts of rows, whatever the number of threads.
constexpr std::int64_t kParts = 16;
constexpr std::int64_t kElementsPerTask = 16384;

void check_matrix(const Tensor& x_TH, std::int64_t width) {
  PRIMUS_CHECK(x_TH.dim() == 2 && x_TH.size(1) == width && (x_TH.stride(1) == 1 || width <= 1), "bias: shape of x");
}

std::int64_t rows_per_task(std::int64_t width) {
  return std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(width, 1));
}

template <typename T>
void add_to_row(const T* bias, std::int64_t width, T* x) {
  using Acc = acc_t<T>;
#pragma omp simd
  for (std::int64_t h = 0; h < width; ++h) x[h] = to_storage<T>(static_cast<Acc>(x[h]) + static_cast<Acc>(bias[h]));
}

template <typename T>
void add_row(const T* x, std::int64_t width, acc_t<T>* sum) {
#pragma omp simd
  for (std::int64_t h = 0; h < width; ++h) sum[h] += static_cast<acc_t<T>>(x[h]);
}

template <typename T>
void sum_rows(const Tensor& dy_TH, Tensor& main_grad_H) {
  using Acc = acc_t<T>;
  const std::int64_t rows = dy_TH.size(0);
  const std::int64_t width = dy_TH.size(1);
  const std::int64_t part_rows = std::max(rows_per_task(width), at::divup(rows, kParts));
  const std::int64_t parts = at::divup(rows, part_rows);
  const Tensor partial_PH = at::zeros({parts, width}, main_grad_H.scalar_type());
  Acc* partial = partial_PH.data_ptr<Acc>();
  const T* dy = dy_TH.data_ptr<T>();
  at::parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const std::int64_t last = std::min(rows, (part + 1) * part_rows);
      for (std::int64_t t = part * part_rows; t < last; ++t) {
        add_row(dy + t * dy_TH.stride(0), width, partial + part * width);
      }
    }
  });
  Acc* gradient = main_grad_H.data_ptr<Acc>();
  for (std::int64_t part = 0; part < parts; ++part) add_row(partial + part * width, width, gradient);
}

}  // namespace

void bias_add(const Tensor& bias_H, Tensor& x_TH) {
  const ZoneScope zone(Zone::kBias);
  check_matrix(x_TH, bias_H.numel());
  PRIMUS_CHECK(bias_H.is_contiguous() && bias_H.scalar_type() == x_TH.scalar_type(), "bias: element type");
  if (x_TH.is_cuda()) {
    x_TH.add_(bias_H);
    return;
  }
  const std::int64_t width = x_TH.size(1);
  dispatch_floating(x_TH.scalar_type(), "bias_add", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* bias = bias_H.data_ptr<T>();
    T* x = x_TH.data_ptr<T>();
    at::parallel_for(0, x_TH.size(0), rows_per_task(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) add_to_row(bias, width, x + t * x_TH.stride(0));
    });
  });
}

void bias_backward(const Tensor& dy_TH, Tensor& main_grad_H) {
  const ZoneScope zone(Zone::kBias);
  check_matrix(dy_TH, main_grad_H.numel());
  PRIMUS_CHECK(main_grad_H.is_contiguous() && main_grad_H.scalar_type() == accumulator_type(dy_TH.scalar_type()),
               "bias: element type of main_grad");
  if (dy_TH.is_cuda()) {
    main_grad_H.add_(dy_TH.sum({0}, false, main_grad_H.scalar_type()));
    return;
  }
  dispatch_floating(dy_TH.scalar_type(), "bias_backward",
                    [&](auto tag) { sum_rows<typename decltype(tag)::type>(dy_TH, main_grad_H); });
}

}  // namespace primus::ops
