#pragma once
// AdamW's arithmetic on plain arrays, shared by the op on fp32 state and by the one on stored state.
#include "ops/adamw/adamw.hpp"
#include "ops/simd_math.hpp"

namespace primus::ops {

/// What one step multiplies by, in the accumulator's type.
template <typename Acc>
struct AdamWConstants {
  Acc scale, beta1, one_minus_beta1, beta2, one_minus_beta2, first_correction, second_correction, epsilon, decay,
      learning_rate;

  AdamWConstants(const AdamWOptions& o, const UpdateGate& gate, Decays decays)
      : scale(static_cast<Acc>(*gate.grad_scale_1.data_ptr<double>())),
        beta1(static_cast<Acc>(o.beta1)),
        one_minus_beta1(static_cast<Acc>(1.0 - o.beta1)),
        beta2(static_cast<Acc>(o.beta2)),
        one_minus_beta2(static_cast<Acc>(1.0 - o.beta2)),
        epsilon(static_cast<Acc>(o.epsilon)),
        decay(static_cast<Acc>(decays == Decays::kYes ? gate.rates_2.data_ptr<double>()[1] : 0.0)),
        learning_rate(static_cast<Acc>(gate.rates_2.data_ptr<double>()[0])) {
    const std::int64_t step = *gate.num_steps_1.data_ptr<std::int64_t>();
    PRIMUS_CHECK(step >= 1, "adamw: the first step is 1, not {}", step);
    first_correction = static_cast<Acc>(1.0 / (1.0 - std::pow(o.beta1, static_cast<double>(step))));
    second_correction = static_cast<Acc>(1.0 / (1.0 - std::pow(o.beta2, static_cast<double>(step))));
  }
};

template <typename T, typename Acc>
void adamw_update(const AdamWConstants<Acc>& c, std::int64_t n, const Acc* grad, Acc* master, Acc* exp_avg,
                  Acc* exp_avg_sq, T* weight) {
  // simd holds although weight may be the master itself: both are written with the same value.
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const Acc g = grad[i] * c.scale;
    const Acc m = std::fma(c.beta1, exp_avg[i], c.one_minus_beta1 * g);
    const Acc v = std::fma(c.beta2, exp_avg_sq[i], c.one_minus_beta2 * (g * g));
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    const Acc direction = (m * c.first_correction) / (std::sqrt(v * c.second_correction) + c.epsilon);
    const Acc updated = std::fma(-c.learning_rate, std::fma(c.decay, master[i], direction), master[i]);
    master[i] = updated;
    weight[i] = to_storage<T>(updated);
  }
}

}  // namespace primus::ops
