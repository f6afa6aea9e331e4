#pragma once
// The Hadamard rotation of the last axis. Legend: R rows, D width, a power of two.
#include "ops/dtype.hpp"

namespace primus::ops {

/// x_RD (contiguous) in place: x · H / sqrt(D), H the Hadamard matrix in Sylvester's order. It is its own inverse and
/// its own backward.
void hadamard_rotate(Tensor& x_RD);

}  // namespace primus::ops
