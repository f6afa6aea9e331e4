#pragma once
// Timing of one op on a GPU: events around each call, several sets of buffers in turn so that the L2 does not answer.
#include <fmt/format.h>

#include "timing.hpp"

namespace primus::bench {

inline constexpr double kCopyGigabytes = 4111.0;  // device copy of an H200, read + write (docs/performance.md)
// What large products of an H200 reach, in TFLOP/s (the same page).
inline constexpr double kDenseTeraflops = 745.0;
inline constexpr double kGroupedTeraflops = 709.0;
inline constexpr double kAttentionForwardTeraflops = 550.0;
inline constexpr double kAttentionBackwardTeraflops = 403.0;  // forward and backward together: 435
inline constexpr double kCacheBytes = 60e6;

/// Sets of buffers that together are several times the L2, when one set moves `bytes`.
inline int num_buffer_sets(double bytes) {
  return static_cast<int>(std::clamp(std::ceil(4.0 * kCacheBytes / bytes), 2.0, 64.0));
}

using CudaTiming = diag::DeviceTiming;

/// Calls op(i) with i = 0, 1, … ; the launches of one repetition run back to back.
template <typename Op>
CudaTiming measure_cuda(const Op& op, int repetitions = 30, int calls = 10) {
  return diag::measure_on_gpu(op, repetitions, calls);
}

/// One line: microseconds, GB/s and their share of what a copy reaches, the host's microseconds.
inline void report_bytes(std::string_view op, const std::string& shape, double bytes, const CudaTiming& timing) {
  const double rate = 1e-3 * bytes / timing.median_us;
  fmt::print("{:<20} {:<34} {:>8.1f} ± {:>5.1f} µs {:>8.1f} MB {:>7.0f} GB/s {:>5.1f} %  host {:>5.1f} µs\n", op, shape,
             timing.median_us, timing.deviation_us, 1e-6 * bytes, rate, 100.0 * rate / kCopyGigabytes, timing.host_us);
}

/// One line: microseconds, TFLOP/s and their share of what large products reach, the host's microseconds.
inline void report_flops(std::string_view op, const std::string& shape, double flops, double ceiling,
                         const CudaTiming& timing) {
  const double rate = 1e-6 * flops / timing.median_us;
  fmt::print("{:<20} {:<44} {:>8.1f} ± {:>5.1f} µs {:>7.1f} TFLOP/s {:>5.1f} %  host {:>5.1f} µs\n", op, shape,
             timing.median_us, timing.deviation_us, rate, 100.0 * rate / ceiling, timing.host_us);
}

}  // namespace primus::bench
