#pragma once
// AdamW's arithmetic on plain arrays, shared by the op on fp32 state and by the one on stored state.
#include "ops/adamw/adamw.hpp"
#include "ops/adamw/update_element.hpp"
#include "ops/simd_math.hpp"

namespace primus::ops {

/// What one step multiplies by, on the host.
template <typename Acc>
UpdateFactors<Acc> update_factors(const AdamWOptions& o, const UpdateGate& gate, Decays decays) {
  const auto step = static_cast<double>(*gate.num_steps_1.const_data_ptr<std::int64_t>());
  PRIMUS_CHECK(step >= 1, "adamw: the first step is 1, not {}", step);
  const double* rates = gate.rates_2.const_data_ptr<double>();
  return {.scale = static_cast<Acc>(*gate.grad_scale_1.const_data_ptr<double>()),
          .beta1 = static_cast<Acc>(o.beta1),
          .one_minus_beta1 = static_cast<Acc>(1.0 - o.beta1),
          .beta2 = static_cast<Acc>(o.beta2),
          .one_minus_beta2 = static_cast<Acc>(1.0 - o.beta2),
          .first_correction = static_cast<Acc>(1.0 / (1.0 - std::pow(o.beta1, step))),
          .second_correction = static_cast<Acc>(1.0 / (1.0 - std::pow(o.beta2, step))),
          .epsilon = static_cast<Acc>(o.epsilon),
          .decay = static_cast<Acc>(decays == Decays::kYes ? rates[1] : 0.0),
          .learning_rate = static_cast<Acc>(rates[0])};
}

template <typename T, typename Acc>
void adamw_update(const UpdateFactors<Acc>& c, std::int64_t n, const Acc* grad, Acc* master, Acc* exp_avg,
                  Acc* exp_avg_sq, T* weight) {
  // simd holds although weight may be the master itself: both are written with the same value.
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    Acc w = master[i], m = exp_avg[i], v = exp_avg_sq[i];
    adamw_element(c, grad[i], w, m, v);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    master[i] = w;
    weight[i] = to_storage<T>(w);
  }
}

}  // namespace primus::ops
