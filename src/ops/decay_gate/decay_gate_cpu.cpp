#include "ops/decay_gate/decay_gate.hpp"

#include "model/host_cuts.hpp"
#include "ops/for_each_unit.hpp"
#include "ops/scratch.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

// Tokens whose share of the parameters' gradients is one partial sum: sums are cut up by shape alone.
constexpr std::int64_t kTokensOfASum = model::kDecayTokensOfASum;

struct Shape {
  std::int64_t tokens, heads, width;
};

Shape shape_of(const Tensor& x_TAK, const Tensor& log_decay_TAK, const DecayGate& gate) {
  PRIMUS_CHECK(x_TAK.dim() == 3 && x_TAK.sizes() == log_decay_TAK.sizes() && log_decay_TAK.is_contiguous(),
               "decay_gate: shapes");
  const Shape shape{x_TAK.size(0), x_TAK.size(1), x_TAK.size(2)};
  PRIMUS_CHECK((x_TAK.stride(2) == 1 || shape.width == 1) && (x_TAK.stride(1) == shape.width || shape.heads == 1),
               "decay_gate: a token's numbers must be dense");
  PRIMUS_CHECK(gate.a_log_A.numel() == shape.heads && gate.dt_bias.numel() == shape.heads * shape.width,
               "decay_gate: parameters of {} heads", shape.heads);
  return shape;
}

/// log(1 + exp(x)), without loss where x is far from 0.
template <typename Acc>
Acc softplus(Acc x) {
  return std::max(x, Acc{0}) + std::log1p(std::exp(-std::abs(x)));
}

/// exp(a_log) of each head.
template <typename T>
std::vector<acc_t<T>> rates(const DecayGate& gate) {
  std::vector<acc_t<T>> values(static_cast<std::size_t>(gate.a_log_A.numel()));
  const T* logs = gate.a_log_A.const_data_ptr<T>();
  for (std::size_t a = 0; a < values.size(); ++a) values[a] = std::exp(static_cast<acc_t<T>>(logs[a]));
  return values;
}

template <typename T>
void forward(const Tensor& x_TAK, const DecayGate& gate, const Tensor& log_decay_TAK, const Shape& shape) {
  using Acc = acc_t<T>;
  const std::vector<Acc> rate = rates<T>(gate);
  const T* bias = gate.dt_bias.const_data_ptr<T>();
  const T* x = x_TAK.const_data_ptr<T>();
  Acc* out = log_decay_TAK.data_ptr<Acc>();
  const std::int64_t row = shape.heads * shape.width;
  at::parallel_for(0, shape.tokens, kTokensOfASum, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t i = 0; i < row; ++i) {
        const Acc u = static_cast<Acc>(x[t * x_TAK.stride(0) + i]) + static_cast<Acc>(bias[i]);
        const Acc head_rate = rate[static_cast<std::size_t>(i / shape.width)];
        out[t * row + i] = gate.lower_bound ? static_cast<Acc>(*gate.lower_bound) * fast_sigmoid(head_rate * u)
                                            : -head_rate * softplus(u);
      }
    }
  });
}

/// Of one number: the gradients of x (and the bias) and of a_log.
template <typename Acc>
struct Slopes {
  Acc x, a_log;
  Slopes(Acc gradient, Acc u, Acc rate, const std::optional<double>& lower_bound) {
    if (lower_bound) {
      const Acc open = fast_sigmoid(rate * u);
      const Acc slope = gradient * static_cast<Acc>(*lower_bound) * open * (Acc{1} - open) * rate;
      x = slope;
      a_log = slope * u;
    } else {
      x = -gradient * rate * fast_sigmoid(u);
      a_log = -gradient * rate * softplus(u);
    }
  }
};

template <typename T>
void backward(const Tensor& dlog_decay_TAK, const Tensor& x_TAK, const DecayGate& gate, const Tensor& dx_TAK,
              const DecayGateGradient& gradient, const Shape& shape) {
  using Acc = acc_t<T>;
  const std::vector<Acc> rate = rates<T>(gate);
  const T* bias = gate.dt_bias.const_data_ptr<T>();
  const T* x = x_TAK.const_data_ptr<T>();
  T* dx = dx_TAK.data_ptr<T>();
  const Acc* dy = dlog_decay_TAK.const_data_ptr<Acc>();
  const std::int64_t row = shape.heads * shape.width;
  const std::int64_t num_sums = (shape.tokens + kTokensOfASum - 1) / kTokensOfASum;
  const Tensor bias_sums = zeroed_scratch({num_sums, row}, dlog_decay_TAK.options());
  const Tensor rate_sums = zeroed_scratch({num_sums, row}, dlog_decay_TAK.options());
  for_each_unit(num_sums, [&](std::int64_t, std::int64_t sum) {
    Acc* dbias = bias_sums.data_ptr<Acc>() + sum * row;
    Acc* drate = rate_sums.data_ptr<Acc>() + sum * row;
    for (std::int64_t t = sum * kTokensOfASum; t < std::min(shape.tokens, (sum + 1) * kTokensOfASum); ++t) {
      for (std::int64_t i = 0; i < row; ++i) {
        const Acc u = static_cast<Acc>(x[t * x_TAK.stride(0) + i]) + static_cast<Acc>(bias[i]);
        const Slopes<Acc> slopes(dy[t * row + i], u, rate[static_cast<std::size_t>(i / shape.width)], gate.lower_bound);
        dx[t * dx_TAK.stride(0) + i] = to_storage<T>(slopes.x);
        dbias[i] += slopes.x;
        drate[i] += slopes.a_log;
      }
    }
  });
  Acc* dbias = gradient.dt_bias.template data_ptr<Acc>();
  Acc* drate = gradient.a_log_A.template data_ptr<Acc>();
  for (std::int64_t i = 0; i < num_sums * row; ++i) {
    dbias[i % row] += bias_sums.const_data_ptr<Acc>()[i];
    drate[i % row / shape.width] += rate_sums.const_data_ptr<Acc>()[i];
  }
}

}  // namespace

void decay_gate_forward(const Tensor& x_TAK, const DecayGate& gate, Tensor& log_decay_TAK) {
  const ZoneScope zone(Zone::kAttentionForward);
  const Shape shape = shape_of(x_TAK, log_decay_TAK, gate);
  dispatch_floating(x_TAK.scalar_type(), "decay_gate_forward",
                    [&](auto tag) { forward<typename decltype(tag)::type>(x_TAK, gate, log_decay_TAK, shape); });
}

void decay_gate_backward(const Tensor& dlog_decay_TAK, const Tensor& x_TAK, const DecayGate& gate, Tensor& dx_TAK,
                         DecayGateGradient& gradient) {
  const ZoneScope zone(Zone::kAttentionBackward);
  const Shape shape = shape_of(x_TAK, dlog_decay_TAK, gate);
  PRIMUS_CHECK(dx_TAK.sizes() == x_TAK.sizes() && (dx_TAK.stride(2) == 1 || shape.width == 1) &&
                   (dx_TAK.stride(1) == shape.width || shape.heads == 1),
               "decay_gate: shape of dx");
  dispatch_floating(x_TAK.scalar_type(), "decay_gate_backward", [&](auto tag) {
    backward<typename decltype(tag)::type>(dlog_decay_TAK, x_TAK, gate, dx_TAK, gradient, shape);
  });
}

}  // namespace primus::ops
