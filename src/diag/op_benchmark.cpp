#include "diag/op_benchmark.hpp"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/text.hpp"
#include "diag/op_cases.hpp"
#include "diag/op_timing.hpp"

namespace primus::diag {
namespace {

using Json = nlohmann::ordered_json;

Timing measure(const Workload& workload, const Call& call) {
  constexpr double kSeconds = 0.15;
  return workload.device.is_cuda() ? measure_on_gpu(call, 20, 5) : measure_on_cpu(call, kSeconds);
}

/// What this device reaches, measured just before the ops.
struct Ceilings {
  double gigabytes_s;  // a copy, bytes read and written
  double teraflops;    // a square product in the workload's type
};

Ceilings measure_ceilings(const Workload& workload) {
  const bool is_gpu = workload.device.is_cuda();
  const std::int64_t bytes = is_gpu ? std::int64_t{2} << 30 : std::int64_t{256} << 20;
  const Tensor from = workload.random({bytes / 4}, at::kFloat);
  Tensor to = at::empty_like(from);
  const double copy_us = measure(workload, [&](int) { to.copy_(from); }).median_us;
  const std::int64_t n = is_gpu ? 8192 : 768;
  const Tensor a = workload.random({n, n});
  const Tensor b = workload.random({n, n});
  Tensor c = workload.random({n, n});
  const double product_us = measure(workload, [&](int) { at::mm_out(c, a, b); }).median_us;
  const auto side = static_cast<double>(n);
  return {2e-3 * static_cast<double>(bytes) / copy_us, 2e-6 * side * side * side / product_us};
}

struct Row {
  Timing timing;
  double rate;     // GB/s or TFLOP/s
  double ceiling;  // of the same unit
  std::optional<Timing> aten;

  double share() const { return rate / ceiling; }
  std::optional<double> speedup() const {
    return aten ? std::optional(aten->median_us / timing.median_us) : std::nullopt;
  }
};

Row measure(const Workload& workload, const Ceilings& ceilings, const OpCase& measured) {
  const Calls calls = measured.prepare();
  Row row{.timing = measure(workload, calls.ours), .rate = 0.0, .ceiling = 0.0, .aten = std::nullopt};
  const bool is_flops = measured.limit == Limit::kFlops;
  row.rate = (is_flops ? 1e-6 : 1e-3) * measured.amount / row.timing.median_us;
  row.ceiling = is_flops ? ceilings.teraflops : ceilings.gigabytes_s;
  if (calls.aten) row.aten = measure(workload, calls.aten);
  return row;
}

const char* unit(const OpCase& measured) {
  return measured.limit == Limit::kFlops ? "TFLOP/s" : "GB/s";
}

std::string text_of(const OpCase& measured, const Row& row) {
  const auto speedup = row.speedup();
  return fmt::format("{:<31} {:<38} {:>10.1f} {:>8.1f} {:>9.{}f} {:<7} {:>6.1f} {:>9}\n", measured.op, measured.shape,
                     row.timing.median_us, row.timing.deviation_us, row.rate, row.rate < 10.0 ? 3 : 1, unit(measured),
                     100.0 * row.share(), speedup ? fmt::format("{:.2f}", *speedup) : "-");
}

Json json_of(const OpCase& measured, const Row& row) {
  const auto speedup = row.speedup();
  return {{"op", measured.op},
          {"shape", measured.shape},
          {"median_us", row.timing.median_us},
          {"mad_us", row.timing.deviation_us},
          {"rate", row.rate},
          {"unit", unit(measured)},
          {"ceiling_percent", 100.0 * row.share()},
          {"aten_us", row.aten ? Json(row.aten->median_us) : Json()},
          {"times_aten", speedup ? Json(*speedup) : Json()}};
}

std::vector<OpCase> chosen(const Workload& workload, const std::string& filter) {
  const std::vector<OpCase> known = op_cases(workload);
  std::vector<OpCase> all = known;
  std::erase_if(all, [&](const OpCase& measured) { return measured.op.find(filter) == std::string::npos; });
  if (!all.empty()) return all;
  std::vector<std::string_view> names;
  for (const OpCase& measured : known) names.push_back(measured.op);
  throw ConfigError({{.file = "command line",
                      .key = "--filter",
                      .message = "no op has this in its name",
                      .expected = "part of an op's name",
                      .found = filter,
                      .nearest = std::string(nearest_name(filter, names).value_or(""))}});
}

}  // namespace

void run_op_benchmark(const OpBenchmarkRequest& request) {
  std::string why_cpu;
  const at::Device device = ops::select_device(request.device, why_cpu);
  const Workload workload = workload_of(device);
  const std::vector<OpCase> cases = chosen(workload, request.filter);
  if (!why_cpu.empty()) fmt::print(stderr, "note: measuring the CPU: {}\n", why_cpu);
  const Ceilings ceilings = measure_ceilings(workload);
  const bool is_json = request.format == BenchmarkFormat::kJson;
  const std::string where = device.is_cuda() ? "GPU" : fmt::format("CPU, {} threads", at::get_num_threads());
  if (!is_json) {
    fmt::print("{}: {}\nceilings: a copy {:.0f} GB/s, a product {:.{}f} TFLOP/s\n", where, workload.name,
               ceilings.gigabytes_s, ceilings.teraflops, ceilings.teraflops < 10.0 ? 3 : 0);
    fmt::print("{:<31} {:<38} {:>10} {:>8} {:>17} {:>6} {:>9}\n", "op", "shape", "median us", "MAD", "rate", "%",
               "x ATen");
  }
  Json rows = Json::array();
  for (const OpCase& measured : cases) {
    const Row row = measure(workload, ceilings, measured);
    if (is_json) {
      rows.push_back(json_of(measured, row));
    } else {
      fmt::print("{}", text_of(measured, row));
      std::fflush(stdout);
    }
  }
  if (!is_json) return;
  const Json document = {{"ok", true},
                         {"device", device.is_cuda() ? "cuda" : "cpu"},
                         {"workload", workload.name},
                         {"copy_gb_s", ceilings.gigabytes_s},
                         {"product_tflop_s", ceilings.teraflops},
                         {"ops", std::move(rows)}};
  fmt::print("{}\n", document.dump(2));
}

}  // namespace primus::diag
