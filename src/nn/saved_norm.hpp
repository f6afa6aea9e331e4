#pragma once
// A norm whose statistics backward needs, and which may be asked for again.
#include "nn/saved.hpp"
#include "ops/rms_norm/rms_norm.hpp"

namespace primus::nn {

/// normed = RMSNorm of x over its last axis. Its statistics are taken from `saved`, or made and left there.
inline void norm_once(const Tensor& x, const Tensor& weight, double epsilon, int rstd_slot, Saved& saved,
                      Tensor& normed) {
  if (saved.is_missing(rstd_slot)) {
    ops::rms_norm_forward(x, weight, epsilon, normed, saved.allocate(rstd_slot));
  } else {
    ops::rms_norm_apply(x, weight, saved.at(rstd_slot), normed);
  }
}

}  // namespace primus::nn
