#include <atomic>
#include <bit>

#include "ops/adamw/adamw.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kElementsPerTask = 16 * 1024;
constexpr std::int64_t kSumBlock = 16 * 1024;  // elements of one partial sum: part of the result's definition

void check_same(const Tensor& x, const Tensor& like, const char* name) {
  PRIMUS_CHECK(x.is_contiguous() && x.numel() == like.numel(), "adamw: {} must be contiguous, of {} elements", name,
               like.numel());
}

/// Exponent bits all ones: NaN or infinite. On bits, so that the test is an integer one and vectorises.
inline bool is_nonfinite(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x7F800000U) == 0x7F800000U;
}
inline bool is_nonfinite(double x) {
  constexpr std::uint64_t kExponent = 0x7FF0000000000000ULL;
  return (std::bit_cast<std::uint64_t>(x) & kExponent) == kExponent;
}
inline bool is_nonfinite(at::BFloat16 x) {
  return (x.x & 0x7F80U) == 0x7F80U;
}

}  // namespace

void adamw_step(const AdamWOptions& options, const Tensor& main_grad, Tensor& master, Tensor& exp_avg,
                Tensor& exp_avg_sq, Tensor& weight) {
  PRIMUS_CHECK(options.step >= 1, "adamw: the first step is 1, not {}", options.step);
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
  const double step = static_cast<double>(options.step);
  dispatch_floating(weight.scalar_type(), "adamw_step", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const Acc* grad = main_grad.data_ptr<Acc>();
    Acc* value = master.data_ptr<Acc>();
    Acc* first = exp_avg.data_ptr<Acc>();
    Acc* second = exp_avg_sq.data_ptr<Acc>();
    T* copy = weight.data_ptr<T>();
    const auto scale = static_cast<Acc>(options.grad_scale);
    const auto beta1 = static_cast<Acc>(options.beta1);
    const auto beta2 = static_cast<Acc>(options.beta2);
    const auto one_minus_beta1 = static_cast<Acc>(1.0 - options.beta1);
    const auto one_minus_beta2 = static_cast<Acc>(1.0 - options.beta2);
    const auto first_correction = static_cast<Acc>(1.0 / (1.0 - std::pow(options.beta1, step)));
    const auto second_correction = static_cast<Acc>(1.0 / (1.0 - std::pow(options.beta2, step)));
    const auto epsilon = static_cast<Acc>(options.epsilon);
    const auto decay = static_cast<Acc>(options.weight_decay);
    const auto learning_rate = static_cast<Acc>(options.learning_rate);
    at::parallel_for(0, master.numel(), kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    // simd holds although weight may be the master itself: both are written with the same value.
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const Acc g = grad[i] * scale;
        const Acc m = std::fma(beta1, first[i], one_minus_beta1 * g);
        const Acc v = std::fma(beta2, second[i], one_minus_beta2 * (g * g));
        first[i] = m;
        second[i] = v;
        const Acc direction = (m * first_correction) / (std::sqrt(v * second_correction) + epsilon);
        const Acc updated = std::fma(-learning_rate, std::fma(decay, value[i], direction), value[i]);
        value[i] = updated;
        copy[i] = static_cast<T>(updated);
      }
    });
  });
}

double sum_of_squares(const Tensor& x) {
  PRIMUS_CHECK(x.is_contiguous(), "sum_of_squares: the tensor must be contiguous");
  const std::int64_t numel = x.numel();
  const std::int64_t num_blocks = (numel + kSumBlock - 1) / kSumBlock;
  // Blocks of one size, added in their order: the bits depend neither on the threads nor on who took which block.
  std::vector<double> partial(static_cast<std::size_t>(num_blocks));
  dispatch_floating(x.scalar_type(), "sum_of_squares", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* value = x.data_ptr<T>();
    at::parallel_for(0, num_blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const std::int64_t last = std::min(numel, (b + 1) * kSumBlock);
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (std::int64_t i = b * kSumBlock; i < last; ++i) {
          const double v = static_cast<acc_t<T>>(value[i]);
          sum += v * v;
        }
        partial[static_cast<std::size_t>(b)] = sum;
      }
    });
  });
  double total = 0.0;
  for (const double sum : partial) total += sum;
  return total;
}

bool has_nonfinite(const Tensor& x) {
  PRIMUS_CHECK(x.is_contiguous(), "has_nonfinite: the tensor must be contiguous");
  std::atomic<bool> found{false};
  dispatch_floating(x.scalar_type(), "has_nonfinite", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* value = x.data_ptr<T>();
    at::parallel_for(0, x.numel(), kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t first = begin; first < end && !found.load(std::memory_order_relaxed);
           first += kElementsPerTask) {
        const std::int64_t last = std::min(end, first + kElementsPerTask);
        int count = 0;
#pragma omp simd reduction(+ : count)
        for (std::int64_t i = first; i < last; ++i) count += is_nonfinite(value[i]) ? 1 : 0;
        if (count > 0) found.store(true, std::memory_order_relaxed);
      }
    });
  });
  return found.load();
}

}  // namespace primus::ops
