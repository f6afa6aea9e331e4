#include "ops/cuda_ops.hpp"
#include "ops/simd_math.hpp"
#include "ops/swiglu/swiglu.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kElementsPerTask = 8192;  // some 10 µs of work: well above the cost of waking a thread

/// What forward and backward both compute from a pre-activation; one function, so that backward's `activation` has
/// forward's bits.
template <typename Acc>
struct Gated {
  Acc sigmoid, silu, activation;

  [[gnu::always_inline]] Gated(Acc gate, Acc up)
      : sigmoid(fast_sigmoid(gate)), silu(gate * sigmoid), activation(silu * up) {}
};

struct Shape {
  std::int64_t rows, width;
};

/// Checks h [R, 2F], a [R, F] and the optional tensors; gives the rows to work on (on a GPU: all) and F.
Shape checked_shape(const Tensor& h_R2F, const Tensor& a_RF, const Tensor& prob_R, const Tensor& num_rows) {
  PRIMUS_CHECK(
      h_R2F.dim() == 2 && a_RF.dim() == 2 && h_R2F.size(0) == a_RF.size(0) && h_R2F.size(1) == 2 * a_RF.size(1),
      "swiglu: shapes do not agree");
  PRIMUS_CHECK(h_R2F.scalar_type() == a_RF.scalar_type(), "swiglu: tensors differ in type");
  PRIMUS_CHECK(h_R2F.is_contiguous() && a_RF.is_contiguous(), "swiglu: tensors must be contiguous");
  std::int64_t rows = a_RF.size(0);
  if (prob_R.defined()) {
    PRIMUS_CHECK(prob_R.scalar_type() == accumulator_type(h_R2F.scalar_type()), "swiglu: prob must be {}",
                 c10::toString(accumulator_type(h_R2F.scalar_type())));
    PRIMUS_CHECK(prob_R.is_contiguous() && prob_R.numel() == rows, "swiglu: prob must hold one value a row");
  }
  if (num_rows.defined()) {
    PRIMUS_CHECK(num_rows.scalar_type() == at::kInt && num_rows.numel() == 1, "swiglu: num_rows must be one int32");
    if (num_rows.is_cuda()) return {rows, a_RF.size(1)};
    const std::int64_t valid = *num_rows.data_ptr<std::int32_t>();
    PRIMUS_CHECK(valid >= 0 && valid <= rows, "swiglu: {} valid rows in a buffer of {}", valid, rows);
    rows = valid;
  }
  return {rows, a_RF.size(1)};
}

std::int64_t rows_per_task(std::int64_t width) {
  return std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, width));
}

template <typename T, typename Acc = acc_t<T>>
void forward_row(const T* gate, const T* up, Acc prob, std::int64_t width, T* a) {
#pragma omp simd
  for (std::int64_t f = 0; f < width; ++f) {
    const Gated<Acc> gated(static_cast<Acc>(gate[f]), static_cast<Acc>(up[f]));
    a[f] = to_storage<T>(gated.activation * prob);
  }
}

/// Gives the row's dprob. dgate and dup may be gate and up: an element is read before the same element is written, so
/// simd holds.
template <typename T, typename Acc = acc_t<T>>
Acc backward_row(const T* da, const T* gate, const T* up, Acc prob, std::int64_t width, T* dgate, T* dup, T* a) {
  Acc dprob = 0;
#pragma omp simd reduction(+ : dprob)
  for (std::int64_t f = 0; f < width; ++f) {
    const Acc u = static_cast<Acc>(up[f]);
    const Acc d = static_cast<Acc>(da[f]);
    const Gated<Acc> gated(static_cast<Acc>(gate[f]), u);
    dprob += d * gated.activation;
    const Acc scaled = d * prob;
    // d silu / d gate = σ · (1 + gate · (1 − σ)) = σ + silu · (1 − σ)
    dgate[f] = to_storage<T>(scaled * u * std::fma(gated.silu, Acc(1) - gated.sigmoid, gated.sigmoid));
    dup[f] = to_storage<T>(scaled * gated.silu);
    a[f] = to_storage<T>(gated.activation * prob);
  }
  return dprob;
}

}  // namespace

void swiglu_forward(const Tensor& h_R2F, const Tensor& prob_R, const Tensor& num_rows, Tensor& a_RF) {
  const ZoneScope zone(Zone::kSwiglu);
  const Shape shape = checked_shape(h_R2F, a_RF, prob_R, num_rows);
  if (h_R2F.is_cuda()) return cuda_ops().swiglu_forward(h_R2F, prob_R, num_rows, a_RF);
  const std::int64_t width = shape.width;
  dispatch_floating(h_R2F.scalar_type(), "swiglu_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const T* h = h_R2F.data_ptr<T>();
    const Acc* prob = prob_R.defined() ? prob_R.data_ptr<Acc>() : nullptr;
    T* a = a_RF.data_ptr<T>();
    at::parallel_for(0, shape.rows, rows_per_task(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T* gate = h + r * 2 * width;
        forward_row(gate, gate + width, prob != nullptr ? prob[r] : Acc(1), width, a + r * width);
      }
    });
  });
}

void swiglu_backward(const Tensor& da_RF, const Tensor& h_R2F, const Tensor& prob_R, const Tensor& num_rows,
                     Tensor& dh_R2F, Tensor& dprob_R, Tensor& a_RF) {
  const ZoneScope zone(Zone::kSwiglu);
  const Shape shape = checked_shape(h_R2F, da_RF, prob_R, num_rows);
  checked_shape(dh_R2F, a_RF, dprob_R, num_rows);
  PRIMUS_CHECK(dh_R2F.sizes() == h_R2F.sizes() && dh_R2F.scalar_type() == h_R2F.scalar_type(),
               "swiglu: dh and h do not agree");
  PRIMUS_CHECK(!prob_R.defined() || dprob_R.defined(), "swiglu: dprob is missing");
  if (h_R2F.is_cuda()) return cuda_ops().swiglu_backward(da_RF, h_R2F, prob_R, num_rows, dh_R2F, dprob_R, a_RF);
  const std::int64_t width = shape.width;
  dispatch_floating(h_R2F.scalar_type(), "swiglu_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const T* da = da_RF.data_ptr<T>();
    const T* h = h_R2F.data_ptr<T>();
    const Acc* prob = prob_R.defined() ? prob_R.data_ptr<Acc>() : nullptr;
    T* dh = dh_R2F.data_ptr<T>();
    Acc* dprob = prob != nullptr ? dprob_R.data_ptr<Acc>() : nullptr;
    T* a = a_RF.data_ptr<T>();
    at::parallel_for(0, shape.rows, rows_per_task(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T* gate = h + r * 2 * width;
        T* dgate = dh + r * 2 * width;
        const Acc dp = backward_row(da + r * width, gate, gate + width, prob != nullptr ? prob[r] : Acc(1), width,
                                    dgate, dgate + width, a + r * width);
        if (dprob != nullptr) dprob[r] = dp;
      }
    });
  });
}

}  // namespace primus::ops
