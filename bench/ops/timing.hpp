#pragma once
// What the benchmark programs of the ops share: one line an op, and which of them are wanted.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diag/op_timing.hpp"

namespace primus::bench {

using diag::Timing;

/// `op` until `seconds` are spent.
template <typename Op>
Timing measure(const Op& op, double seconds = 0.4) {
  return diag::measure_on_cpu([&](int) { op(); }, seconds);
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
