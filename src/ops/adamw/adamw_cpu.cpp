#include <atomic>
#include <bit>

#include "ops/adamw/adamw.hpp"
#include "ops/adamw/adamw_arithmetic.hpp"
#include "ops/cuda_ops.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kUpdatesPerTask = 16 * 1024;
constexpr std::int64_t kSumBlock = 16 * 1024;  // elements of one partial sum: part of the result's definition
constexpr std::int64_t kBlocksPerTask = 4;
constexpr std::int64_t kScanBlock = 64 * 1024;  // between two looks whether another thread has found one

void check_same(const Tensor& x, const Tensor& like, const char* name) {
  PRIMUS_CHECK(x.is_contiguous() && x.numel() == like.numel(), "adamw: {} must be contiguous, of {} elements", name,
               like.numel());
}

/// Exponent bits all ones: NaN or infinite. On bits, so that the test is an integer one and vectorises.
[[gnu::always_inline]] inline bool is_nonfinite(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x7F800000U) == 0x7F800000U;
}
[[gnu::always_inline]] inline bool is_nonfinite(double x) {
  constexpr std::uint64_t kExponent = 0x7FF0000000000000ULL;
  return (std::bit_cast<std::uint64_t>(x) & kExponent) == kExponent;
}
[[gnu::always_inline]] inline bool is_nonfinite(at::BFloat16 x) {
  return (x.x & 0x7F80U) == 0x7F80U;
}
[[gnu::always_inline]] inline bool is_nonfinite(at::Half x) {
  return (x.x & 0x7C00U) == 0x7C00U;
}

template <typename T>
bool block_has_nonfinite(const T* x, std::int64_t n) {
  int count = 0;
#pragma omp simd reduction(+ : count)
  for (std::int64_t i = 0; i < n; ++i) count += is_nonfinite(x[i]) ? 1 : 0;
  return count > 0;
}

template <typename T>
double block_sum_of_squares(const T* x, std::int64_t n) {
  // Lanes of our own: one vector of sums would wait for its own additions.
  constexpr std::int64_t kLanes = 16;
  std::array<double, kLanes> lane{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      const double value = static_cast<acc_t<T>>(x[i + l]);
      lane[l] += value * value;
    }
  }
  double sum = 0.0;
  for (; i < n; ++i) {
    const double value = static_cast<acc_t<T>>(x[i]);
    sum += value * value;
  }
  for (const double partial : lane) sum += partial;
  return sum;
}

void check_gate(const UpdateGate& gate, const Tensor& like) {
  const auto check = [&](const Tensor& x, at::ScalarType dtype, std::int64_t numel, const char* name) {
    PRIMUS_CHECK(x.defined() && x.scalar_type() == dtype && x.is_contiguous() && x.numel() == numel,
                 "adamw: {} must be {} [{}]", name, c10::toString(dtype), numel);
    PRIMUS_CHECK(x.device() == like.device(), "adamw: {} is on {}, the rest on {}", name, x.device().str(),
                 like.device().str());
  };
  check(gate.rates_2, at::kDouble, 2, "rates");
  check(gate.grad_scale_1, at::kDouble, 1, "grad_scale");
  check(gate.num_steps_1, at::kLong, 1, "num_steps");
  check(gate.proceed_1, at::kInt, 1, "proceed");
}

void check_scalar(const Tensor& x_1, const char* name) {
  PRIMUS_CHECK(x_1.scalar_type() == at::kDouble && x_1.numel() == 1, "adamw: {} must be one fp64 number", name);
}

void check_update(const Tensor& main_grad, const Tensor& master, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                  const Tensor& weight) {
  check_same(master, master, "master");
  check_same(main_grad, master, "main_grad");
  check_same(exp_avg, master, "exp_avg");
  check_same(exp_avg_sq, master, "exp_avg_sq");
  check_same(weight, master, "weight");
  for (const Tensor* x : std::array<const Tensor*, 3>{&main_grad, &exp_avg, &exp_avg_sq}) {
    PRIMUS_CHECK(x->scalar_type() == master.scalar_type(), "adamw: gradient and moments must be of the master's type");
  }
  PRIMUS_CHECK(master.scalar_type() == accumulator_type(weight.scalar_type()), "adamw: master must be {} beside {}",
               c10::toString(accumulator_type(weight.scalar_type())), c10::toString(weight.scalar_type()));
}

}  // namespace

UpdateGate make_update_gate(at::Device device) {
  const at::TensorOptions options(device);
  return {at::zeros({2}, options.dtype(at::kDouble)), at::zeros({1}, options.dtype(at::kDouble)),
          at::zeros({1}, options.dtype(at::kLong)), at::zeros({1}, options.dtype(at::kInt))};
}

void close_gate(const Tensor& loss_sum_1, const Tensor& square_sum_1, double clip_grad, UpdateGate& gate) {
  const ZoneScope zone(Zone::kOptimizer);
  check_scalar(loss_sum_1, "loss_sum");
  check_scalar(square_sum_1, "square_sum");
  check_gate(gate, square_sum_1);
  if (square_sum_1.is_cuda()) return cuda_ops().close_gate(loss_sum_1, square_sum_1, clip_grad, gate);
  const double norm = std::sqrt(*square_sum_1.data_ptr<double>());
  const bool proceed = std::isfinite(*loss_sum_1.data_ptr<double>()) && std::isfinite(norm);
  *gate.grad_scale_1.data_ptr<double>() = clip_grad > 0.0 ? std::min(1.0, clip_grad / (norm + 1e-6)) : 1.0;
  *gate.num_steps_1.data_ptr<std::int64_t>() += proceed ? 1 : 0;
  *gate.proceed_1.data_ptr<std::int32_t>() = proceed ? 1 : 0;
}

void adamw_step(const AdamWOptions& options, const UpdateGate& gate, Decays decays, const Tensor& main_grad,
                Tensor& master, Tensor& exp_avg, Tensor& exp_avg_sq, Tensor& weight) {
  const ZoneScope zone(Zone::kOptimizer);
  check_gate(gate, weight);
  check_update(main_grad, master, exp_avg, exp_avg_sq, weight);
  if (weight.is_cuda()) {
    return cuda_ops().adamw_step(options, gate, decays, main_grad, master, exp_avg, exp_avg_sq, weight);
  }
  if (*gate.proceed_1.data_ptr<std::int32_t>() == 0) return;
  dispatch_floating(weight.scalar_type(), "adamw_step", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const auto constants = host_factors<Acc>(options, gate, decays);
    const Acc* grad = main_grad.data_ptr<Acc>();
    Acc* value = master.data_ptr<Acc>();
    Acc* first = exp_avg.data_ptr<Acc>();
    Acc* second = exp_avg_sq.data_ptr<Acc>();
    T* copy = weight.data_ptr<T>();
    at::parallel_for(0, master.numel(), kUpdatesPerTask, [&](std::int64_t begin, std::int64_t end) {
      adamw_update(constants, end - begin, grad + begin, value + begin, first + begin, second + begin, copy + begin);
    });
  });
}

void add_sum_of_squares(const Tensor& x, Tensor& sum_1) {
  const ZoneScope zone(Zone::kGradientNorm);
  PRIMUS_CHECK(x.is_contiguous(), "add_sum_of_squares: the tensor must be contiguous");
  check_scalar(sum_1, "sum");
  PRIMUS_CHECK(sum_1.device() == x.device(), "add_sum_of_squares: the sum is on {}, the tensor on {}",
               sum_1.device().str(), x.device().str());
  if (x.is_cuda()) return cuda_ops().add_sum_of_squares(x, sum_1);
  const std::int64_t numel = x.numel();
  const std::int64_t num_blocks = (numel + kSumBlock - 1) / kSumBlock;
  // Blocks of one size, added in their order: the bits depend neither on the threads nor on who took which block.
  std::vector<double> partial(static_cast<std::size_t>(num_blocks));
  dispatch_floating(x.scalar_type(), "add_sum_of_squares", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* value = x.data_ptr<T>();
    at::parallel_for(0, num_blocks, kBlocksPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const std::int64_t first = b * kSumBlock;
        partial[static_cast<std::size_t>(b)] = block_sum_of_squares(value + first, std::min(kSumBlock, numel - first));
      }
    });
  });
  double total = 0.0;
  for (const double sum : partial) total += sum;
  *sum_1.data_ptr<double>() += total;
}

bool has_nonfinite(const Tensor& x) {
  const ZoneScope zone(Zone::kGradientNorm);
  PRIMUS_CHECK(x.is_contiguous(), "has_nonfinite: the tensor must be contiguous");
  if (x.is_cuda()) return cuda_ops().has_nonfinite(x);
  std::atomic<bool> found{false};
  dispatch_floating(x.scalar_type(), "has_nonfinite", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* value = x.data_ptr<T>();
    at::parallel_for(0, x.numel(), kScanBlock, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t first = begin; first < end && !found.load(std::memory_order_relaxed); first += kScanBlock) {
        if (block_has_nonfinite(value + first, std::min(kScanBlock, end - first))) found.store(true);
      }
    });
  });
  return found.load();
}

}  // namespace primus::ops
