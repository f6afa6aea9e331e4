#include "ops/gated_norm/gated_norm.hpp"

#include "model/host_cuts.hpp"
#include "ops/for_each_unit.hpp"
#include "ops/scratch.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

// Heads whose share of the weight's gradient is one partial sum: sums are cut up by shape alone.
constexpr std::int64_t kHeadsOfASum = model::kGatedHeadsOfASum;

template <typename T>
struct Heads {
  T* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0, heads = 0;

  Heads(const Tensor& x_TAV, const Tensor& like_TAV, const char* name)
      : data(x_TAV.data_ptr<std::remove_const_t<T>>()),
        token_stride(x_TAV.stride(0)),
        head_stride(x_TAV.stride(1)),
        heads(x_TAV.size(1)) {
    PRIMUS_CHECK(x_TAV.dim() == 3 && x_TAV.sizes() == like_TAV.sizes(), "gated_norm: shape of {}", name);
    PRIMUS_CHECK(x_TAV.stride(2) == 1 || x_TAV.size(2) <= 1, "gated_norm: heads of {} must be dense", name);
  }
  T* at(std::int64_t index) const { return data + index / heads * token_stride + index % heads * head_stride; }
};

template <typename T>
acc_t<T> inverse_rms(const T* x, std::int64_t width, acc_t<T> epsilon) {
  using Acc = acc_t<T>;
  Acc sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t v = 0; v < width; ++v) sum += static_cast<Acc>(x[v]) * static_cast<Acc>(x[v]);
  return Acc{1} / std::sqrt(sum / static_cast<Acc>(width) + epsilon);
}

/// f(gate) and its slope.
template <NormGate kGate, typename Acc>
struct Opening {
  Acc value, slope;
  [[gnu::always_inline]] explicit Opening(Acc gate) {
    const Acc open = fast_sigmoid(gate);
    if constexpr (kGate == NormGate::kSigmoid) {
      value = open;
      slope = open * (Acc{1} - open);
    } else {
      value = gate * open;
      slope = open * (Acc{1} + gate * (Acc{1} - open));
    }
  }
};

template <NormGate kGate, typename T>
void forward_head(const T* x, const T* gate, const T* weight, std::int64_t width, acc_t<T> epsilon, T* y) {
  using Acc = acc_t<T>;
  const Acc factor = inverse_rms(x, width, epsilon);
#pragma omp simd
  for (std::int64_t v = 0; v < width; ++v) {
    const Opening<kGate, Acc> opening(static_cast<Acc>(gate[v]));
    y[v] = to_storage<T>(static_cast<Acc>(weight[v]) * (static_cast<Acc>(x[v]) * factor) * opening.value);
  }
}

/// `scratch`: the gradient of the normed x, before its weight.
template <NormGate kGate, typename T>
void backward_head(const T* dy, const T* x, const T* gate, const T* weight, std::int64_t width, acc_t<T> epsilon,
                   acc_t<T>* scratch, T* dx, T* dgate, acc_t<T>* dweight) {
  using Acc = acc_t<T>;
  const Acc factor = inverse_rms(x, width, epsilon);
  Acc along = 0;
#pragma omp simd reduction(+ : along)
  for (std::int64_t v = 0; v < width; ++v) {
    const Opening<kGate, Acc> opening(static_cast<Acc>(gate[v]));
    const Acc normed = static_cast<Acc>(x[v]) * factor;
    const Acc gradient = static_cast<Acc>(dy[v]);
    const Acc scale = static_cast<Acc>(weight[v]);
    dgate[v] = to_storage<T>(gradient * scale * normed * opening.slope);
    dweight[v] += gradient * normed * opening.value;
    scratch[v] = gradient * scale * opening.value;
    along += scratch[v] * normed;
  }
  along /= static_cast<Acc>(width);
#pragma omp simd
  for (std::int64_t v = 0; v < width; ++v) {
    dx[v] = to_storage<T>(factor * (scratch[v] - static_cast<Acc>(x[v]) * factor * along));
  }
}

/// body(first head, one behind the last, number of the sum).
template <typename Body>
void for_each_sum(std::int64_t heads, const Body& body) {
  for_each_unit((heads + kHeadsOfASum - 1) / kHeadsOfASum, [&](std::int64_t, std::int64_t unit) {
    body(unit * kHeadsOfASum, std::min(heads, (unit + 1) * kHeadsOfASum), unit);
  });
}

template <NormGate kGate, typename T>
void forward(const Tensor& x_TAV, const Tensor& gate_TAV, const GatedNorm& norm, const Tensor& y_TAV) {
  const Heads<const T> x(x_TAV, x_TAV, "x");
  const Heads<const T> gate(gate_TAV, x_TAV, "gate");
  const Heads<T> y(y_TAV, x_TAV, "y");
  const T* weight = norm.weight_V.const_data_ptr<T>();
  for_each_sum(x_TAV.size(0) * x_TAV.size(1), [&](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t i = begin; i < end; ++i) {
      forward_head<kGate, T>(x.at(i), gate.at(i), weight, x_TAV.size(2), static_cast<acc_t<T>>(norm.epsilon), y.at(i));
    }
  });
}

template <NormGate kGate, typename T>
void backward(const Tensor& dy_TAV, const Tensor& x_TAV, const Tensor& gate_TAV, const GatedNorm& norm,
              const Tensor& dx_TAV, const Tensor& dgate_TAV, const Tensor& main_grad_V) {
  using Acc = acc_t<T>;
  const Heads<const T> dy(dy_TAV, x_TAV, "dy");
  const Heads<const T> x(x_TAV, x_TAV, "x");
  const Heads<const T> gate(gate_TAV, x_TAV, "gate");
  const Heads<T> dx(dx_TAV, x_TAV, "dx");
  const Heads<T> dgate(dgate_TAV, x_TAV, "dgate");
  const T* weight = norm.weight_V.const_data_ptr<T>();
  const std::int64_t width = x_TAV.size(2);
  const std::int64_t heads = x_TAV.size(0) * x_TAV.size(1);
  const std::int64_t num_sums = (heads + kHeadsOfASum - 1) / kHeadsOfASum;
  const Tensor sums = zeroed_scratch({num_sums, width}, main_grad_V.options());
  const Tensor row = scratch({num_sums, width}, main_grad_V.options());
  for_each_sum(heads, [&](std::int64_t begin, std::int64_t end, std::int64_t sum) {
    for (std::int64_t i = begin; i < end; ++i) {
      backward_head<kGate, T>(dy.at(i), x.at(i), gate.at(i), weight, width, static_cast<Acc>(norm.epsilon),
                              row.data_ptr<Acc>() + sum * width, dx.at(i), dgate.at(i),
                              sums.data_ptr<Acc>() + sum * width);
    }
  });
  Acc* total = main_grad_V.data_ptr<Acc>();
  for (std::int64_t sum = 0; sum < num_sums; ++sum) {
    for (std::int64_t v = 0; v < width; ++v) total[v] += sums.const_data_ptr<Acc>()[sum * width + v];
  }
}

void check(const Tensor& x_TAV, const GatedNorm& norm) {
  PRIMUS_CHECK(x_TAV.dim() == 3 && norm.weight_V.numel() == x_TAV.size(2), "gated_norm: shape of the weight");
}

}  // namespace

void gated_norm_forward(const Tensor& x_TAV, const Tensor& gate_TAV, const GatedNorm& norm, Tensor& y_TAV) {
  const ZoneScope zone(Zone::kOutputGate);
  check(x_TAV, norm);
  dispatch_floating(x_TAV.scalar_type(), "gated_norm_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (norm.gate == NormGate::kSilu) return forward<NormGate::kSilu, T>(x_TAV, gate_TAV, norm, y_TAV);
    forward<NormGate::kSigmoid, T>(x_TAV, gate_TAV, norm, y_TAV);
  });
}

void gated_norm_backward(const Tensor& dy_TAV, const Tensor& x_TAV, const Tensor& gate_TAV, const GatedNorm& norm,
                         Tensor& dx_TAV, Tensor& dgate_TAV, Tensor& main_grad_V) {
  const ZoneScope zone(Zone::kOutputGate);
  check(x_TAV, norm);
  PRIMUS_CHECK(main_grad_V.numel() == x_TAV.size(2), "gated_norm: shape of the weight's gradient");
  dispatch_floating(x_TAV.scalar_type(), "gated_norm_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (norm.gate == NormGate::kSilu) {
      return backward<NormGate::kSilu, T>(dy_TAV, x_TAV, gate_TAV, norm, dx_TAV, dgate_TAV, main_grad_V);
    }
    backward<NormGate::kSigmoid, T>(dy_TAV, x_TAV, gate_TAV, norm, dx_TAV, dgate_TAV, main_grad_V);
  });
}

}  // namespace primus::ops
