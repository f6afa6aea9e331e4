#pragma once
// AdamW's arithmetic on plain arrays, shared by the op on fp32 state and by the one on stored state.
#include "ops/adamw/adamw.hpp"
#include "ops/adamw/update_element.hpp"
#include "ops/simd_math.hpp"

namespace primus::ops {

inline UpdateConstants constants_of(const AdamWOptions& options, Decays decays) {
  return {options.beta1, options.beta2, options.epsilon, decays == Decays::kYes};
}

/// What one step multiplies by, from a gate on the host.
template <typename Acc>
UpdateFactors<Acc> host_factors(const AdamWOptions& options, const UpdateGate& gate, Decays decays) {
  const std::int64_t step = *gate.num_steps_1.const_data_ptr<std::int64_t>();
  PRIMUS_CHECK(step >= 1, "adamw: the first step is 1, not {}", step);
  return update_factors<Acc>(constants_of(options, decays), *gate.grad_scale_1.const_data_ptr<double>(),
                             gate.rates_2.const_data_ptr<double>(), step);
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
