#include "ops/norm/norm.hpp"

#include "ops/norm/norm_rows.hpp"
#include "ops/not_on_gpu.hpp"
#include "ops/rms_norm/rms_norm.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

using norm::Rows;

bool is_rms_norm(const NormOptions& options) {
  return options.kind == NormKind::kRms && options.weight == NormWeight::kPlain;
}

/// What one row's arithmetic reads besides x.
template <typename T>
struct RowInput {
  const T* weight;
  const T* bias;  // nullptr: none
  acc_t<T> offset;
};

template <typename T>
struct Statistics {
  acc_t<T> mean, rstd;
};

template <typename T, bool kCentred>
Statistics<T> statistics_of(const T* x, std::int64_t width, acc_t<T> epsilon) {
  using Acc = acc_t<T>;
  Acc mean = 0;
  if constexpr (kCentred) {
#pragma omp simd reduction(+ : mean)
    for (std::int64_t h = 0; h < width; ++h) mean += static_cast<Acc>(x[h]);
    mean /= static_cast<Acc>(width);
  }
  Acc sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t h = 0; h < width; ++h) {
    const Acc centred = static_cast<Acc>(x[h]) - mean;
    sum += centred * centred;
  }
  return {mean, Acc{1} / std::sqrt(sum / static_cast<Acc>(width) + epsilon)};
}

// The one place that rounds y: forward and apply are equal bit for bit because both end here.
template <typename T>
void normalise_row(const T* x, const RowInput<T>& input, Statistics<T> statistics, T* y, std::int64_t width) {
  using Acc = acc_t<T>;
#pragma omp simd
  for (std::int64_t h = 0; h < width; ++h) {
    const Acc normed = (static_cast<Acc>(x[h]) - statistics.mean) * statistics.rstd;
    const Acc bias = input.bias != nullptr ? static_cast<Acc>(input.bias[h]) : Acc(0);
    y[h] = to_storage<T>(normed * (static_cast<Acc>(input.weight[h]) + input.offset) + bias);
  }
}

// With g = dy · weight and n the normed x: dx = rstd · (g − n · mean(g · n)), less rstd · mean(g) where x is centred.
template <typename T, bool kCentred, Write write>
void backward_row(const T* dy, const T* x, const RowInput<T>& input, Statistics<T> statistics, T* dx, acc_t<T>* dweight,
                  acc_t<T>* dbias, std::int64_t width) {
  using Acc = acc_t<T>;
  Acc dot = 0;
  Acc sum = 0;
#pragma omp simd reduction(+ : dot, sum)
  for (std::int64_t h = 0; h < width; ++h) {
    const Acc d = static_cast<Acc>(dy[h]);
    const Acc normed = (static_cast<Acc>(x[h]) - statistics.mean) * statistics.rstd;
    const Acc g = d * (static_cast<Acc>(input.weight[h]) + input.offset);
    dot += g * normed;
    sum += g;
    dweight[h] += d * normed;
    dbias[h] += d;
  }
  const Acc mean_dot = dot / static_cast<Acc>(width);
  const Acc mean_g = kCentred ? sum / static_cast<Acc>(width) : Acc(0);
#pragma omp simd
  for (std::int64_t h = 0; h < width; ++h) {
    const Acc normed = (static_cast<Acc>(x[h]) - statistics.mean) * statistics.rstd;
    const Acc g = static_cast<Acc>(dy[h]) * (static_cast<Acc>(input.weight[h]) + input.offset);
    Acc value = statistics.rstd * (g - normed * mean_dot - mean_g);
    if constexpr (write == Write::kAccumulate) value += static_cast<Acc>(dx[h]);
    dx[h] = to_storage<T>(value);
  }
}

void check(const Tensor& x_TH, const NormParameters& parameters, const NormOptions& options, const Tensor& statistics) {
  norm::check_rows(x_TH, x_TH, "norm", "x");
  for (const Tensor& vector : {parameters.weight_H, parameters.bias_H}) {
    PRIMUS_CHECK(!vector.defined() || (vector.is_contiguous() && vector.numel() == x_TH.size(-1) &&
                                       vector.scalar_type() == x_TH.scalar_type()),
                 "norm: weight and bias must be like rows of x");
  }
  PRIMUS_CHECK(statistics.is_contiguous() && statistics.numel() == options.num_statistics() * norm::num_rows(x_TH) &&
                   statistics.scalar_type() == accumulator_type(x_TH.scalar_type()),
               "norm: shape or type of the statistics");
  if (x_TH.is_cuda()) {
    throw_not_on_gpu(options.kind == NormKind::kLayer ? "normalization: LayerNorm" : "apply_layernorm_1p");
  }
}

template <typename T>
RowInput<T> row_input(const NormParameters& parameters, const NormOptions& options) {
  return {parameters.weight_H.data_ptr<T>(), parameters.bias_H.defined() ? parameters.bias_H.data_ptr<T>() : nullptr,
          options.weight == NormWeight::kAroundOne ? acc_t<T>(1) : acc_t<T>(0)};
}

/// The statistics of row t as they lie in the tensor.
template <typename T>
Statistics<T> stored(const acc_t<T>* values, std::int64_t t, std::int64_t rows, const NormOptions& options) {
  return {options.kind == NormKind::kLayer ? values[rows + t] : acc_t<T>(0), values[t]};
}

/// Sums of one part of the rows, added up in the parts' order afterwards.
template <typename T, bool kCentred, Write write>
void backward_rows(const Tensor& dy_TH, const Tensor& x_TH, const NormParameters& parameters,
                   const NormOptions& options, const Tensor& statistics, Tensor& dx_TH, NormParameters& main_grad) {
  using Acc = acc_t<T>;
  const std::int64_t rows = norm::num_rows(x_TH);
  const std::int64_t width = x_TH.size(-1);
  const std::int64_t part_rows = model::norm_part_rows(rows, width);
  const std::int64_t parts = at::divup(rows, part_rows);
  const Tensor partial = zeroed_scratch({parts, 2, width}, statistics.scalar_type());
  const Rows<const T> dy(dy_TH);
  const Rows<const T> x(x_TH);
  const Rows<T> dx(dx_TH);
  const RowInput<T> input = row_input<T>(parameters, options);
  const Acc* values = statistics.data_ptr<Acc>();
  Acc* const sums = partial.data_ptr<Acc>();
  at::parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      Acc* const dweight = sums + part * 2 * width;
      const std::int64_t last = std::min(rows, (part + 1) * part_rows);
      for (std::int64_t t = part * part_rows; t < last; ++t) {
        backward_row<T, kCentred, write>(dy.at(t), x.at(t), input, stored<T>(values, t, rows, options), dx.at(t),
                                         dweight, dweight + width, width);
      }
    }
  });
  for (std::int64_t part = 0; part < parts; ++part) {
    main_grad.weight_H.add_(partial.select(0, part).select(0, 0));
    if (main_grad.bias_H.defined()) main_grad.bias_H.add_(partial.select(0, part).select(0, 1));
  }
}

}  // namespace

void norm_forward(const Tensor& x_TH, const NormParameters& parameters, const NormOptions& options, Tensor& y_TH,
                  Tensor& statistics) {
  if (is_rms_norm(options)) return rms_norm_forward(x_TH, parameters.weight_H, options.epsilon, y_TH, statistics);
  const ZoneScope zone(Zone::kRmsNorm);
  check(x_TH, parameters, options, statistics);
  norm::check_rows(y_TH, x_TH, "norm", "y");
  const std::int64_t rows = norm::num_rows(x_TH);
  const std::int64_t width = x_TH.size(-1);
  dispatch_floating(x_TH.scalar_type(), "norm_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const Rows<const T> x(x_TH);
    const Rows<T> y(y_TH);
    const RowInput<T> input = row_input<T>(parameters, options);
    Acc* values = statistics.data_ptr<Acc>();
    const auto epsilon = static_cast<Acc>(options.epsilon);
    at::parallel_for(0, rows, model::norm_rows_per_task(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const bool is_centred = options.kind == NormKind::kLayer;
        const Statistics<T> own = is_centred ? statistics_of<T, true>(x.at(t), width, epsilon)
                                             : statistics_of<T, false>(x.at(t), width, epsilon);
        values[t] = own.rstd;
        if (is_centred) values[rows + t] = own.mean;
        normalise_row<T>(x.at(t), input, own, y.at(t), width);
      }
    });
  });
}

void norm_apply(const Tensor& x_TH, const NormParameters& parameters, const NormOptions& options,
                const Tensor& statistics, Tensor& y_TH) {
  if (is_rms_norm(options)) return rms_norm_apply(x_TH, parameters.weight_H, statistics, y_TH);
  const ZoneScope zone(Zone::kRmsNorm);
  check(x_TH, parameters, options, statistics);
  norm::check_rows(y_TH, x_TH, "norm", "y");
  const std::int64_t rows = norm::num_rows(x_TH);
  const std::int64_t width = x_TH.size(-1);
  dispatch_floating(x_TH.scalar_type(), "norm_apply", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Rows<const T> x(x_TH);
    const Rows<T> y(y_TH);
    const RowInput<T> input = row_input<T>(parameters, options);
    const acc_t<T>* values = statistics.data_ptr<acc_t<T>>();
    at::parallel_for(0, rows, model::norm_rows_per_task(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        normalise_row<T>(x.at(t), input, stored<T>(values, t, rows, options), y.at(t), width);
      }
    });
  });
}

void norm_backward(const Tensor& dy_TH, const Tensor& x_TH, const NormParameters& parameters,
                   const NormOptions& options, const Tensor& statistics, Tensor& dx_TH, Write write,
                   NormParameters& main_grad) {
  if (is_rms_norm(options)) {
    return rms_norm_backward(dy_TH, x_TH, parameters.weight_H, statistics, dx_TH, write, main_grad.weight_H);
  }
  const ZoneScope zone(Zone::kRmsNorm);
  check(x_TH, parameters, options, statistics);
  norm::check_rows(dy_TH, x_TH, "norm", "dy");
  norm::check_rows(dx_TH, x_TH, "norm", "dx");
  dispatch_floating(x_TH.scalar_type(), "norm_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto run = [&](auto is_centred, auto is_added) {
      constexpr Write kWrite = decltype(is_added)::value ? Write::kAccumulate : Write::kOverwrite;
      backward_rows<T, decltype(is_centred)::value, kWrite>(dy_TH, x_TH, parameters, options, statistics, dx_TH,
                                                            main_grad);
    };
    const bool is_added = write == Write::kAccumulate;
    if (options.kind == NormKind::kLayer) {
      is_added ? run(std::true_type{}, std::true_type{}) : run(std::true_type{}, std::false_type{});
    } else {
      is_added ? run(std::false_type{}, std::true_type{}) : run(std::false_type{}, std::false_type{});
    }
  });
}

}  // namespace primus::ops
