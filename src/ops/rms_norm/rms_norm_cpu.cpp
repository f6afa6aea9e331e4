#include "ops/rms_norm/rms_norm.hpp"

#include "ops/cuda_ops.hpp"
#include "ops/norm/norm_rows.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

using model::norm_rows_per_task;
using norm::num_rows;
using norm::Rows;

void check_rows(const Tensor& rows_TH, const Tensor& like_TH, const char* name) {
  norm::check_rows(rows_TH, like_TH, "rms_norm", name);
}

void check_operands(const Tensor& x_TH, const Tensor& weight_H, const Tensor& rstd_T) {
  PRIMUS_CHECK(weight_H.is_contiguous() && weight_H.numel() == x_TH.size(-1), "rms_norm: shape of weight");
  PRIMUS_CHECK(weight_H.scalar_type() == x_TH.scalar_type(), "rms_norm: weight and x differ in type");
  PRIMUS_CHECK(rstd_T.is_contiguous() && rstd_T.numel() == num_rows(x_TH), "rms_norm: shape of rstd");
  PRIMUS_CHECK(rstd_T.scalar_type() == accumulator_type(x_TH.scalar_type()), "rms_norm: element type of rstd");
}

template <typename T>
acc_t<T> sum_of_squares(const T* x, std::int64_t width) {
  using Acc = acc_t<T>;
  Acc sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t h = 0; h < width; ++h) sum += static_cast<Acc>(x[h]) * static_cast<Acc>(x[h]);
  return sum;
}

// The one place that rounds y: forward and apply are equal bit for bit because both end here.
template <typename T>
void normalise_row(const T* x, const T* weight, acc_t<T> rstd, T* y, std::int64_t width) {
  using Acc = acc_t<T>;
#pragma omp simd
  for (std::int64_t h = 0; h < width; ++h) {
    y[h] = to_storage<T>(static_cast<Acc>(x[h]) * rstd * static_cast<Acc>(weight[h]));
  }
}

// dx of one row, and its share of the weight's gradient: with g = dy · weight and n = x · rstd,
// dx = rstd · (g − n · mean(g · n)) and dweight = dy · n.
template <typename T, Write write>
void backward_row(const T* dy, const T* x, const T* weight, acc_t<T> rstd, T* dx, acc_t<T>* dweight,
                  std::int64_t width) {
  using Acc = acc_t<T>;
  Acc dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t h = 0; h < width; ++h) {
    const Acc product = static_cast<Acc>(dy[h]) * static_cast<Acc>(x[h]) * rstd;
    dot += product * static_cast<Acc>(weight[h]);
    dweight[h] += product;
  }
  const Acc mean = dot / static_cast<Acc>(width);
#pragma omp simd
  for (std::int64_t h = 0; h < width; ++h) {
    const Acc normalised = static_cast<Acc>(x[h]) * rstd;
    Acc value = rstd * (static_cast<Acc>(dy[h]) * static_cast<Acc>(weight[h]) - normalised * mean);
    if constexpr (write == Write::kAccumulate) value += static_cast<Acc>(dx[h]);
    dx[h] = to_storage<T>(value);
  }
}

template <typename T, Write write>
void backward_rows(const Tensor& dy_TH, const Tensor& x_TH, const Tensor& weight_H, const Tensor& rstd_T, Tensor& dx_TH,
                   Tensor& main_grad_H) {
  using Acc = acc_t<T>;
  const std::int64_t rows = num_rows(x_TH);
  const std::int64_t width = x_TH.size(-1);
  const std::int64_t part_rows = model::norm_part_rows(rows, width);
  const std::int64_t parts = at::divup(rows, part_rows);
  const Tensor partial_PH = zeroed_scratch({parts, width}, main_grad_H.scalar_type());
  Acc* partial = partial_PH.data_ptr<Acc>();
  const Rows<const T> dy(dy_TH);
  const Rows<const T> x(x_TH);
  const T* weight = weight_H.data_ptr<T>();
  const Acc* rstd = rstd_T.data_ptr<Acc>();
  const Rows<T> dx(dx_TH);
  at::parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const std::int64_t last = std::min(rows, (part + 1) * part_rows);
      for (std::int64_t t = part * part_rows; t < last; ++t) {
        backward_row<T, write>(dy.at(t), x.at(t), weight, rstd[t], dx.at(t), partial + part * width, width);
      }
    }
  });
  Acc* gradient = main_grad_H.data_ptr<Acc>();
  for (std::int64_t part = 0; part < parts; ++part) {
#pragma omp simd
    for (std::int64_t h = 0; h < width; ++h) gradient[h] += partial[part * width + h];
  }
}

}  // namespace

void rms_norm_forward(const Tensor& x_TH, const Tensor& weight_H, double epsilon, Tensor& y_TH, Tensor& rstd_T) {
  const ZoneScope zone(Zone::kRmsNorm);
  check_rows(x_TH, x_TH, "x");
  check_rows(y_TH, x_TH, "y");
  check_operands(x_TH, weight_H, rstd_T);
  if (x_TH.is_cuda()) return cuda_ops().rms_norm_forward(x_TH, weight_H, epsilon, y_TH, rstd_T);
  const std::int64_t width = x_TH.size(-1);
  dispatch_floating(x_TH.scalar_type(), "rms_norm_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const Rows<const T> x(x_TH);
    const T* weight = weight_H.data_ptr<T>();
    const Rows<T> y(y_TH);
    Acc* rstd = rstd_T.data_ptr<Acc>();
    at::parallel_for(0, num_rows(x_TH), norm_rows_per_task(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const T* row = x.at(t);
        const Acc mean = sum_of_squares(row, width) / static_cast<Acc>(width);
        rstd[t] = Acc{1} / std::sqrt(mean + static_cast<Acc>(epsilon));
        normalise_row(row, weight, rstd[t], y.at(t), width);
      }
    });
  });
}

void rms_norm_apply(const Tensor& x_TH, const Tensor& weight_H, const Tensor& rstd_T, Tensor& y_TH) {
  const ZoneScope zone(Zone::kRmsNorm);
  check_rows(x_TH, x_TH, "x");
  check_rows(y_TH, x_TH, "y");
  check_operands(x_TH, weight_H, rstd_T);
  if (x_TH.is_cuda()) return cuda_ops().rms_norm_apply(x_TH, weight_H, rstd_T, y_TH);
  const std::int64_t width = x_TH.size(-1);
  dispatch_floating(x_TH.scalar_type(), "rms_norm_apply", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Rows<const T> x(x_TH);
    const T* weight = weight_H.data_ptr<T>();
    const acc_t<T>* rstd = rstd_T.data_ptr<acc_t<T>>();
    const Rows<T> y(y_TH);
    at::parallel_for(0, num_rows(x_TH), norm_rows_per_task(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        normalise_row(x.at(t), weight, rstd[t], y.at(t), width);
      }
    });
  });
}

void rms_norm_backward(const Tensor& dy_TH, const Tensor& x_TH, const Tensor& weight_H, const Tensor& rstd_T,
                       Tensor& dx_TH, Write write, Tensor& main_grad_H) {
  const ZoneScope zone(Zone::kRmsNorm);
  check_rows(x_TH, x_TH, "x");
  check_rows(dy_TH, x_TH, "dy");
  check_rows(dx_TH, x_TH, "dx");
  check_operands(x_TH, weight_H, rstd_T);
  PRIMUS_CHECK(main_grad_H.is_contiguous() && main_grad_H.numel() == x_TH.size(-1), "rms_norm: shape of main_grad");
  PRIMUS_CHECK(main_grad_H.scalar_type() == rstd_T.scalar_type(), "rms_norm: element type of main_grad");
  if (x_TH.is_cuda()) {
    return cuda_ops().rms_norm_backward(dy_TH, x_TH, weight_H, rstd_T, dx_TH, write, main_grad_H);
  }
  dispatch_floating(x_TH.scalar_type(), "rms_norm_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (write == Write::kAccumulate) {
      backward_rows<T, Write::kAccumulate>(dy_TH, x_TH, weight_H, rstd_T, dx_TH, main_grad_H);
    } else {
      backward_rows<T, Write::kOverwrite>(dy_TH, x_TH, weight_H, rstd_T, dx_TH, main_grad_H);
    }
  });
}

}  // namespace primus::ops
