#include "ops/bias/bias.hpp"

#include <array>

#include "ops/for_each_unit.hpp"
#include "ops/not_on_gpu.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kElementsPerTask = 8192;
constexpr std::int64_t kColumnBlock = 128;  // columns that one task sums over all rows of an expert

/// The rows and the experts that own them.
class Groups {
 public:
  Groups(const Tensor& rows, const Tensor& bias, const Tensor& offsets, const Tensor& scale)
      : rows_(rows.size(0)), width_(rows.size(1)), experts_(bias.numel() / std::max<std::int64_t>(1, width_)) {
    if (rows.is_cuda()) throw_not_on_gpu("add_bias_linear");
    PRIMUS_CHECK(rows.dim() == 2 && rows.is_contiguous() && bias.is_contiguous() && bias.size(-1) == width_,
                 "bias: rows and biases do not agree");
    PRIMUS_CHECK(!scale.defined() || (scale.is_contiguous() && scale.numel() == rows_ &&
                                      scale.scalar_type() == accumulator_type(rows.scalar_type())),
                 "bias: the scale must hold one {} a row", c10::toString(accumulator_type(rows.scalar_type())));
    if (!offsets.defined()) {
      PRIMUS_CHECK(experts_ == 1, "bias: {} biases without offsets", experts_);
      return;
    }
    PRIMUS_CHECK(offsets.scalar_type() == at::kInt && offsets.is_contiguous() && offsets.numel() == experts_ + 1,
                 "bias: offsets must be int32 [E+1]");
    offsets_ = offsets.data_ptr<std::int32_t>();
    PRIMUS_CHECK(offsets_[0] == 0 && offsets_[experts_] <= rows_, "bias: offsets end at {} of {} rows",
                 offsets_[experts_], rows_);
  }

  std::int64_t width() const { return width_; }
  std::int64_t experts() const { return experts_; }
  std::int64_t first(std::int64_t expert) const { return offsets_ != nullptr ? offsets_[expert] : expert * rows_; }
  std::int64_t num_rows() const { return first(experts_); }

  /// body(row, its expert), in parallel.
  template <typename Body>
  void for_each_row(const Body& body) const {
    at::parallel_for(0, num_rows(), 1 + kElementsPerTask / (1 + width_), [&](std::int64_t begin, std::int64_t end) {
      std::int64_t expert = 0;
      for (std::int64_t r = begin; r < end; ++r) {
        while (first(expert + 1) <= r) ++expert;
        body(r, expert);
      }
    });
  }

 private:
  std::int64_t rows_, width_, experts_;
  const std::int32_t* offsets_ = nullptr;
};

template <typename T, typename Acc = acc_t<T>>
void add_row(const T* bias, Acc scale, std::int64_t n, T* y) {
#pragma omp simd
  for (std::int64_t o = 0; o < n; ++o) {
    y[o] = to_storage<T>(std::fma(scale, static_cast<Acc>(bias[o]), static_cast<Acc>(y[o])));
  }
}

template <typename T, typename Acc = acc_t<T>>
Acc product(const T* a, const T* b, std::int64_t n) {
  Acc sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t o = 0; o < n; ++o) sum += static_cast<Acc>(a[o]) * static_cast<Acc>(b[o]);
  return sum;
}

template <typename T, typename Acc = acc_t<T>>
void add_scaled(const T* row, Acc scale, std::int64_t n, Acc* sum) {
#pragma omp simd
  for (std::int64_t o = 0; o < n; ++o) sum[o] += scale * static_cast<Acc>(row[o]);
}

/// One bias for all rows, as it is: ATen's own sums do on a GPU.
bool is_plain_on_gpu(const Tensor& rows, const Tensor& offsets, const Tensor& scale) {
  return rows.is_cuda() && !offsets.defined() && !scale.defined();
}

}  // namespace

void bias_add(const Tensor& bias_EO, const Tensor& offsets, const Tensor& scale_R, Tensor& y_RO) {
  const ZoneScope zone(Zone::kBias);
  if (is_plain_on_gpu(y_RO, offsets, scale_R)) {
    y_RO.add_(bias_EO.view({-1}));
    return;
  }
  const Groups groups(y_RO, bias_EO, offsets, scale_R);
  PRIMUS_CHECK(bias_EO.scalar_type() == y_RO.scalar_type(), "bias: tensors differ in type");
  dispatch_floating(y_RO.scalar_type(), "bias_add", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const T* bias = bias_EO.data_ptr<T>();
    const Acc* scale = scale_R.defined() ? scale_R.data_ptr<Acc>() : nullptr;
    T* y = y_RO.data_ptr<T>();
    const std::int64_t width = groups.width();
    groups.for_each_row([&](std::int64_t r, std::int64_t e) {
      add_row(bias + e * width, scale != nullptr ? scale[r] : Acc(1), width, y + r * width);
    });
  });
}

void bias_scale_gradient(const Tensor& dy_RO, const Tensor& bias_EO, const Tensor& offsets, Tensor& dscale_R) {
  const ZoneScope zone(Zone::kBias);
  const Groups groups(dy_RO, bias_EO, offsets, dscale_R);
  PRIMUS_CHECK(bias_EO.scalar_type() == dy_RO.scalar_type(), "bias: tensors differ in type");
  dispatch_floating(dy_RO.scalar_type(), "bias_scale_gradient", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* bias = bias_EO.data_ptr<T>();
    const T* dy = dy_RO.data_ptr<T>();
    auto* dscale = dscale_R.data_ptr<acc_t<T>>();
    const std::int64_t width = groups.width();
    groups.for_each_row(
        [&](std::int64_t r, std::int64_t e) { dscale[r] += product(dy + r * width, bias + e * width, width); });
  });
}

void bias_gradient(const Tensor& dy_RO, const Tensor& offsets, const Tensor& scale_R, Tensor& main_grad_EO) {
  const ZoneScope zone(Zone::kBias);
  if (is_plain_on_gpu(dy_RO, offsets, scale_R)) {
    main_grad_EO.add_(dy_RO.sum({0}, false, main_grad_EO.scalar_type()).view(main_grad_EO.sizes()));
    return;
  }
  const Groups groups(dy_RO, main_grad_EO, offsets, scale_R);
  PRIMUS_CHECK(main_grad_EO.scalar_type() == accumulator_type(dy_RO.scalar_type()), "bias: main gradient of type {}",
               c10::toString(main_grad_EO.scalar_type()));
  dispatch_floating(dy_RO.scalar_type(), "bias_gradient", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const T* dy = dy_RO.data_ptr<T>();
    const Acc* scale = scale_R.defined() ? scale_R.data_ptr<Acc>() : nullptr;
    Acc* grad = main_grad_EO.data_ptr<Acc>();
    const std::int64_t width = groups.width();
    const std::int64_t blocks = (width + kColumnBlock - 1) / kColumnBlock;
    // Each column's rows are added in order, whatever the number of threads.
    for_each_unit(groups.experts() * blocks, [&](std::int64_t, std::int64_t unit) {
      const std::int64_t e = unit / blocks;
      const std::int64_t column = unit % blocks * kColumnBlock;
      const std::int64_t n = std::min(kColumnBlock, width - column);
      std::array<Acc, kColumnBlock> sum{};
      for (std::int64_t r = groups.first(e); r < groups.first(e + 1); ++r) {
        add_scaled(dy + r * width + column, scale != nullptr ? scale[r] : Acc(1), n, sum.data());
      }
      for (std::int64_t o = 0; o < n; ++o) grad[e * width + column + o] += sum[static_cast<std::size_t>(o)];
    });
  });
}

}  // namespace primus::ops
