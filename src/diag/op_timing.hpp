#pragma once
// Timing of one op: median and median absolute deviation over repetitions. On a GPU events stand around a run of calls,
// on the CPU the clock is read around each.
#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace primus::diag {

struct Timing {
  double median_us, deviation_us, best_us;
};

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Median, its deviation and the best of repetitions, in microseconds.
inline Timing timing_of(std::vector<double> times) {
  Timing timing{median(times), 0.0, *std::min_element(times.begin(), times.end())};
  for (double& time : times) time = std::abs(time - timing.median_us);
  timing.deviation_us = median(times);
  return timing;
}

/// Calls op(i) with i = 0, 1, … until `seconds` are spent (at least 7 times), after two calls that are not counted.
template <typename Op>
Timing measure_on_cpu(const Op& op, double seconds = 0.4) {
  using Clock = std::chrono::steady_clock;
  int next = 0;
  op(next++);
  op(next++);
  std::vector<double> times;
  double spent = 0.0;
  while (times.size() < 7 || spent < seconds) {
    const auto start = Clock::now();
    op(next++);
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    times.push_back(1e6 * elapsed);
    spent += elapsed;
  }
  return timing_of(std::move(times));
}

struct DeviceTiming : Timing {
  double host_us;  // of issuing one call; where it is as large as the median, the host is what was measured
};

/// Calls op(i) with i = 0, 1, … ; the launches of one repetition run back to back.
template <typename Op>
DeviceTiming measure_on_gpu(const Op& op, int repetitions = 30, int calls = 10) {
  const c10::impl::VirtualGuardImpl device(c10::DeviceType::CUDA);
  const c10::Stream stream = device.getStream(device.getDevice());
  int next = 0;
  for (int i = 0; i < 2 * calls; ++i) op(next++);
  std::vector<double> times;
  std::vector<double> host_times;
  for (int r = 0; r < repetitions; ++r) {
    c10::Event start(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
    start.record(stream);
    const auto issued = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) op(next++);
    host_times.push_back(1e6 * std::chrono::duration<double>(std::chrono::steady_clock::now() - issued).count() /
                         calls);
    end.record(stream);
    end.synchronize();
    times.push_back(1e3 * start.elapsedTime(end) / calls);
  }
  return {timing_of(std::move(times)), median(std::move(host_times))};
}

}  // namespace primus::diag
