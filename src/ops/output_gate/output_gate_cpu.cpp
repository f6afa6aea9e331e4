#include "ops/output_gate/output_gate.hpp"

#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kElementsPerTask = 16384;

template <typename T>
struct Heads {
  T* data;
  std::int64_t token_stride, head_stride;

  Heads(const Tensor& x_TAV, const Tensor& like_TAV, const char* name)
      : data(x_TAV.data_ptr<std::remove_const_t<T>>()), token_stride(x_TAV.stride(0)), head_stride(x_TAV.stride(1)) {
    PRIMUS_CHECK(x_TAV.dim() == 3 && x_TAV.sizes() == like_TAV.sizes(), "output_gate: shape of {}", name);
    PRIMUS_CHECK(x_TAV.stride(2) == 1 || x_TAV.size(2) <= 1, "output_gate: heads of {} must be dense", name);
  }
  T* at(std::int64_t token, std::int64_t head) const { return data + token * token_stride + head * head_stride; }
};

template <typename T>
void forward_head(const T* x, const T* gate, std::int64_t width, T* y) {
  using Acc = acc_t<T>;
#pragma omp simd
  for (std::int64_t v = 0; v < width; ++v) {
    y[v] = to_storage<T>(static_cast<Acc>(x[v]) * fast_sigmoid(static_cast<Acc>(gate[v])));
  }
}

template <typename T>
void backward_head(const T* dy, const T* x, const T* gate, std::int64_t width, T* dx, T* dgate) {
  using Acc = acc_t<T>;
#pragma omp simd
  for (std::int64_t v = 0; v < width; ++v) {
    const Acc open = fast_sigmoid(static_cast<Acc>(gate[v]));
    const Acc gradient = static_cast<Acc>(dy[v]);
    dgate[v] = to_storage<T>(gradient * static_cast<Acc>(x[v]) * open * (Acc{1} - open));
    dx[v] = to_storage<T>(gradient * open);
  }
}

template <typename Body>
void for_each_head(const Tensor& like_TAV, const Body& body) {
  const std::int64_t heads = like_TAV.size(1);
  const std::int64_t grain = std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(like_TAV.size(2), 1));
  at::parallel_for(0, like_TAV.size(0) * heads, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(i / heads, i % heads);
  });
}

}  // namespace

void output_gate_forward(const Tensor& x_TAV, const Tensor& gate_TAV, Tensor& y_TAV) {
  const ZoneScope zone(Zone::kOutputGate);
  if (x_TAV.is_cuda()) {
    y_TAV.copy_(gate_TAV.sigmoid().mul_(x_TAV));
    return;
  }
  dispatch_floating(x_TAV.scalar_type(), "output_gate_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Heads<const T> x(x_TAV, x_TAV, "x");
    const Heads<const T> gate(gate_TAV, x_TAV, "gate");
    const Heads<T> y(y_TAV, x_TAV, "y");
    for_each_head(x_TAV, [&](std::int64_t t, std::int64_t a) {
      forward_head(x.at(t, a), gate.at(t, a), x_TAV.size(2), y.at(t, a));
    });
  });
}

void output_gate_backward(const Tensor& dy_TAV, const Tensor& x_TAV, const Tensor& gate_TAV, Tensor& dx_TAV,
                          Tensor& dgate_TAV) {
  const ZoneScope zone(Zone::kOutputGate);
  if (x_TAV.is_cuda()) {
    const Tensor open = gate_TAV.sigmoid();
    dgate_TAV.copy_(open.neg().add_(1).mul_(open).mul_(x_TAV).mul_(dy_TAV));
    dx_TAV.copy_(open.mul(dy_TAV));
    return;
  }
  dispatch_floating(x_TAV.scalar_type(), "output_gate_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Heads<const T> dy(dy_TAV, x_TAV, "dy");
    const Heads<const T> x(x_TAV, x_TAV, "x");
    const Heads<const T> gate(gate_TAV, x_TAV, "gate");
    const Heads<T> dx(dx_TAV, x_TAV, "dx");
    const Heads<T> dgate(dgate_TAV, x_TAV, "dgate");
    for_each_head(x_TAV, [&](std::int64_t t, std::int64_t a) {
      backward_head(dy.at(t, a), x.at(t, a), gate.at(t, a), x_TAV.size(2), dx.at(t, a), dgate.at(t, a));
    });
  });
}

}  // namespace primus::ops
