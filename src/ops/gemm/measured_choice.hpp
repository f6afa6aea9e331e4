#pragma once
// One of several kernels for the same product, by timing them on the operands of the first call. For the GPU half.
#include <array>
#include <functional>

#include "ops/gpu/runtime.hpp"

namespace primus::ops::cuda {

/// Can a choice be measured now? Smaller products gain less from it than it costs; kernels differ in the order of their
/// sums, so a run that must repeat itself takes the first one; while a graph is recorded nothing can be timed.
bool may_measure(double flops, gpu::Stream stream);

/// Number of the candidate that is fastest; the first one, unless another is clearly faster. run(i) issues candidate i
/// and tells whether it can do this at all; what it writes must not matter.
int fastest(int num_candidates, gpu::Stream stream, const std::function<bool(int)>& run);

/// Are choices to be written to standard error (PRIMUS_LOG_GEMM is set)?
bool logs_choices();

}  // namespace primus::ops::cuda
