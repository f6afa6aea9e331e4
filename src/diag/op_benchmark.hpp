#pragma once
// `benchmark ops`: how fast each op is, beside the device's own ceilings and libtorch's operators.
#include <string>

#include "ops/device.hpp"

namespace primus::diag {

enum class BenchmarkFormat { kText, kJson };

struct OpBenchmarkRequest {
  ops::DeviceChoice device = ops::DeviceChoice::kAuto;
  std::string filter;  // part of an op's name; empty: all
  BenchmarkFormat format = BenchmarkFormat::kText;
};

/// Measures the ceilings (a large copy, a large product), then each op that the filter names, and prints a line each or
/// one JSON document. Throws UserError if there is no such op or device.
void run_op_benchmark(const OpBenchmarkRequest& request);

}  // namespace primus::diag
