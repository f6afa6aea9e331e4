#pragma once
// One optimizer step of one element, by each rule: the same operations in the same order on host and device.
#include <cmath>
#include <cstdint>

#include "ops/gpu/host_device.hpp"

namespace primus::ops {

/// g: the gradient times the gate's factor, λ: the decay, w: the master weight.
/// kAdamW: as adamw_step. kSgd (torch.optim.SGD): m = β1·m + g + λ·w; w −= lr·m. kLion: w −= lr·(sign(β1·m + (1−β1)·g)
/// + λ·w); m = β2·m + (1−β2)·g.
enum class UpdateRule { kAdamW, kSgd, kLion };

/// What one step multiplies by, in the accumulator's type.
template <typename Acc>
struct UpdateFactors {
  Acc scale, beta1, one_minus_beta1, beta2, one_minus_beta2, first_correction, second_correction, epsilon, decay,
      learning_rate;
};

/// base^exponent, exponent >= 0, by squaring: the same bits on host and device, and no library's slow path.
PRIMUS_HOST_DEVICE inline double integer_power(double base, std::int64_t exponent) {
  double power = 1.0;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) power *= base;
    base *= base;
  }
  return power;
}

/// What stays the same over a run, and whether the decay applies.
struct UpdateConstants {
  double beta1, beta2, epsilon;
  bool decays;
};

/// The factors of update number `step` >= 1; rates: learning rate and decay.
template <typename Acc>
PRIMUS_HOST_DEVICE inline UpdateFactors<Acc> update_factors(const UpdateConstants& c, double grad_scale,
                                                            const double* rates, std::int64_t step) {
  return {static_cast<Acc>(grad_scale),
          static_cast<Acc>(c.beta1),
          static_cast<Acc>(1.0 - c.beta1),
          static_cast<Acc>(c.beta2),
          static_cast<Acc>(1.0 - c.beta2),
          static_cast<Acc>(1.0 / (1.0 - integer_power(c.beta1, step))),
          static_cast<Acc>(1.0 / (1.0 - integer_power(c.beta2, step))),
          static_cast<Acc>(c.epsilon),
          static_cast<Acc>(c.decays ? rates[1] : 0.0),
          static_cast<Acc>(rates[0])};
}

template <typename Acc>
PRIMUS_HOST_DEVICE inline void adamw_element(const UpdateFactors<Acc>& c, Acc grad, Acc& master, Acc& exp_avg,
                                             Acc& exp_avg_sq) {
  const Acc g = grad * c.scale;
  exp_avg = std::fma(c.beta1, exp_avg, c.one_minus_beta1 * g);
  exp_avg_sq = std::fma(c.beta2, exp_avg_sq, c.one_minus_beta2 * (g * g));
  const Acc direction = (exp_avg * c.first_correction) / (std::sqrt(exp_avg_sq * c.second_correction) + c.epsilon);
  master = std::fma(-c.learning_rate, std::fma(c.decay, master, direction), master);
}

template <typename Acc>
PRIMUS_HOST_DEVICE inline void sgd_element(const UpdateFactors<Acc>& c, Acc grad, Acc& master, Acc& momentum) {
  const Acc g = std::fma(c.decay, master, grad * c.scale);
  momentum = std::fma(c.beta1, momentum, g);
  master = std::fma(-c.learning_rate, momentum, master);
}

template <typename Acc>
PRIMUS_HOST_DEVICE inline void lion_element(const UpdateFactors<Acc>& c, Acc grad, Acc& master, Acc& momentum) {
  const Acc g = grad * c.scale;
  const Acc mixed = std::fma(c.beta1, momentum, c.one_minus_beta1 * g);
  const Acc sign = static_cast<Acc>((mixed > Acc{0}) - (mixed < Acc{0}));
  master = std::fma(-c.learning_rate, std::fma(c.decay, master, sign), master);
  momentum = std::fma(c.beta2, momentum, c.one_minus_beta2 * g);
}

}  // namespace primus::ops
