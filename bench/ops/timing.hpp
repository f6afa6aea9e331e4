#pragma once
// Timing of one op: median and median absolute deviation over repetitions, beside the best.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace primus::bench {

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

/// Calls `op` until `seconds` are spent (at least 7 times), after two calls that are not counted.
template <typename Op>
Timing measure(const Op& op, double seconds = 0.4) {
  using Clock = std::chrono::steady_clock;
  op();
  op();
  std::vector<double> times;
  double spent = 0.0;
  while (times.size() < 7 || spent < seconds) {
    const auto start = Clock::now();
    op();
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    times.push_back(1e6 * elapsed);
    spent += elapsed;
  }
  return timing_of(std::move(times));
}

/// One line of the table; `work` is FLOPs or bytes a call, shown as G`unit`/s at the median and at the best.
inline void report(std::string_view op, const std::string& shape, double work, std::string_view unit,
                   const Timing& timing) {
  fmt::print("{:<28} {:<34} {:>10.1f} ± {:>6.1f} µs {:>8.1f} G{}/s (best {:.1f})\n", op, shape, timing.median_us,
             timing.deviation_us, 1e-3 * work / timing.median_us, unit, 1e-3 * work / timing.best_us);
}

struct Benchmark {
  std::string_view name;
  void (*run)();
};

/// A benchmark program: the benchmarks named on its command line, or all, after `prepare`. Gives the exit code: 2 for
/// an unknown name.
inline int run_benchmarks(std::string_view program, std::span<const Benchmark> benchmarks, int argc, char** argv,
                          void (*prepare)() = nullptr) {
  const std::vector<std::string_view> wanted(argv + 1, argv + argc);
  for (const std::string_view name : wanted) {
    if (std::ranges::find(benchmarks, name, &Benchmark::name) != benchmarks.end()) continue;
    fmt::print(stderr, "{}: unknown benchmark '{}'; there are", program, name);
    for (const Benchmark& benchmark : benchmarks) fmt::print(stderr, " {}", benchmark.name);
    fmt::print(stderr, "\n");
    return 2;
  }
  if (prepare != nullptr) prepare();
  for (const Benchmark& benchmark : benchmarks) {
    if (wanted.empty() || std::ranges::find(wanted, benchmark.name) != wanted.end()) benchmark.run();
  }
  return 0;
}

}  // namespace primus::bench
