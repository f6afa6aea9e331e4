#pragma once
// One optimizer step of one element, by each rule: the same operations in the same order on host and device.
#include <cmath>

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
